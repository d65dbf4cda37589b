# SPDX-License-Identifier: Apache-2.0
"""Contract tests for backends that store records, and the exhaustive check of all rules."""
