# SPDX-License-Identifier: Apache-2.0
"""Computes the tables of a report from snapshots."""
