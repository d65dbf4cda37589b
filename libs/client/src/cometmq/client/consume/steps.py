# SPDX-License-Identifier: Apache-2.0
"""An iterator that survives failed and cancelled steps, unlike a generator, which they end."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Steps(AsyncIterator[T], Generic[T]):
    """Iterates over what a function returns, until it returns None.

    After `asyncio.timeout` around a step, or an error, the next step goes on.
    """

    def __init__(
        self, begin: Callable[[], object], step: Callable[[], Awaitable[T | None]]
    ) -> None:
        """Call `begin`, which may raise, before the first step."""
        self._begin: Callable[[], object] | None = begin
        self._step = step

    async def __anext__(self) -> T:
        if self._begin is not None:
            self._begin()
            self._begin = None
        found = await self._step()
        if found is None:
            raise StopAsyncIteration
        return found
