# SPDX-License-Identifier: Apache-2.0
"""Copies of the tables (topics, groups, offsets, delay positions) to followers and from masters."""
