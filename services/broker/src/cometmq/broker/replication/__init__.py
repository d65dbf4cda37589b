# SPDX-License-Identifier: Apache-2.0
"""Replication: streams the log from a master to its slaves, and copies its tables."""
