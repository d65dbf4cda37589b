# SPDX-License-Identifier: Apache-2.0
"""Replication and election of a broker group: rules as pure functions, records of consensus.

Import the modules by name (`cometmq.ha.in_sync`). Nothing here knows a broker, a store or a socket
of replication: callers pass facts in and perform the actions that come out.
"""
