# SPDX-License-Identifier: Apache-2.0
"""Bodies of a few bytes that decompress to many megabytes are held in parts of bounded size."""

import threading

import pytest

from cometmq.client import (
    AdminClient,
    ConsumeFrom,
    Message,
    MessageExt,
    PullConsumer,
    PushOptions,
)
from cometmq.client.message import ON_LOOP_BYTES_MAX, UnreadableMessage
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.message.compression import DECOMPRESSED_BYTES_MAX as DECOMPRESSED_MAX
from cometmq.remoting.message.compression import (
    compress,
    compression_bits,
    decompress,
    expanded_bytes_max,
)
from cometmq.remoting.message.flags import CompressionType
from cometmq.testing.client import listening
from cometmq.testing.client.listening import QUEUE_0, consumer_of, send, texts

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


# -- bombs ------------------------------------------------------------------------------------


def bomb(kind: CompressionType) -> tuple[bytes, int]:
    """Return a body that expands to more than any may, and its sysFlag."""
    return compress(bytes(2 * DECOMPRESSED_MAX), kind), compression_bits(kind)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the bodies that were decompressed on the loop and on threads."""
    seen: list[int] = []

    def noted(body: bytes, kind: CompressionType, *, bytes_max: int = DECOMPRESSED_MAX) -> bytes:
        is_on_loop = threading.current_thread() is threading.main_thread()
        assert bytes_max <= ON_LOOP_BYTES_MAX or not is_on_loop
        seen.append(bytes_max)
        return decompress(body, kind, bytes_max=bytes_max)

    monkeypatch.setattr("cometmq.client.message.decompress", noted)
    return seen


@pytest.mark.parametrize("kind", [CompressionType.LZ4])
async def test_bombs_are_expanded_one_per_answer_and_on_a_thread(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, threads: list[int],
    kind: CompressionType,
) -> None:  # fmt: skip
    """A bomb counts with what it made the client write, although it is refused."""
    monkeypatch.setattr("cometmq.client.transfer.puller.PLAIN_BYTES_MAX", 32 << 20)
    monkeypatch.setattr("cometmq.client.admin.broker_messages.PLAIN_BYTES_MAX", 32 << 20)
    body, sys_flag = bomb(kind)
    for _ in range(4):
        listening.store(cluster, body, sys_flag=sys_flag)
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        pulled = await consumer.pull(QUEUE_0, 0)
        assert (pulled.messages, len(pulled.unreadable), pulled.next_offset) == ([], 1, 1)
    assert threads == [ON_LOOP_BYTES_MAX, DECOMPRESSED_MAX]
    async with AdminClient(cluster.namesrv) as admin:
        found = await admin.broker(cluster.broker.address).pull("T", 0, 0)
        assert (len(found.messages), found.next_offset) == (1, 1)
    assert len(threads) == 4


async def test_a_search_returns_the_messages_beside_bombs_and_broken_bodies(
    cluster: MemoryCluster, threads: list[int]
) -> None:
    """Anyone who may send could otherwise hide a key's messages from operators."""
    body, sys_flag = bomb(CompressionType.ZLIB)
    for broken in (body, body, body, b"broken"):
        listening.store(cluster, broken, sys_flag=sys_flag, key="k")
    await send(cluster, Message("T", b"good", keys="k"))
    async with AdminClient(cluster.namesrv) as admin:
        found = await admin.broker(cluster.broker.address).query("T", "k")
    assert [it.body for it in found if not isinstance(it, UnreadableMessage)] == [b"good"]
    assert len(found) == 5
    assert threads.count(DECOMPRESSED_MAX) == 1


async def test_small_broken_bodies_do_not_end_an_answer(cluster: MemoryCluster) -> None:
    for _ in range(4):
        listening.store_unreadable(cluster)
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        assert len((await consumer.pull(QUEUE_0, 0)).unreadable) == 4


@pytest.mark.parametrize("kind", [*CompressionType])
def test_no_body_expands_to_more_than_expected(kind: CompressionType) -> None:
    for plain in (bytes(1 << 20), bytes(range(256)) * 9, b""):
        packed = compress(plain, kind) if kind else plain
        assert len(decompress(packed, kind)) <= expanded_bytes_max(packed, kind) + 64
