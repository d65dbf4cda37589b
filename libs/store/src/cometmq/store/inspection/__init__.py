# SPDX-License-Identifier: Apache-2.0
"""Inspect and verify a store's folder without a broker."""
