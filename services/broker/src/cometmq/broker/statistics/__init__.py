# SPDX-License-Identifier: Apache-2.0
"""The broker's statistics: counters, time windows, daily totals, latencies and group lag."""
