# SPDX-License-Identifier: Apache-2.0
"""Broker groups as processes, load with a ledger, and comparisons of copies, for tests/ha."""
