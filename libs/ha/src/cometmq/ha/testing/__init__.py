# SPDX-License-Identifier: Apache-2.0
"""Contract tests of places for records, and the exhaustive check of all rules."""
