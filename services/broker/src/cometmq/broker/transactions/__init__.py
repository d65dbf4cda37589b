# SPDX-License-Identifier: Apache-2.0
"""Transactions: half messages and op messages, the state of each end, and a cache of half
messages.
"""
