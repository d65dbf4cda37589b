# SPDX-License-Identifier: Apache-2.0
"""Commit log, consume queues and index, byte-compatible with RocketMQ 4.9."""
