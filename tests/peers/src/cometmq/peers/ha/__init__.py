# SPDX-License-Identifier: Apache-2.0
"""Runs broker groups under load with a ledger, and compares their copies, for tests/ha."""
