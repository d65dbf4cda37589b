# SPDX-License-Identifier: Apache-2.0
"""Lag reports: which groups are behind, since when, and how long until data is lost."""
