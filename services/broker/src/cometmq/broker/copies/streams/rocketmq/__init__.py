# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's replication stream, for slaves and masters outside a broker group."""
