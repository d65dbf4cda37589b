# SPDX-License-Identifier: Apache-2.0
"""Bodies of a few bytes that decompress to many megabytes are held in parts of bounded size."""

import pytest

from cometmq.client import AdminClient, ConsumeFrom, MessageExt, PullConsumer, PushOptions
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.testing.listening import QUEUE_0, consumer_of, send, texts
from cometmq.remoting.errors import RemoteProtocolError

COUNT = 8
BODY = bytes(1 << 20)  # compresses to a thousandth
HELD_MAX = 3 * len(BODY)


@pytest.fixture(autouse=True)
def small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("transfer.puller", "admin.broker_messages"):
        monkeypatch.setattr(f"cometmq.client.{module}.PLAIN_BYTES_MAX", 2 * len(BODY) - 1)


async def store(cluster: MemoryCluster) -> None:
    await send(cluster, *(it.__class__("T", BODY, keys="k") for it in texts(COUNT)))


async def test_a_pull_ends_after_the_bound_and_the_next_goes_on(cluster: MemoryCluster) -> None:
    await store(cluster)
    offset, sizes = 0, []
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        while offset < COUNT:
            pulled = await consumer.pull(QUEUE_0, offset)
            assert [it.queue_offset for it in pulled.messages] == [
                *range(offset, pulled.next_offset)
            ]
            sizes.append(sum(len(it.body) for it in pulled.messages))
            offset = pulled.next_offset
    assert sum(sizes) == COUNT * len(BODY)
    assert max(sizes) <= HELD_MAX


async def test_a_listener_gets_every_message_once(cluster: MemoryCluster) -> None:
    await store(cluster)
    seen: list[int] = []

    async def listen(messages: list[MessageExt]) -> None:
        seen.extend(it.queue_offset for it in messages)

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    async with consumer_of(cluster, listen, options):
        await eventually(lambda: len(seen) >= COUNT)
    assert sorted(seen) == [*range(COUNT)]


async def test_the_admin_client_says_where_to_go_on(cluster: MemoryCluster) -> None:
    await store(cluster)
    async with AdminClient(cluster.namesrv) as admin:
        broker = admin.broker(cluster.broker.address)
        pulled = await broker.pull("T", QUEUE_0.queue_id, 0)
        assert pulled.next_offset == len(pulled.messages) == 2
        with pytest.raises(RemoteProtocolError, match="ask for fewer messages"):
            await broker.query("T", "k")
        assert len(await broker.query("T", "k", count_max=2)) == 2
