# SPDX-License-Identifier: Apache-2.0
"""Routes of topics, and the queues of ordered topics."""

import pytest

from cometmq.client import AdminClient
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.testing import MemoryCluster


async def test_where_a_topic_is(cluster: MemoryCluster) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        assert [master.name for master in await admin.masters_of("T")] == ["broker-a"]
        assert await admin.topic_clusters("T") == list((await admin.cluster()).cluster_addr_table)
        assert [one.address for one in admin.namesrv.each()] == [cluster.namesrv]
        groups = await admin.broker_groups()
        assert [(name, list(group)) for name, group in groups.items()] == [("broker-a", [0])]


async def test_queues_of_an_ordered_topic_are_kept_by_broker(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {("ORDER_TOPIC_CONFIG", "T"): "a:4;b:8"}

    async def get_kv(_: NamesrvAdmin, namespace: str, key: str) -> str | None:
        return values.get((namespace, key))

    async def put_kv(_: NamesrvAdmin, namespace: str, key: str, value: str) -> None:
        values[namespace, key] = value

    monkeypatch.setattr(NamesrvAdmin, "get_kv", get_kv)
    monkeypatch.setattr(NamesrvAdmin, "put_kv", put_kv)
    async with AdminClient(cluster.namesrv) as admin:
        assert await admin.set_order_queues("T", "a", 6) == "a:6;b:8"
        assert await admin.set_order_queues("New", "c", 2) == "c:2"
        assert await admin.order_config("T") == "a:6;b:8"
    assert values["ORDER_TOPIC_CONFIG", "New"] == "c:2"
