# SPDX-License-Identifier: Apache-2.0
"""Measures how long single callbacks hold the event loop."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import thread_time
from typing import Any

import msgspec

HOLD_S_MAX = 0.02
"""Maximum time for which a request may hold the loop, after `adjusted`."""
SAMPLE_S = 0.006
"""CPU time of `_sample_s` on the reference machine, on which the bounds of requests were chosen."""


def adjusted(hold_s: float) -> float:
    """Convert a time measured here to the reference machine; return it unchanged if
    it is already below HOLD_S_MAX.

    On shared machines, the CPU time of the same work changes by a factor of two within seconds, so
    call this right after each measurement.
    """
    if hold_s < HOLD_S_MAX:
        return hold_s
    return hold_s / max(1.0, median(_sample_s() for _ in range(3)) / SAMPLE_S)


def _sample_s() -> float:
    """Measure the CPU time of work like that of requests: dictionaries, texts, JSON, new memory.

    New memory is part of it because the first use of a page takes 0.3 us on one machine, 5 us on
    another.
    """
    began_s = thread_time()
    msgspec.json.encode({f"group-{number}": number for number in range(20_000)})
    values = [bytes(400) for _ in range(20_000)]
    spent_s = thread_time() - began_s
    del values
    return spent_s


class Holds:
    """The longest CPU time of a callback. Elapsed time would include waits for a CPU."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    def measure(self, work: Callable[[], None]) -> None:
        began_s = thread_time()
        try:
            work()
        finally:
            self.longest_s = max(self.longest_s, thread_time() - began_s)


@contextmanager
def longest_hold() -> Iterator[Holds]:
    """Measure every callback of the loop, without the garbage collector."""
    holds = Holds()
    handle_type: Any = asyncio.Handle
    run = handle_type._run  # asyncio has no hook around callbacks

    def measured(handle: asyncio.Handle) -> None:
        holds.measure(lambda: run(handle))

    gc.collect()
    gc.disable()
    handle_type._run = measured
    try:
        yield holds
    finally:
        handle_type._run = run
        gc.enable()
