# SPDX-License-Identifier: Apache-2.0
"""Consume queues, and the reads of their messages."""
