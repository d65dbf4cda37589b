# SPDX-License-Identifier: Apache-2.0
"""No copy of a message with thousands of keys holds the loop for more than 20 ms."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from cometmq.broker.delays.level import Level
from cometmq.broker.delays.recalled import Delayed
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.header import decode_header
from cometmq.remoting.names import HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.store.queues.consume_queue import entries_from
from cometmq.testing.broker.holds import longest_hold
from cometmq.testing.broker.scripted import ScriptedBroker, frames_of
from cometmq.testing.broker.scripts import frame

from .holding import check, lanes, run_broker

KEYS = " ".join(f"{key % 10}" for key in range(14_000))
COUNT = 40


def send(text: str, opaque: int) -> bytes:
    ext = {
        "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": text, "j": "0", "k": "false", "l": "0", "m": "false",
    }  # fmt: skip
    return frame(RequestCode.SEND_MESSAGE_V2, ext, b"x", opaque=opaque)


async def answers(broker: ScriptedBroker, requests: list[bytes]) -> list[int]:
    """Return the codes of the answers to requests, which arrive in one turn of the loop."""
    connected = broker.connect()
    connected.peer.data_received(b"".join(requests))
    async with asyncio.timeout(60):
        while len(frames_of(bytes(connected.wire.sent))) < len(requests):  # noqa: ASYNC110
            await asyncio.sleep(0)
    codes = [decode_header(*one[:2]).code for one in frames_of(bytes(connected.wire.sent))]
    connected.peer.connection_lost(None)
    return codes


async def found(level: Level) -> None:
    """Wait until the due messages of a level are found, which may take several turns."""
    async with asyncio.timeout(60):
        while level.is_reading:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def stored(broker: ScriptedBroker, text: str) -> None:
    requests = [send(f"{text}KEYS\x01{KEYS}", number) for number in range(COUNT)]
    assert await answers(broker, requests) == [0] * COUNT
    await broker.settle()


def last_entries(broker: ScriptedBroker, topic: str, queue_id: int) -> list[tuple[int, int]]:
    """Return the queue offsets and log offsets of the last messages."""
    queue = broker.broker.store.reader.queue(topic, queue_id)
    assert queue is not None
    first = queue.max_offset - COUNT
    rows = enumerate(entries_from(queue, first, COUNT), first)
    return [(offset, physical_offset) for offset, (physical_offset, _, _) in rows]


def commit(offsets: tuple[int, int], opaque: int) -> bytes:
    queue_offset, physical_offset = offsets
    ext = {
        "producerGroup": "p", "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(physical_offset), "commitOrRollback": "8",
        "fromTransactionCheck": "false", "msgId": "m",
    }  # fmt: skip
    return frame(RequestCode.END_TRANSACTION, ext, opaque=opaque)


def back(offsets: tuple[int, int], opaque: int) -> bytes:
    ext = {
        "offset": str(offsets[1]), "group": "g", "delayLevel": "0", "originMsgId": "m",
        "originTopic": "T", "unitMode": "false", "maxReconsumeTimes": "16",
    }  # fmt: skip
    return frame(RequestCode.CONSUMER_SEND_MSG_BACK, ext, opaque=opaque)


@lanes
@pytest.mark.parametrize("kind", ["commits", "commits that are recalled", "sent back"])
def test_copies_with_thousands_of_keys_hold_the_loop_for_a_bounded_time(
    lane: bool, kind: str
) -> None:
    topic = "T" if kind == "sent back" else HALF_TOPIC
    text = "" if kind == "sent back" else "TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    request: Callable[[tuple[int, int], int], bytes] = back if kind == "sent back" else commit

    async def copy_all(broker: ScriptedBroker) -> float:
        await stored(broker, text)
        if kind == "commits that are recalled":
            broker.broker.deferred.transactions.recent.clear()
        rows = last_entries(broker, topic, 0)
        requests = [request(row, number) for number, row in enumerate(rows)]
        before = broker.broker.store.commit_log.end
        with longest_hold() as holds:
            assert await answers(broker, requests) == [0] * COUNT
            await broker.settle()
        assert broker.broker.store.commit_log.end > before + COUNT * len(KEYS)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        broker.broker.tables.groups.put(SubscriptionGroupConfig(group_name="g"))
        await check(lambda: copy_all(broker))
        assert broker.broker.pending.copies.size == 0

    run_broker(lane, work)


@lanes
def test_due_messages_with_thousands_of_keys_hold_the_loop_for_a_bounded_time(lane: bool) -> None:
    async def deliver_all(broker: ScriptedBroker) -> float:
        parts = broker.broker
        await stored(broker, "DELAY\x011\x02")
        before = parts.store.reader.max_offset("T", 0)
        broker.clock.advance(2_000)
        with longest_hold() as holds:
            holds.measure(partial(parts.deferred.delays.step, broker.clock.now_ms()))
            async with asyncio.timeout(60):
                while parts.store.reader.max_offset("T", 0) < before + COUNT:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            await broker.settle()
        order = [physical for _, physical in last_entries(broker, "T", 0)]
        assert order == sorted(order)
        return holds.longest_s

    async def work(broker: ScriptedBroker) -> None:
        await check(lambda: deliver_all(broker))
        level = broker.broker.deferred.delays.positions.level(1)
        assert level.offset == broker.broker.store.reader.max_offset(SCHEDULE_TOPIC, 0)

    run_broker(lane, work)


def test_a_recalled_message_behind_a_large_one_is_skipped_once() -> None:
    async def work(broker: ScriptedBroker) -> None:
        delays = broker.broker.deferred.delays
        texts = [f"DELAY\x011\x02UNIQ_KEY\x01{key}\x02KEYS\x01{KEYS[:size]}"
                 for key, size in (("first", 14_000), ("id", 1))]  # fmt: skip
        assert await answers(broker, [send(text, number) for number, text in enumerate(texts)])
        level = delays.positions.level(1)
        delays.recall([Delayed(1, 1, broker.clock.now_ms() + 1_000)], "id", broker.clock.now_ms())
        broker.clock.advance(2_000)
        delays.step(broker.clock.now_ms())
        level.is_behind = True  # as in a backlog
        await broker.broker.pending.large_puts.drain()
        await broker.settle()
        assert (level.pending_count, level.offset, list(level.ahead)) == (0, 2, [])
        assert delays.counts.recalled == 1
        assert broker.broker.store.reader.max_offset("T", 0) == 1

    run_broker(False, work)


def test_due_messages_behind_a_large_one_keep_their_order_or_are_given_up() -> None:
    async def work(broker: ScriptedBroker) -> None:
        delays = broker.broker.deferred.delays
        texts = [f"DELAY\x011\x02KEYS\x01{keys}" for keys in ("a", KEYS, "b", KEYS, "c")]
        requests = [send(text, number) for number, text in enumerate(texts)]
        assert await answers(broker, requests) == [0] * len(texts)
        broker.clock.advance(2_000)
        level = delays.positions.level(1)
        delays.step(broker.clock.now_ms())
        await found(level)
        assert (level.pending_count, level.offset) == (len(texts) + 1, 0)
        level.run += 1  # as if the position was set
        await broker.broker.pending.large_puts.drain()
        await broker.settle()
        assert level.pending_count == 0
        assert broker.broker.store.reader.max_offset("T", 0) == 1  # what was stored before
        delays.step(broker.clock.now_ms())
        await found(level)
        await broker.broker.pending.large_puts.drain()
        await broker.settle()
        queue = broker.broker.store.reader.queue("T", 0)
        assert queue is not None
        sizes = [size for _, size, _ in entries_from(queue, 1, len(texts))]
        assert [size > len(KEYS) for size in sizes] == [False, True, False, True, False]

    run_broker(False, work)
