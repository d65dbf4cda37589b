# SPDX-License-Identifier: Apache-2.0
"""The txn-checker: has producers asked how open transactions ended."""
