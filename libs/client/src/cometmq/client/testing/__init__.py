# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory for tests of everything that sends or consumes; shipped, typed."""

from cometmq.client.testing.broker import DISCONNECT, HANG, MemoryBroker
from cometmq.client.testing.cluster import MemoryCluster
from cometmq.client.testing.waiting import eventually

__all__ = ["DISCONNECT", "HANG", "MemoryBroker", "MemoryCluster", "eventually"]
