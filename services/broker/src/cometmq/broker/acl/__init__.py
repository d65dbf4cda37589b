# SPDX-License-Identifier: Apache-2.0
"""Access control with the accounts in RocketMQ's plain_acl.yml."""
