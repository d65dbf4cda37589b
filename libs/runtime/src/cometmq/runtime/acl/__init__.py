# SPDX-License-Identifier: Apache-2.0
"""Accounts in RocketMQ's plain_acl.yml, for brokers and name servers."""
