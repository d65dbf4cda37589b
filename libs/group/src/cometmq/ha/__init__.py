# SPDX-License-Identifier: Apache-2.0
"""Replication and election in a broker group: rules as pure functions, and consensus records.

Import the modules by name (`cometmq.ha.in_sync`). Nothing here depends on a broker, a store or a
replication socket: callers pass facts in and perform the returned actions.
"""
