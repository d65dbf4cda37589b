# SPDX-License-Identifier: Apache-2.0
"""Consume queues, and reading their messages."""
