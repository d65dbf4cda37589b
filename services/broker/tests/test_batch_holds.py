# SPDX-License-Identifier: Apache-2.0
"""No batch and no send with many properties holds the loop for more than 20 ms."""

import asyncio
import struct
from functools import partial
from itertools import pairwise

import pytest

from cometmq.remoting.codes import RequestCode
from cometmq.remoting.header import decode_header
from cometmq.remoting.message.batch import split_batch
from cometmq.store.queues.consume_queue import entries_from
from cometmq.testing.broker.holds import HOLD_S_MAX, longest_hold
from cometmq.testing.broker.scripted import ScriptedBroker, frames_of
from cometmq.testing.broker.scripts import frame

from .holding import CHUNK_BYTES, answered_later, check, lanes, native, run_broker


def items(count: int) -> bytes:
    parts = []
    for number in range(count):
        text = b"UNIQ_KEY\x01%08X" % number
        head = struct.pack(">iiiii", 0, 0, 0, 0, 1)
        parts.append(head + b"x" + struct.pack(">h", len(text)) + text)
    return b"".join(parts)


def send(topic: str, body: bytes, opaque: int, *, batch: bool = False, text: str = "") -> bytes:
    ext = {
        "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": text, "j": "0", "k": "false", "l": "0", "m": str(batch).lower(),
    }  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return frame(code, ext, body, opaque=opaque)


@pytest.mark.load
@lanes
@pytest.mark.parametrize("count", [3_000, 65_536])
def test_batches_hold_the_loop_for_a_bounded_time(lane: bool, count: int) -> None:
    data = send("T", items(count), 1, batch=True)

    async def send_batch(broker: ScriptedBroker) -> float:
        connected, beside = broker.connect(), broker.connect()
        before = broker.broker.store.reader.max_offset("T", 0)
        with longest_hold() as holds:
            for start in range(0, len(data), CHUNK_BYTES):
                await answered_later(connected, holds, data[start : start + CHUNK_BYTES])
            turns = 0
            while not connected.wire.sent:  # no event
                turns += 1
                beside.peer.data_received(send("T", b"beside", 10 + turns))
                await asyncio.sleep(0)
            await broker.settle()
        ((serialization, head, _),) = frames_of(bytes(connected.wire.sent))
        answer = decode_header(serialization, head)
        ids = answer.ext["msgId"].split(",")
        assert (answer.code, len(ids)) == (0, count)
        first = int(answer.ext["queueOffset"])
        queue = broker.broker.store.reader.queue("T", 0)
        assert queue is not None
        entries = entries_from(queue, first, count)
        assert [f"{offset:016X}" for offset, _, _ in entries] == [one[-16:] for one in ids]
        assert all(offset + size == later for (offset, size, _), (later, _, _) in pairwise(entries))
        assert len(frames_of(bytes(beside.wire.sent))) == turns
        assert broker.broker.store.reader.max_offset("T", 0) == before + count + turns
        for one in (connected, beside):
            one.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send_batch(broker))

    run_broker(lane, work)


@lanes
def test_requests_behind_a_large_batch_keep_their_order(lane: bool) -> None:
    async def work(broker: ScriptedBroker) -> None:
        connected = broker.connect()
        connected.peer.data_received(
            send("T", b"1", 1) + send("T", items(5_000), 2, batch=True) + send("T", b"3", 3)
            + send("T", items(5_000)[:-1], 4, batch=True) + send("T", b"5", 5)
        )  # fmt: skip
        async with asyncio.timeout(30):
            while len(frames_of(bytes(connected.wire.sent))) < 5:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        found = {
            answer.opaque: (answer.code, answer.ext.get("queueOffset"))
            for answer in (decode_header(*one[:2]) for one in frames_of(bytes(connected.wire.sent)))
        }
        assert found == {1: (0, "0"), 2: (0, "1"), 3: (0, "5001"), 4: (1, None), 5: (0, "5002")}
        assert broker.broker.pending.large_batches.size == 0

    run_broker(lane, work)


