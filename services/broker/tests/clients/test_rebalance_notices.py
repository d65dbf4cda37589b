# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable

import pytest

from cometmq.broker.clients.consumers import ConsumerGroup
from cometmq.broker.clients.rebalance_notices import QUIET_MS, Notices


class Timers:
    """Timers that the test fires by hand."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        assert delay_s == QUIET_MS / 1000
        self.waiting.append(call)

    def pass_time(self) -> None:
        due, self.waiting = self.waiting, []
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
    return Notices(timers.later, lambda group: told.append(group.name))


def group(name: str = "G") -> ConsumerGroup:
    return ConsumerGroup(name, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET")


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
    assert timers.waiting == []


def test_the_last_notice_goes_to_the_current_members(timers: Timers) -> None:
    told: list[ConsumerGroup] = []
    notices = Notices(timers.later, told.append)
    first, second = group(), group()
    notices(first)
    notices(second)

    timers.pass_time()

    assert told[0] is first
    assert told[1] is second


def test_after_a_quiet_time_a_change_is_sent_at_once_again(
    notices: Notices, timers: Timers, told: list[str]
) -> None:
    notices(group())
    timers.pass_time()

    notices(group())

    assert told == ["G", "G"]
