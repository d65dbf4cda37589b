# SPDX-License-Identifier: Apache-2.0
"""Measures how long single callbacks hold the event loop."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import thread_time
from typing import Any

HOLD_S_MAX = 0.02
"""No request may hold the loop for longer."""


class Holds:
    """The longest CPU time of a callback, because waiting for a CPU is not the callback's fault."""

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
    run = handle_type._run  # noqa: SLF001  # asyncio has no hook around callbacks

    def measured(handle: asyncio.Handle) -> None:
        holds.measure(lambda: run(handle))

    gc.collect()
    gc.disable()
    handle_type._run = measured  # noqa: SLF001
    try:
        yield holds
    finally:
        handle_type._run = run  # noqa: SLF001
        gc.enable()
