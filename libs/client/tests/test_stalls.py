# SPDX-License-Identifier: Apache-2.0
"""A listener that hangs or blocks the event loop is reported once, and again when it recovers."""

import asyncio
import threading
import time
from typing import Any

import msgspec
import pytest

from cometmq.client import MessageExt, PushOptions
from cometmq.client.consume.delivery import stalls
from cometmq.client.consume.delivery.stalls import BLOCKED_MS, REMIND_MS, Stalls
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import FIRST, consumer_of, send, texts

Facts = dict[str, Any]
QUICK = msgspec.structs.replace(FIRST, stuck_listener_ms=50)


class Kept:
    def __init__(self) -> None:
        self.events: list[tuple[str, Facts]] = []

    def debug(self, event: str, /, **facts: object) -> None:
        pass

    def info(self, event: str, /, **facts: object) -> None:
        if event.startswith("listener."):
            self.events.append((event, facts))

    warning = error = info

    @property
    def names(self) -> list[str]:
        return [event for event, _ in self.events]


class Listener:
    group = "cg"
    name = "handle"
    is_on_loop = True

    def __init__(self) -> None:
        self.begins_ms: list[int] = []
        self.line = "app.py:1"

    def line_on(self, _: int) -> str:
        return self.line


class Clock:
    ms = 0

    def __call__(self) -> int:
        return self.ms


def watch() -> tuple[Stalls, Any, Clock, Kept]:
    listener: Any = Listener()
    clock, log = Clock(), Kept()
    return Stalls(listener, stuck_ms=30_000, log=log, clock_ms=clock), listener, clock, log


# -- the rules --------------------------------------------------------------------------------


def test_a_stuck_call_is_a_warning_reminders_and_an_end() -> None:
    watched, listener, clock, log = watch()
    listener.begins_ms = [0, 20_000]
    for second in range(29, 100):
        clock.ms = second * 1000
        watched.check()
    assert log.names == ["listener.stuck"] * 2
    first, second_facts = (facts for _, facts in log.events)
    assert (first["group"], first["listener"]) == ("cg", "handle")
    assert (first["seconds"], first["running_count"]) == (30.0, 2)
    assert "raise the option stuck_listener_ms" in first["advice"]
    assert second_facts["seconds"] == 30 + REMIND_MS / 1000
    listener.begins_ms = [99_000]
    watched.check()
    watched.check()
    assert log.events[2:] == [
        (
            "listener.works_again",
            {"group": "cg", "listener": "handle", "lasted_s": 99.0, "after": "listener.stuck"},
        )
    ]


def test_calls_that_end_are_not_stuck() -> None:
    watched, listener, clock, log = watch()
    for second in range(100):
        clock.ms = second * 1000
        listener.begins_ms = [clock.ms - 29_000]
        watched.check()
    assert log.events == []


def test_a_loop_that_the_listener_blocks_is_a_warning_and_an_end() -> None:
    watched, listener, clock, log = watch()
    clock.ms = BLOCKED_MS - 1
    watched.check_loop(1)
    clock.ms = BLOCKED_MS
    listener.line = ""
    watched.check_loop(1)
    assert log.events == []
    listener.line = "app.py:3"
    watched.check_loop(1)
    watched.check_loop(1)
    assert log.names == ["listener.blocks_loop"]
    facts = log.events[0][1]
    assert (facts["line"], facts["seconds"]) == ("app.py:3", BLOCKED_MS / 1000)
    watched.check()
    assert log.names == ["listener.blocks_loop", "listener.works_again"]


# -- real consumers ---------------------------------------------------------------------------


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "CHECK_MS", 20)
    monkeypatch.setattr(stalls, "BLOCKED_MS", 50)


async def test_a_listener_that_hangs_in_all_slots_is_named(cluster: MemoryCluster) -> None:
    may_end, log = asyncio.Event(), Kept()

    async def hang(_: list[MessageExt]) -> None:
        await may_end.wait()

    options = msgspec.structs.replace(QUICK, concurrency=2)
    await send(cluster, *texts(5))
    async with consumer_of(cluster, hang, options, log=log) as consumer:
        await eventually(lambda: log.events)
        assert log.names == ["listener.stuck"]
        assert log.events[0][1]["listener"].endswith("hang")
        may_end.set()
        await eventually(lambda: len(log.events) == 2)
        assert log.names[1] == "listener.works_again"
        await eventually(lambda: consumer.stats().consumed_count == 5)


async def test_a_plain_listener_of_an_orderly_consumer_is_watched_too(
    cluster: MemoryCluster,
) -> None:
    may_end, log = threading.Event(), Kept()

    def hang(_: list[MessageExt]) -> None:
        may_end.wait(60)

    options = PushOptions(orderly=True, consume_from=FIRST.consume_from, stuck_listener_ms=50)
    await send(cluster, *texts(1))
    async with consumer_of(cluster, hang, options, log=log):
        await eventually(lambda: log.events)
        assert log.names == ["listener.stuck"]
        may_end.set()
        await eventually(lambda: log.names[1:] == ["listener.works_again"])


async def test_an_async_listener_that_blocks_the_loop_is_reported_meanwhile(
    cluster: MemoryCluster, quick_checks: None
) -> None:
    log, reported = Kept(), threading.Event()

    async def block(_: list[MessageExt]) -> None:
        deadline = time.monotonic() + 60
        while "listener.blocks_loop" not in log.names and time.monotonic() < deadline:
            time.sleep(0.01)  # noqa: ASYNC251  # the mistake that is reported
        if "listener.blocks_loop" in log.names:
            reported.set()

    await send(cluster, *texts(1))
    async with consumer_of(cluster, block, FIRST, log=log):
        await eventually(lambda: log.names == ["listener.blocks_loop", "listener.works_again"])
    assert reported.is_set()
    facts = log.events[0][1]
    assert facts["line"].startswith(__file__)
    assert "an async listener must not block" in facts["advice"]
    assert facts["listener"].endswith("block")


async def test_other_code_that_blocks_the_loop_is_no_fault_of_the_listener(
    cluster: MemoryCluster, quick_checks: None
) -> None:
    log, may_end = Kept(), asyncio.Event()

    async def wait(_: list[MessageExt]) -> None:
        await may_end.wait()

    await send(cluster, *texts(1))
    async with consumer_of(cluster, wait, FIRST, log=log) as consumer:
        await eventually(lambda: consumer.queues)
        time.sleep(0.2)  # noqa: ASYNC251
        may_end.set()
    assert log.events == []
