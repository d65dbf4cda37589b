# SPDX-License-Identifier: Apache-2.0
"""Long work on the loop, a bounded part in each of its turns.

A thread is no way out for what is pure Python or one long call of an extension: it would hold the
interpreter, and the loop would wait all the same.
"""

import asyncio
from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Parts: TypeAlias = Generator[None, None, T]
"""Work on its way to a T; it yields where the loop may do something else."""


def finish(work: Parts[T]) -> T:
    """Return the result of work, done at once."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: T = end.value
        return result


class Turns:
    """Does works one after the other, so that only one of them takes its part in a turn."""

    def __init__(self) -> None:
        """Have nothing to do."""
        self._is_free = asyncio.Lock()

    async def run(self, work: Parts[T]) -> T:
        """Return the result of work when its turns have come."""
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
