# SPDX-License-Identifier: Apache-2.0
"""Asyncio-first client for CometMQ and Apache RocketMQ."""
