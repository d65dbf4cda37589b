# SPDX-License-Identifier: Apache-2.0
"""Transactions: half messages, what ended them, and those that were stored last."""
