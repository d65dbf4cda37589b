# SPDX-License-Identifier: Apache-2.0
"""Snapshots of all offsets of a cluster."""
