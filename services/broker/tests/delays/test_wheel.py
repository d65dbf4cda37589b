# SPDX-License-Identifier: Apache-2.0
"""Pending timer messages of RocketMQ 5 are delivered once, in time, by our delay levels."""

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.delays.level import DelayFile, delay_file
from cometmq.broker.delays.wheel import TimerCheck, WheelFiles
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import index_keys, render_properties
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import SCHEDULE_TOPIC, WHEEL_TOPIC
from cometmq.store.queues.consume_queue import entry_at
from cometmq.store.reads import finish
from cometmq.testing.broker.stored import clock_of, stored_broker

LEVELS = {"messageDelayLevel": "1s 5s 10s"}
SECOND = 1_000


def now(broker: Broker) -> int:
    return broker.clock.now_ms()


def as_rocketmq_5(broker: Broker, key: str, due_ms: int, **more: Any) -> NewMessage:
    """Return a timer message as 5.5.0 stores it: its time is a whole second, rounded down."""
    out_ms = (due_ms - 1) // SECOND * SECOND
    properties = {
        "UNIQ_KEY": key,
        "TIMER_DELIVER_MS": due_ms,
        "TIMER_OUT_MS": out_ms,
        "REAL_TOPIC": "T",
        "REAL_QID": 0,
        **more,
    }
    text = render_properties({name: str(value) for name, value in properties.items()})
    host = broker.process.store_host
    message = NewMessage(WHEEL_TOPIC, 0, 0, 0, now(broker), host, host, key.encode(), text)
    message.keys = index_keys(key, None)
    return message


async def put(broker: Broker, *messages: NewMessage) -> None:
    for message in messages:
        message.wait = False
        broker.driver.put(message, lambda result: None)
    for _ in range(6):
        await asyncio.sleep(0)


def records(broker: Broker, topic: str, queue_id: int = 0) -> list[MessageRecord]:
    reader = broker.store.reader
    queue = reader.queue(topic, queue_id)
    found: list[MessageRecord] = []
    for offset in range(0 if queue is None else queue.max_offset):
        entry = entry_at(queue, offset)  # type: ignore[arg-type]
        record = finish(reader.read_record(entry.physical_offset))  # type: ignore[union-attr]
        assert record is not None
        found.append(record)
    return found


