# SPDX-License-Identifier: Apache-2.0
"""Statistics of the broker: counters, their time windows, and daily totals."""
