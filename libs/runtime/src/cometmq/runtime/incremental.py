# SPDX-License-Identifier: Apache-2.0
"""Long work on the event loop, divided into steps that leave time for other callbacks.

A thread is no alternative for pure Python or one long call of an extension: it would hold the
interpreter lock, and the loop would wait all the same.
"""

import asyncio
from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Work that returns a T and yields after each step, where the loop may do something else."""


def finish(work: Steps[T]) -> T:
    """Run all steps at once and return the result."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


class IncrementalRunner:
    """Runs one work at a time, one step in each turn of the loop; further works are queued."""

    def __init__(self) -> None:
        self._is_free = asyncio.Lock()

    async def run(self, work: Steps[T]) -> T:
        """Return the result of the work after earlier works and all its steps."""
        async with self._is_free:
            try:
                while True:
                    next(work)
                    await asyncio.sleep(0)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                work.close()
