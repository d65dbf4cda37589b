# SPDX-License-Identifier: Apache-2.0
"""The wall clock can jump; the monotonic clock cannot."""

import pytest

from cometmq.runtime.clock import SystemClock
from cometmq.testing.runtime.clock import FakeClock


def test_the_system_clock_counts_milliseconds_and_never_runs_back():
    clock = SystemClock()
    first = clock.monotonic_ms()
    assert clock.now_ms() > 1_700_000_000_000
    assert clock.monotonic_ms() >= first


def test_advance_moves_both_clocks_and_jump_only_the_wall_clock():
    clock = FakeClock(now_ms=1000)
    clock.advance(5)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1005, 5)
    clock.jump(10)
    assert (clock.now_ms(), clock.monotonic_ms()) == (10, 5)


def test_time_cannot_advance_backwards():
    with pytest.raises(AssertionError):
        FakeClock().advance(-1)
