# SPDX-License-Identifier: Apache-2.0
"""Access control with the accounts of RocketMQ's plain_acl.yml."""
