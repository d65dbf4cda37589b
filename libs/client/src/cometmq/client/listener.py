# SPDX-License-Identifier: Apache-2.0
"""What applications write: the listener of a push consumer, and what it may answer."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeAlias, cast

import msgspec

from cometmq.client.message import MessageExt

DEAD_LETTER_LEVEL = -1


class ConsumeResult(msgspec.Struct, frozen=True):
    """How consuming a list of messages ended; a listener that returns None says SUCCESS.

    What is not consumed is delivered again later, up to 16 times, then goes to the group's
    dead-letter topic.
    """

    consumed_count: int | None = None
    """How many messages from the first on are consumed; None: all."""
    delay_level: int = 0
    """When the others come again: 0 is later at each time, 1 to 18 one of the delay levels."""

    SUCCESS: ClassVar["ConsumeResult"]
    RECONSUME_LATER: ClassVar["ConsumeResult"]
    DEAD_LETTER: ClassVar["ConsumeResult"]

    @classmethod
    def later(cls, delay_level: int = 0) -> "ConsumeResult":
        """Deliver all messages again."""
        return cls(0, delay_level)

    @classmethod
    def consumed(cls, count: int, *, delay_level: int = 0) -> "ConsumeResult":
        """Take the first `count` messages as consumed, deliver the others again."""
        return cls(count, delay_level)


ConsumeResult.SUCCESS = ConsumeResult()
ConsumeResult.RECONSUME_LATER = ConsumeResult.later()
ConsumeResult.DEAD_LETTER = ConsumeResult(0, DEAD_LETTER_LEVEL)

Listener: TypeAlias = Callable[
    [list[MessageExt]], ConsumeResult | Awaitable[ConsumeResult | None] | None
]
"""A coroutine function, or a plain one, which is called on a thread."""


class ListenerError(Exception):
    """A listener returned something that is no ConsumeResult."""


class ListenerCaller:
    """Calls a listener: a coroutine function on the loop, a plain function on a bounded pool."""

    def __init__(self, listener: Listener, *, thread_count: int) -> None:
        """Make the threads only if they are needed."""
        self._listener = listener
        self._pool: ThreadPoolExecutor | None = None
        if not _is_coroutine_function(listener):
            self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix="cometmq-listener")

    async def call(self, messages: list[MessageExt]) -> ConsumeResult:
        """Return what the listener says; whatever it raises goes through."""
        if self._pool is None:
            result: Any = await cast("Awaitable[Any]", self._listener(messages))
        else:
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._pool, self._listener, messages)
        if result is None:
            return ConsumeResult.SUCCESS
        if not isinstance(result, ConsumeResult):
            if inspect.iscoroutine(result):
                result.close()
            raise ListenerError(f"a listener returns ConsumeResult or None, not {result!r}")
        return result

    def close(self) -> None:
        """Let running threads end, without waiting for them."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _is_coroutine_function(listener: object) -> bool:
    call = getattr(type(listener), "__call__", None)  # noqa: B004  # an object with async __call__
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(call)
