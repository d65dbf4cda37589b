# SPDX-License-Identifier: Apache-2.0
"""Test helpers: the contract of record backends, the exhaustive check of all rules,
sample groups, a disk that fails.
"""