async def run_for(broker: Broker, duration_ms: int) -> dict[str, int]:
    """Run the levels; return when each message was delivered, which must be once."""
    broker.tables.topics.create("T", queue_nums=1)
    for _ in range(duration_ms // 100):
        clock_of(broker).advance(100)
        broker.driver.tick()
        broker.deferred.delays.step(now(broker))
        await asyncio.sleep(0.002)
    found = records(broker, "T")
    times = {str(it.unique_key): it.store_timestamp for it in found}
    assert len(times) == len(found), "delivered twice"
    return times


def write_check(folder: Path, read_ms: int, queue_offset: int) -> None:
    path = folder / "config" / "timercheck"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(
        struct.pack(">7q", read_ms, 5, queue_offset, queue_offset, 0, 9, 1).ljust(4096)
    )


async def fill(folder: Path, make: Callable[[Broker], list[NewMessage]], **check: int) -> int:
    """Write a store with these timer messages and the check; return the time of its start."""
    async with stored_broker(folder, **LEVELS) as broker:
        started = now(broker)
        await put(broker, *make(broker))
    if check:
        write_check(folder, started + check["read"], check["offset"])
    return started


async def test_pending_messages_are_delivered_once_in_time(tmp_path: Path) -> None:
    times = {"a": 1_500, "b": 3_000, "c": 7_300, "d": 12_345, "far": 90_000}
    started = await fill(
        tmp_path,
        lambda it: [as_rocketmq_5(it, key, now(it) + ms) for key, ms in times.items()],
        read=0,
        offset=len(times),
    )
    async with stored_broker(tmp_path, **LEVELS) as broker:
        found = await run_for(broker, 20_000)
        assert found.keys() == times.keys() - {"far"}
        for key, at_ms in found.items():
            assert 0 <= at_ms - (started + times[key]) <= 1_200, key
        (copy,) = (it for it in records(broker, "T") if it.unique_key == "c")
        assert copy.body == b"c"
        assert copy.properties["TIMER_DELIVER_MS"] == str(started + times["c"])
    async with stored_broker(tmp_path, **LEVELS) as broker:
        clock_of(broker).advance(25_000)
        assert (await run_for(broker, 80_000)).keys() == times.keys()
        assert len(records(broker, WHEEL_TOPIC)) == len(times)


async def test_what_was_delivered_or_recalled_is_not_delivered(tmp_path: Path) -> None:
    def make(it: Broker) -> list[NewMessage]:
        begin = now(it)
        return [
            as_rocketmq_5(it, "passed", begin + 2_000),
            as_rocketmq_5(it, "pending", begin + 9_000),
            as_rocketmq_5(it, "recalled", begin + 9_000),
            as_rocketmq_5(it, "recalled by topic", begin + 9_000),
            as_rocketmq_5(it, "rolled", begin + 9_000),
            as_rocketmq_5(it, "x", begin + 9_000, TIMER_DEL_UNIQKEY="recalled"),
            as_rocketmq_5(it, "y", begin + 9_000, TIMER_DEL_UNIQKEY="T+recalled by topic"),
            as_rocketmq_5(it, "rolled", begin + 9_000, TIMER_ROLL_TIMES=1),
            as_rocketmq_5(it, "unread", begin + 2_000),
        ]

    await fill(tmp_path, make, read=4_000, offset=8)
    async with stored_broker(tmp_path, **LEVELS) as broker:
        clock_of(broker).advance(5_000)
        found = await run_for(broker, 10_000)
        assert found.keys() == {"pending", "rolled", "unread"}
        assert all("TIMER_ROLL_TIMES" not in it.properties for it in records(broker, "T"))


async def test_after_a_crash_copies_in_the_log_tell_what_was_delivered(tmp_path: Path) -> None:
    """The check is older than the delivery, or our position older than the move."""

    def make(it: Broker) -> list[NewMessage]:
        pending = as_rocketmq_5(it, "delivered", now(it) + 2_000)
        copy = as_rocketmq_5(it, "delivered", now(it) + 2_000, TIMER_DEQUEUE_MS=1)
        copy.topic = "T"
        return [pending, as_rocketmq_5(it, "moved", now(it) + 6_000), copy]

    await fill(tmp_path, make, read=0, offset=0)
    async with stored_broker(tmp_path, **LEVELS) as broker:
        clock_of(broker).advance(3_000)
        await run_for(broker, 1_000)
        assert len(records(broker, SCHEDULE_TOPIC)) == 1
    for path in (tmp_path / "config").glob("delayOffset.json*"):
        path.unlink()
    async with stored_broker(tmp_path, **LEVELS) as broker:
        clock_of(broker).advance(4_000)
        broker.deferred.delays.expect_copies(now(broker))
        assert (await run_for(broker, 5_000)).keys() == {"delivered", "moved"}


async def test_the_position_is_no_level_of_rocketmqs_table(tmp_path: Path) -> None:
    await fill(tmp_path, lambda it: [as_rocketmq_5(it, "a", now(it) + 1_500)], read=0, offset=1)
    async with stored_broker(tmp_path, **LEVELS) as broker:
        await run_for(broker, 4_000)
        broker.deferred.delays.save_at_end()
    loaded = delay_file(str(tmp_path / "config" / "delayOffset.json")).load()
    assert loaded == DelayFile({1: 2}, wheel=1)


@pytest.mark.parametrize("check", [b"", b"\0" * 5])
async def test_without_a_whole_check_all_counts_as_pending(tmp_path: Path, check: bytes) -> None:
    await fill(tmp_path, lambda it: [as_rocketmq_5(it, "a", now(it) + 1_500)])
    (tmp_path / "config" / "timercheck").write_bytes(check)
    async with stored_broker(tmp_path, **LEVELS) as broker:
        assert (await run_for(broker, 4_000)).keys() == {"a"}


def test_rocketmq_5_is_told_that_nothing_is_pending(tmp_path: Path) -> None:
    write_check(tmp_path, 1, 2)
    for name in ("timerwheel", "timerlog/00000000000000000000"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    files = WheelFiles(str(tmp_path))
    files.note_taken(7, 5_000)
    assert files.read() == TimerCheck(5_000, 0, 7, 7)
    data = (tmp_path / "config" / "timercheck").read_bytes()
    assert (len(data), struct.unpack(">3q", data[32:56])) == (4096, (0, 9, 1))
    assert not (tmp_path / "timerwheel").exists()
    assert list((tmp_path / "timerlog").iterdir()) == []
