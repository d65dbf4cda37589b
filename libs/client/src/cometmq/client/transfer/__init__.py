# SPDX-License-Identifier: Apache-2.0
"""Transfers of single messages: sends with retries, and pulls from one queue."""
