# SPDX-License-Identifier: Apache-2.0
"""Access control by the accounts of RocketMQ's plain_acl.yml."""
