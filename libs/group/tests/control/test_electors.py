# SPDX-License-Identifier: Apache-2.0
"""A member knows how many electors are connected to it."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from cometmq.control.client import MemberClient
from cometmq.control.controlled import ELECTORS_MAX, FIRST_MS, SILENCE_MS, Electors, elector_mark
from cometmq.control.server import ControlServer
from cometmq.ha.orders import Fence
from cometmq.testing.control.scripted import TARGET


class Clock:
    def __init__(self):
        self.now_ms = 1_000

    def __call__(self):
        return self.now_ms


@pytest.fixture
def clock():
    return Clock()


def test_an_elector_counts_until_it_has_been_silent_for_a_while(clock):
    electors = Electors(clock)
    assert electors.count is None
    electors.heard(elector_mark("a", 500))
    electors.heard(elector_mark("b", 4_000))
    assert electors.count == 2
    clock.now_ms += SILENCE_MS
    assert electors.count == 1
    clock.now_ms += 3 * 4_000
    assert electors.count == 0


def test_a_member_that_has_just_started_does_not_know(clock):
    electors = Electors(clock)
    clock.now_ms += FIRST_MS - 1
    assert electors.count is None
    clock.now_ms += 1
    assert electors.count == 0


def test_malformed_and_many_marks_are_bounded(clock):
    electors = Electors(clock)
    for mark in ("", "a", "a;", "a;-1", "a;9999999", "a;\u0663"):
        electors.heard(mark)
    assert electors.count is None
    for number in range(3 * ELECTORS_MAX):
        electors.heard(elector_mark(str(number), 999_999))
    assert electors.count == ELECTORS_MAX
    clock.now_ms += 3 * 60_000
    assert electors.count == 0


async def test_calls_of_electors_count_and_those_of_administrators_do_not(member, clock):
    server = ControlServer(member, now_ms=clock)
    await server.start("127.0.0.1", 0)
    address = f"127.0.0.1:{server.port}"
    person = MemberClient(address, TARGET)
    elector = MemberClient(address, TARGET, elector=elector_mark("e", 500))
    try:
        clock.now_ms += FIRST_MS
        assert (await person.status(timeout_ms=60_000)).electors == 0
        assert (await elector.status(timeout_ms=60_000)).electors == 1
        watch = elector.watch(silence_ms=60_000)
        assert (await anext(watch)).electors == 1
        assert (await person.order(Fence(9))).electors == 1
        clock.now_ms += SILENCE_MS  # it hangs: its watch is open, but it asks for nothing
        async with asyncio.timeout(60):
            while (await anext(watch)).electors:  # the first message shows the fence
                pass
        assert isinstance(watch, AsyncGenerator)
        await watch.aclose()
        assert (await person.status(timeout_ms=60_000)).electors == 0
    finally:
        await person.close()
        await elector.close()
        await server.stop()