def test_a_broker_that_stops_stores_a_large_batch_whole() -> None:
    async def work(broker: ScriptedBroker) -> None:
        connected = broker.connect()
        connected.peer.data_received(send("T", items(30_000), 1, batch=True))
        while broker.broker.store.writer.placing is None:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        assert broker.broker.store.reader.max_offset("T", 0) == 0
        await broker.broker.driver.drain()
        assert broker.broker.store.reader.max_offset("T", 0) == 30_000

    run_broker(False, work)


def test_a_batch_above_the_limit_is_not_split_whole() -> None:
    item = struct.pack(">iiiii", 23, 0, 0, 0, 1) + b"x" + bytes(2)
    items = split_batch(item * 100_000, 11)
    assert len(items) == 11


def texts(kind: str) -> list[bytes]:
    """Return the properties of a batch of about 4 MB that take as much time as possible."""
    if kind == "keys":
        return [b"KEYS\x01" + b" ".join([b"%x" % key for key in range(6_000)])] * 40
    if kind == "separators":
        return [b"\x02" * 32_000] * 128
    return [b"b\x01c\x02" * 2_000] * 500


@pytest.mark.load
@lanes
@pytest.mark.parametrize("kind", ["keys", "separators", "pairs"])
def test_batches_of_costly_properties_hold_the_loop_for_a_bounded_time(
    lane: bool, kind: str
) -> None:
    parts = [struct.pack(">iiiiih", 0, 0, 0, 0, 0, len(text)) + text for text in texts(kind)]
    data = send("T", b"".join(parts), 1, batch=True)

    async def send_batch(broker: ScriptedBroker) -> float:
        connected = broker.connect()
        with longest_hold() as holds:
            for start in range(0, len(data), CHUNK_BYTES):
                await answered_later(connected, holds, data[start : start + CHUNK_BYTES])
            while not connected.wire.sent:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
            await broker.settle()
        ((serialization, head, _),) = frames_of(bytes(connected.wire.sent))
        assert decode_header(serialization, head).code == 0
        connected.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send_batch(broker))

    run_broker(lane, work)


@lanes
@pytest.mark.parametrize("count", [2, 3])
def test_a_batch_with_many_keys_is_stored_in_steps(lane: bool, count: int) -> None:
    """Behind keys that wait, a commit indexes as many as it brings: 240,000 took 30 ms."""
    text = texts("keys")[0]  # with 6,000 keys
    item = struct.pack(">iiiiih", 0, 0, 0, 0, 0, len(text)) + text

    async def work(broker: ScriptedBroker) -> None:
        connected = broker.connect()
        connected.peer.data_received(send("T", b"x", 0))  # the lane knows the topic
        await broker.settle()
        connected.wire.sent.clear()
        connected.peer.data_received(send("T", item * count, count, batch=True))
        await asyncio.sleep(0)
        has_steps = not lane or count > 2
        assert broker.broker.pending.large_batches.size == (len(item) * count if has_steps else 0)
        while not connected.wire.sent:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
        assert broker.broker.store.reader.max_offset("T", 0) == 1 + count

    run_broker(lane, work)


SENDS_WITH_KEYS = 15


@pytest.mark.load
@lanes
@pytest.mark.parametrize("connection_count", [1, 8])
def test_sends_with_thousands_of_keys_hold_the_loop_for_a_bounded_time(
    lane: bool, connection_count: int
) -> None:
    keys = " ".join(f"{key % 10}" for key in range(16_000))
    data = b"".join(
        send("T", b"x", number, text=f"KEYS\x01{keys}") for number in range(SENDS_WITH_KEYS)
    )

    async def send_all(broker: ScriptedBroker) -> float:
        loop = asyncio.get_running_loop()
        connections = [broker.connect() for _ in range(connection_count)]
        with longest_hold() as holds:
            for start in range(0, len(data), CHUNK_BYTES):
                for one in connections:  # in one turn of the loop
                    loop.call_soon(one.peer.data_received, data[start : start + CHUNK_BYTES])
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                while not all(  # noqa: ASYNC110  # no event
                    len(frames_of(bytes(one.wire.sent))) == SENDS_WITH_KEYS for one in connections
                ):
                    await asyncio.sleep(0)
            await broker.settle()
        for one in connections:
            answers = [decode_header(*part[:2]) for part in frames_of(bytes(one.wire.sent))]
            assert [(one.opaque, one.code) for one in answers] == [
                (number, 0) for number in range(SENDS_WITH_KEYS)
            ]
            offsets = [int(answer.ext["queueOffset"]) for answer in answers]
            assert offsets == sorted(set(offsets))  # later requests do not overtake
            one.peer.connection_lost(None)
        return holds.longest_s

    # A turn serves a request of each rank at least (`Turns`), and commits them together.
    hold_s_max = HOLD_S_MAX if connection_count == 1 else 2 * HOLD_S_MAX

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send_all(broker), hold_s_max=hold_s_max)
        assert broker.broker.pending.large_batches.size == 0

    run_broker(lane, work)


