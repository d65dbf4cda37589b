# SPDX-License-Identifier: Apache-2.0
"""Keeps a command within the user's time limit even if servers never answer.

Each request may take a part of the limit. Closing clients, which send requests to brokers, is
interrupted after some seconds.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from time import monotonic
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from cometmq.client.errors import ClientError
from cometmq.client.settings import OptionsT

T = TypeVar("T")

REQUEST_SHARE: Final = 0.25
"""The part of the limit that one request may take, because a command sends several before
it waits.
"""
REQUEST_MS_MIN: Final = 1_000
LAST_WAIT_S: Final = 2.0
"""The shortest wait for messages, unless the limit itself is shorter. It applies even if the start
has used up the limit.
"""
LAST_WAIT_SHARE: Final = 0.25
"""The part of the limit that is added if the limit has passed and a broker is known to have more
messages.
"""
AGAIN_S: Final = 0.2
"""Pause between interruptions: closing has several steps, each of which may have to be
interrupted.
"""


def with_limit(options: OptionsT, limit_s: float | None) -> OptionsT:
    """Return options with which requests end early enough to be reported within the limit."""
    if limit_s is None:
        return options
    share_ms = max(REQUEST_MS_MIN, int(REQUEST_SHARE * limit_s * 1_000))
    return msgspec.structs.replace(options, api_timeout_ms=min(options.api_timeout_ms, share_ms))


class Limit:
    """The longest time without a message; the first period begins when the command starts."""

    def __init__(self, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._since = monotonic()

    def renew(self) -> None:
        """Begin anew, because a message has come."""
        self._since = monotonic()

    def wait_s(self, *, is_last: bool = False) -> float | None:
        """Return how long to wait for the next message; None means without a limit.

        `is_last` asks for the extra wait after the limit, for messages that a broker is known to
        have.
        """
        if self.limit_s is None:
            return None
        if is_last:
            return min(LAST_WAIT_S, LAST_WAIT_SHARE * self.limit_s)
        return max(self._since + self.limit_s - monotonic(), min(LAST_WAIT_S, self.limit_s))

    async def start(self, starting: Awaitable[T]) -> T:
        """Wait for the start of a client; raise ClientError if it takes longer than the limit."""
        least_s = 2 * REQUEST_MS_MIN / 1_000  # a request that times out is reported by name
        try:
            async with asyncio.timeout(None if self.limit_s is None else self.limit_s + least_s):
                return await starting
        except TimeoutError as error:
            raise ClientError(
                f"nothing was read within {self.limit_s:g} s (--timeout): brokers did not answer"
                " while the command started: cometmq cluster"
            ) from error


class BriefEnd(AsyncExitStack):
    """An exit stack that interrupts the exits of its contexts after `end_s` seconds."""

    def __init__(self, end_s: float) -> None:
        super().__init__()
        self._end_s = end_s
        self._count = 0
        """Number of interruptions so far."""
        self._timer: asyncio.TimerHandle | None = None

    async def __aexit__(  # no context here swallows exceptions
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Exit the contexts; an exception of the body is not suppressed."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        self._timer = loop.call_later(self._end_s, self._interrupt, task)
        try:
            await super().__aexit__(exc_type, exc, traceback)
        except asyncio.CancelledError:
            for _ in range(self._count):
                task.uncancel()
            if not self._count or task.cancelling():  # by others
                raise
        finally:
            self._timer.cancel()

    def _interrupt(self, task: asyncio.Task[Any]) -> None:
        self._count += 1
        task.cancel()
        self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._interrupt, task)
