# SPDX-License-Identifier: Apache-2.0
"""A pull that meets a damaged queue entry waits until the entry has been repaired or given up."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.pull import REPAIR_WAIT_MS
from cometmq.broker.timers import expire_pulls, sweep_pulls
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.pull import PullMessage
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.upkeep.entry_repair import STALL_MS
from cometmq.testing.broker.stored import ask, clock_of, last_answer, stored_broker

from .pulls import SUBSCRIPTION, SUSPEND, bodies, pull_call, store

DEADLINE_S: Final = 60
SQL: Final = {"expression_type": "SQL92", "subscription": "TAGS IN ('a', 'b', 'c', 'd')"}
WAYS: Final[list[dict[str, Any]]] = [
    {}, {"sys_flag": SUBSCRIPTION | SUSPEND}, {"subscription": "b || c || d"}, SQL
]  # fmt: skip


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    """A broker whose queue has the messages a, b, c and d, all in its file."""
    async with stored_broker(tmp_path, enablePropertyFilter="true") as broker:
        broker.tables.topics.create("T", queue_nums=4)
        store(broker, "a", "b", "c", "d")
        queue = broker.store.reader.queue("T", 1)
        assert queue is not None
        async with asyncio.timeout(DEADLINE_S):
            while queue.tail_bytes:
                await jobs(broker, 60_000)
        yield broker


async def jobs(broker: Broker, elapsed_ms: int = 0) -> None:
    """Run the jobs that are due."""
    clock_of(broker).advance(elapsed_ms)
    broker.driver.tick()
    async with asyncio.timeout(DEADLINE_S):
        await broker.driver.drain()


def damage(broker: Broker, *offsets: int) -> None:
    queue = broker.store.reader.queue("T", 1)
    assert queue is not None
    for offset in offsets:
        file, position = queue.files.place(offset)
        file.write(position, [bytes(ENTRY.size)])


def lose(broker: Broker, offset: int) -> None:
    """Damage the record of a message, too, before any checksum covers it."""
    queue, log = broker.store.reader.queue("T", 1), broker.store.commit_log
    assert queue is not None
    place, _, _ = queue.files.entry(offset)
    log.verified.end = 0
    log.forget_view()
    file, position = log.view().locate(place)
    file.write(position + 20, [b"\xff" * 8])
    damage(broker, offset)


async def answered(broker: Broker, call: Call[PullMessage]) -> Any:
    """Return the answer to a pull, which may read from the disk."""
    reply = ask(broker, call)
    async with asyncio.timeout(DEADLINE_S):
        while reply is None and broker.driver.reads.futures:
            await asyncio.wait(broker.driver.reads.futures)
            await asyncio.sleep(0)
            reply = last_answer(call)
    return reply or last_answer(call)


@pytest.mark.parametrize("way", WAYS)
async def test_a_pull_gets_what_is_before_the_entry_and_waits_there(
    broker: Broker, way: dict[str, Any]
) -> None:
    damage(broker, 2)
    first = await answered(broker, pull_call(**way))
    assert (first.code, first.header.next_begin_offset) == (ResponseCode.SUCCESS, 2)
    assert bodies(first)[-1] == b"b"

    call = pull_call(queue_offset=2, **way)
    assert await answered(broker, call) is None
    assert broker.pending.hold.count == 1
    store(broker, "b")
    clock_of(broker).advance(REPAIR_WAIT_MS - 1)
    expire_pulls(broker)
    sweep_pulls(broker)
    assert last_answer(call) is None, "neither an arrival nor the sweep wakes it"

    await jobs(broker)
    answer = await answered(broker, call) if last_answer(call) is None else last_answer(call)
    assert bodies(answer) == [b"c", b"d", b"b"]
    assert answer.header.next_begin_offset == 5


@pytest.mark.parametrize("way", WAYS)
async def test_a_pull_passes_a_lost_message_once_that_is_known(
    broker: Broker, way: dict[str, Any]
) -> None:
    lose(broker, 2)
    call = pull_call(queue_offset=2, **way)
    assert await answered(broker, call) is None
    await jobs(broker)
    answer = last_answer(call)
    assert (bodies(answer), answer.header.next_begin_offset) == ([b"d"], 4)
    assert broker.store.stats().left_out_count == 1


async def test_a_pull_that_waits_too_long_gets_its_own_offset_again(broker: Broker) -> None:
    damage(broker, 2)
    call = pull_call(queue_offset=2)
    assert await answered(broker, call) is None
    clock_of(broker).advance(REPAIR_WAIT_MS)
    expire_pulls(broker)
    answer = last_answer(call)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.header.next_begin_offset == 2


async def test_a_hanging_repair_blocks_no_queue_for_ever(broker: Broker) -> None:
    damage(broker, 2)
    call = pull_call(queue_offset=2)
    assert await answered(broker, call) is None
    assert broker.store.repair.job() is not None  # nobody runs it
    await jobs(broker, STALL_MS)
    broker.driver.turn.wake()
    answer = last_answer(call)
    assert (bodies(answer), answer.header.next_begin_offset) == ([b"d"], 4)


async def test_a_stopping_broker_answers_at_once(broker: Broker) -> None:
    damage(broker, 2)
    call = pull_call(queue_offset=2)
    assert await answered(broker, call) is None
    broker.process.is_stopping = True
    broker.pending.hold.wake_all()
    broker.driver.turn.wake()
    for answer in (last_answer(call), await answered(broker, pull_call(queue_offset=2))):
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.header.next_begin_offset == 2
