# SPDX-License-Identifier: Apache-2.0
"""The broker's statistics: counters, their time windows, daily totals, and the age of lags."""
