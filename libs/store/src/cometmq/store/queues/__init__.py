# SPDX-License-Identifier: Apache-2.0
"""Consume queues, and how messages are read from them."""
