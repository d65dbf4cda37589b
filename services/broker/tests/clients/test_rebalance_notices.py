# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable

import pytest

from cometmq.broker.clients.consumers import ConsumerGroup
from cometmq.broker.clients.producers import Client
from cometmq.broker.clients.rebalance_notices import (
    NOTICE_WEIGHT,
    QUIET_MS,
    STEP_COUNT,
    STEP_MS,
    Notices,
)
from cometmq.remoting.command import Peer
from cometmq.testing.broker import FakePeer


class Timers:
    """Timers that the test fires by hand."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.waiting.append((delay_s, call))

    def pass_step(self) -> None:
        self._fire(STEP_MS)

    def pass_time(self) -> None:
        self._fire(QUIET_MS)

    def _fire(self, delay_ms: int) -> None:
        due = [call for delay_s, call in self.waiting if delay_s <= delay_ms / 1000]
        self.waiting = [one for one in self.waiting if one[0] > delay_ms / 1000]
        for call in due:
            call()


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def notices(timers: Timers, told: list[str]) -> Notices:
    return Notices(timers.later, lambda _, group: told.append(group))


def group(name: str = "G", count: int = 1) -> ConsumerGroup:
    found = ConsumerGroup(name, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")
    for number in range(count):
        peer = FakePeer()
        found.clients[peer] = Client(peer, f"c{number}", 0, 401, 0)
    return found


def test_the_first_change_is_sent_at_once(notices: Notices, told: list[str]) -> None:
    notices(group("G"))
    notices(group("H"))

    assert told == ["G", "H"]


def test_a_storm_ends_with_one_more_notice(
    notices: Notices, timers: Timers, told: list[str]
) -> None:
    for _ in range(1000):
        notices(group())
    assert told == ["G"]

    timers.pass_time()
    assert told == ["G", "G"]
    timers.pass_time()

    assert told == ["G", "G"]
    timers.pass_time()
    assert timers.waiting == []


def test_the_last_notice_goes_to_the_current_members(timers: Timers) -> None:
    told: list[Peer] = []
    notices = Notices(timers.later, lambda peer, _: told.append(peer))
    first, second = group(), group()
    notices(first)
    notices(second)

    timers.pass_time()

    assert told == [*first.clients, *second.clients]


def test_after_a_quiet_time_a_change_is_sent_at_once_again(
    notices: Notices, timers: Timers, told: list[str]
) -> None:
    notices(group())
    timers.pass_time()

    notices(group())

    assert told == ["G", "G"]


def test_a_large_group_is_notified_in_steps(
    notices: Notices, timers: Timers, told: list[str]
) -> None:
    notices(group(count=STEP_COUNT * 5 // 2))
    notices(group("H"))
    counts = [len(told)]
    while timers.waiting:
        timers.pass_step()
        counts.append(len(told))
        if counts[-1] == counts[-2]:
            break

    assert counts[:3] == [STEP_COUNT, 2 * STEP_COUNT, STEP_COUNT * 5 // 2 + 1]
    assert told[-1] == "H"


def test_many_small_groups_share_a_step(notices: Notices, timers: Timers, told: list[str]) -> None:
    for number in range(3 * STEP_COUNT):
        notices(group(f"G{number}"))
    assert len(told) == STEP_COUNT

    timers.pass_step()
    timers.pass_step()
    timers.pass_step()

    assert sorted(told) == sorted(f"G{number}" for number in range(3 * STEP_COUNT))


def test_members_that_come_and_go_between_steps(timers: Timers) -> None:
    told: list[Peer] = []
    notices = Notices(timers.later, lambda peer, _: told.append(peer))
    large = group(count=STEP_COUNT + 1)
    left = list(large.clients)[-1]
    notices(large)
    del large.clients[left]
    (joined,) = group().clients
    large.clients[joined] = Client(joined, "new", 0, 401, 0)
    notices(large)

    timers.pass_step()
    assert joined not in told
    for _ in range(3):
        timers.pass_time()

    assert left not in told
    assert told.count(joined) == 1


def test_members_that_have_left_are_passed_over_in_steps(
    notices: Notices, timers: Timers, told: list[str]
) -> None:
    notices(group(count=STEP_COUNT))
    small = [group(f"G{number}") for number in range(2 * NOTICE_WEIGHT * STEP_COUNT)]
    for one in small:
        notices(one)
        one.clients.clear()
    del told[:]
    notices(group("last"))

    timers.pass_step()
    quiet = sum(delay_s == QUIET_MS / 1000 for delay_s, _ in timers.waiting)
    assert NOTICE_WEIGHT * STEP_COUNT <= quiet <= NOTICE_WEIGHT * STEP_COUNT + 1
    timers.pass_step()
    timers.pass_step()
    assert told == ["last"]
