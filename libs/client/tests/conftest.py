# SPDX-License-Identifier: Apache-2.0
from collections.abc import AsyncIterator

import pytest

from cometmq.client.testing import MemoryCluster


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster() as cluster:
        cluster.create_topic("T")
        yield cluster


@pytest.fixture
async def pair() -> AsyncIterator[MemoryCluster]:
    """Start two brokers, each with two queues of the topic."""
    async with MemoryCluster(["broker-a", "broker-b"]) as cluster:
        cluster.create_topic("T", queue_count=2)
        yield cluster
