# SPDX-License-Identifier: Apache-2.0
"""Access control: who may ask what, as RocketMQ's plain_acl.yml says it."""
