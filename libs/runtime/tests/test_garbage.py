# SPDX-License-Identifier: Apache-2.0
"""Garbage collections skip what survives, until a sweep."""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cometmq.runtime.process.garbage import (
    FEW,
    LOOK_S,
    QUIET_S,
    TRIES_MAX,
    Sweeps,
    freezing,
    no_collections,
    sweep,
)
from cometmq.testing.broker.logs import RecordingLog

KEPT_COUNT = 300_000
VISITED_MAX = 15_000
"""Visiting this number of objects takes up to 10 ms."""


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    """Leave all tests frozen, as after their collection."""
    yield
    gc.freeze()


def test_collections_pause_inside_the_block_even_if_the_import_fails() -> None:
    was_enabled = []

    def import_missing() -> None:
        with no_collections():
            was_enabled.append(gc.isenabled())
            __import__("cometmq.nothing_of_this_name")

    with pytest.raises(ModuleNotFoundError):
        import_missing()
    assert was_enabled == [False]
    assert gc.isenabled()


def test_no_collection_visits_what_survived_an_earlier_one() -> None:
    visited: list[int] = []

    def count(phase: str, info: dict[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            visited.append(len(gc.get_objects()))

    table: list[list[int]] = []
    gc.callbacks.append(count)
    try:
        with freezing():
            sweep()
            visited.clear()
            table.extend([number] for number in range(KEPT_COUNT))
    finally:
        gc.callbacks.remove(count)
    assert len(table) == KEPT_COUNT
    assert max(visited, default=0) < VISITED_MAX
    assert gc.get_freeze_count() > KEPT_COUNT - VISITED_MAX or not visited


def test_a_sweep_frees_cycles_that_ended_after_they_were_frozen() -> None:
    with freezing():
        node: Node | None = Node()
        gone = weakref.ref(node)
        gc.collect()
        node = None
        gc.collect()
        assert gone() is not None
        assert sweep() > 0
    assert gone() is None


class Program:
    """Timers that the test fires, and figures that it sets."""

    def __init__(self) -> None:
        self.log = RecordingLog()
        self.waits: list[tuple[float, Callable[[], None]]] = []
        self.count = 1_000
        self.used_s = 0.0
        self.sweeps = Sweeps(
            self.later, log=self.log, frozen_count=lambda: self.count, used_s=lambda: self.used_s
        )
        self.sweeps.start()

    def later(self, wait_s: float, call: Callable[[], None]) -> "Program":
        self.waits.append((wait_s, call))
        return self

    def cancel(self) -> None:
        self.waits.clear()

    def fire(self, *, used_s: float = 0.0) -> float:
        """Let the next timer fire after the process has used a processor; return its delay."""
        ((wait_s, call),) = self.waits
        self.waits.clear()
        self.used_s += used_s
        call()
        return wait_s

    @property
    def sweep_count(self) -> int:
        return len(self.log.named("garbage.swept"))


def test_a_process_that_does_not_grow_is_never_swept() -> None:
    program = Program()
    assert program.fire() == LOOK_S
    program.count += FEW
    assert [program.fire() for _ in range(100)] == [LOOK_S] * 100
    assert program.sweep_count == 0


def test_a_process_that_has_grown_is_swept_once_it_is_quiet() -> None:
    program = Program()
    program.fire()
    program.count = int(3.0 * FEW)
    assert program.fire() == LOOK_S
    for _ in range(3):
        assert program.fire(used_s=QUIET_S / 2) == QUIET_S
    assert program.sweep_count == 0
    assert program.fire() == QUIET_S
    assert program.sweep_count == 1
    assert program.fire() == LOOK_S
    assert [wait_s for wait_s, _ in program.waits] == [LOOK_S]


def test_a_process_that_is_never_quiet_is_swept_at_last() -> None:
    program = Program()
    program.fire()
    program.count = int(3.0 * FEW)
    program.fire()
    for _ in range(TRIES_MAX):
        assert program.sweep_count == 0
        program.fire(used_s=QUIET_S)
    assert program.sweep_count == 1


def test_nothing_is_looked_at_after_the_stop() -> None:
    program = Program()
    program.sweeps.stop()
    assert program.waits == []
