# SPDX-License-Identifier: Apache-2.0
"""Limits of a connection's memory, output and time, and the queues that wait for them."""
