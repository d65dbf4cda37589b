# SPDX-License-Identifier: Apache-2.0
"""Lag reports: who is behind, since when, and what is going to be lost."""
