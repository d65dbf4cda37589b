# SPDX-License-Identifier: Apache-2.0
"""Replication: the stream of the log from a master to its slaves, and the slaves' tables."""
