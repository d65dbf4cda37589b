# SPDX-License-Identifier: Apache-2.0
"""An in-memory cluster for tests of programs that send or consume messages."""

from cometmq.client.testing.broker import DISCONNECT, HANG, LOSE_ANSWER, MemoryBroker
from cometmq.client.testing.cluster import MemoryCluster, eventually

__all__ = ["DISCONNECT", "HANG", "LOSE_ANSWER", "MemoryBroker", "MemoryCluster", "eventually"]