@pytest.mark.parametrize(
    ("lane", "key_count"),
    [
        (False, 1),  # without native code, a send with many keys is stored in steps itself
        *[pytest.param(True, count, marks=native) for count in (1, 16_000)],
    ],
)
def test_sends_beside_a_large_batch_do_not_end_it_at_once(lane: bool, key_count: int) -> None:
    """They wait for it, then they are stored in several commits; both took 100 ms at once."""
    batch, count = send("T", items(65_536), 1, batch=True), 8 if key_count == 1 else 2
    keys, body = " ".join("1" * key_count), b"x" * (32_000 if key_count == 1 else 1)
    chunk = b"".join(send("T", body, number, text=f"KEYS\x01{keys}") for number in range(count))

    async def send_all(broker: ScriptedBroker) -> float:
        large, beside = broker.connect(), [broker.connect() for _ in range(16)]
        beside[0].peer.data_received(send("T", b"first", 0))  # the lane knows the topic
        await broker.settle()
        beside[0].wire.sent.clear()
        parts, was_full, asked = broker.broker, False, [0] * len(beside)
        with longest_hold() as holds:
            for start in range(0, len(batch), CHUNK_BYTES):
                await answered_later(large, holds, batch[start : start + CHUNK_BYTES])
            while not large.wire.sent:
                for number, one in enumerate(beside):
                    is_placing = parts.store.writer.placing is not None
                    if is_placing and not parts.driver.is_full and one.wire.is_reading:
                        asked[number] += count
                        holds.measure(partial(one.peer.data_received, chunk))
                was_full = was_full or parts.driver.is_full
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                while any(  # noqa: ASYNC110  # no event
                    len(frames_of(bytes(one.wire.sent))) < wanted
                    for one, wanted in zip(beside, asked, strict=True)
                ):
                    await asyncio.sleep(0)
            await broker.settle()
        assert was_full
        for one, wanted in zip(beside, asked, strict=True):
            answers = [decode_header(*part[:2]) for part in frames_of(bytes(one.wire.sent))]
            assert [answer.code for answer in answers] == [0] * wanted
            offsets = [int(answer.ext["queueOffset"]) for answer in answers]
            assert offsets == sorted(set(offsets))
        for one in (large, *beside):
            one.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send_all(broker))
        assert not broker.broker.driver.is_full

    run_broker(lane, work)


@lanes
def test_a_batch_does_not_multiply_the_properties_of_its_request(lane: bool) -> None:
    body = struct.pack(">iiiiih", 0, 0, 0, 0, 0, 0) * 8_000
    data = send("T", body, 1, batch=True, text=f"a\x01{'b' * 30_000}")
    assert len(data) < CHUNK_BYTES

    async def send_batch(broker: ScriptedBroker) -> float:
        connected = broker.connect()
        connected.peer.data_received(send("T", b"x", 0))  # the lane knows the topic
        await broker.settle()
        connected.wire.sent.clear()
        with longest_hold() as holds:
            await answered_later(connected, holds, data)
            while not connected.wire.sent:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0)
        ((serialization, head, _),) = frames_of(bytes(connected.wire.sent))
        answer = decode_header(serialization, head)
        assert (answer.code, "33554432" in str(answer.remark)) == (13, True)
        connected.peer.connection_lost(None)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: send_batch(broker))

    run_broker(lane, work)
