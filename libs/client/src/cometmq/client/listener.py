# SPDX-License-Identifier: Apache-2.0
"""Listener types: the functions that applications pass to a push consumer, and their results."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from enum import Enum, auto
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, cast

import msgspec

from cometmq.client.application_calls import is_cancelled, on_thread
from cometmq.client.errors import InvalidArgument
from cometmq.client.functions import is_coroutine_function
from cometmq.client.message import MessageExt
from cometmq.client.settings import DELAY_LEVEL_MAX
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe

DEAD_LETTER_LEVEL = -1


class ConsumeResult(msgspec.Struct, frozen=True):
    """The result of consuming a list of messages; None returned by a listener means SUCCESS.

    Unconsumed messages are redelivered up to 16 times, then moved to the group's dead-letter topic.
    """

    consumed_count: int | None = None
    """The number of consumed messages, counted from the first; None for all."""
    delay_level: int = 0
    """The delay of redelivery: 0 means longer each time, 1 to 18 is one of the delay levels."""

    SUCCESS: ClassVar["ConsumeResult"]
    RECONSUME_LATER: ClassVar["ConsumeResult"]
    DEAD_LETTER: ClassVar["ConsumeResult"]

    @classmethod
    def later(cls, delay_level: int = 0) -> "ConsumeResult":
        """Redeliver all messages."""
        return cls(0, _redelivery_level(delay_level))

    @classmethod
    def consumed(cls, count: int, *, delay_level: int = 0) -> "ConsumeResult":
        """Accept the first `count` messages as consumed, and redeliver the others."""
        if count < 0:
            raise InvalidArgument(
                f"the count of consumed messages is 0 or more, not {count!r}: return "
                "ConsumeResult.later() if none is consumed"
            )
        return cls(count, _redelivery_level(delay_level))


def _redelivery_level(level: int) -> int:
    if not DEAD_LETTER_LEVEL <= level <= DELAY_LEVEL_MAX:
        raise InvalidArgument(
            f"the delay level of a redelivery is -1 (dead letter), 0 (longer each time) or 1 to "
            f"{DELAY_LEVEL_MAX}, not {level!r}; for brokers with more levels, return "
            "ConsumeResult(0, level)"
        )
    return level


ConsumeResult.SUCCESS = ConsumeResult()
ConsumeResult.RECONSUME_LATER = ConsumeResult.later()
ConsumeResult.DEAD_LETTER = ConsumeResult(0, DEAD_LETTER_LEVEL)


class OrderlyAction(Enum):
    """What happens to the messages after an orderly listener returns."""

    COMMIT = auto()
    HOLD = auto()
    ROLLBACK = auto()
    SUSPEND = auto()


class OrderlyResult(msgspec.Struct, frozen=True):
    """The result of consuming a list of messages in order; None from a listener means SUCCESS.

    Java's `autoCommit=false` maps to results: SUCCESS there is HOLD here, and COMMIT is SUCCESS.
    """

    action: OrderlyAction = OrderlyAction.COMMIT
    pause_ms: int | None = None
    """The pause before the queue is consumed again; None means `suspend_queue_ms`."""

    SUCCESS: ClassVar["OrderlyResult"]
    """These messages and all those held before them are consumed."""
    HOLD: ClassVar["OrderlyResult"]
    """Continue, but commit nothing yet: a later ROLLBACK redelivers these messages."""
    ROLLBACK: ClassVar["OrderlyResult"]
    """Redeliver these and all held messages, after a pause."""
    SUSPEND: ClassVar["OrderlyResult"]
    """Redeliver these after a pause, before any later message; an exception has the same effect."""

    @classmethod
    def suspend(cls, pause_ms: int) -> "OrderlyResult":
        """Redeliver these messages after a pause."""
        return cls(OrderlyAction.SUSPEND, pause_ms)

    @classmethod
    def rollback(cls, pause_ms: int) -> "OrderlyResult":
        """Redeliver these messages and all held ones after a pause."""
        return cls(OrderlyAction.ROLLBACK, pause_ms)


OrderlyResult.SUCCESS = OrderlyResult()
OrderlyResult.HOLD = OrderlyResult(OrderlyAction.HOLD)
OrderlyResult.ROLLBACK = OrderlyResult(OrderlyAction.ROLLBACK)
OrderlyResult.SUSPEND = OrderlyResult(OrderlyAction.SUSPEND)

Listener: TypeAlias = Callable[
    [list[MessageExt]], ConsumeResult | Awaitable[ConsumeResult | None] | None
]
"""A coroutine function, or a plain function, which is called on a thread."""

OrderlyListener: TypeAlias = Callable[
    [list[MessageExt]], OrderlyResult | Awaitable[OrderlyResult | None] | None
]
"""Like Listener, for a consumer with the option `orderly`."""

R = TypeVar("R", bound=ConsumeResult | OrderlyResult)


class ListenerError(Exception):
    """A listener returned an object that is not a valid result."""


def traced(error: BaseException) -> BaseException | None:
    """Return the error to log with its traceback, or None if no line of it is the application's."""
    return None if isinstance(error, ListenerError) else error


class Watch(Protocol):
    """Observes each listener call."""

    async def around(
        self, call: Callable[[list[MessageExt]], Awaitable[R]], messages: list[MessageExt]
    ) -> R:
        """Call the listener and return its result."""


_CALL: ContextVar[tuple[object, asyncio.Task[Any] | None] | None] = ContextVar(
    "cometmq_listener_call", default=None
)
"""The caller of the running listener, and the task that waits for its end."""


class ListenerCaller(Generic[R]):
    """Calls coroutine functions on the loop, and plain functions on a bounded thread pool."""

    def __init__(
        self,
        listener: Listener | OrderlyListener,
        success: R,
        *,
        group: str,
        thread_count: int,
        log: Log,
        watch: Watch | None = None,
    ) -> None:
        """`success` replaces None; threads are created only for a plain function."""
        self.group = group
        self._watch = watch
        self._listener = listener
        self._success = success
        self._log = log
        self._pool: ThreadPoolExecutor | None = None
        if not is_coroutine_function(listener):
            self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix="cometmq-listener")

    async def call(self, messages: list[MessageExt]) -> R:
        """Return the listener's result; its exceptions propagate."""
        _CALL.set((self, asyncio.current_task()))
        if self._pool is None:
            result: Any = await cast("Awaitable[Any]", self._listener(messages))
        else:
            result = await on_thread(self._pool, self._listener, messages)
        if result is None:
            return self._success
        kind = type(self._success)
        if not isinstance(result, kind):
            raise ListenerError(_wrong_result(result, is_orderly=kind is OrderlyResult))
        return result

    def is_calling_from_here(self) -> bool:
        """Return whether the running code is the listener, on its task or its thread.

        Tasks that the listener has created are not: the call can end before they do.
        """
        found = _CALL.get()
        if found is None or found[0] is not self:
            return False
        try:
            return asyncio.current_task() is found[1]
        except RuntimeError:  # a thread without a loop: that of a plain function
            return True

    async def call_safely(self, messages: list[MessageExt], failure: R) -> R:
        """Return the listener's result, or `failure` after logging an exception."""
        try:
            if self._watch is not None:
                return await self._watch.around(self.call, messages)
            return await self.call(messages)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._failed(messages, error="the listener was cancelled from inside")
        except ListenerError as error:  # the traceback contains none of the listener's lines
            self._failed(messages, error=str(error))
        except Exception as error:  # noqa: BLE001  # application code: any exception means redelivery
            self._failed(messages, error=describe(error), exc_info=error)
        return failure

    def _failed(self, messages: list[MessageExt], **facts: object) -> None:
        first = messages[0]
        self._log.warning(
            "listener.failed",
            group=self.group,
            topic=first.topic,
            message_id=first.message_id,
            **facts,
        )

    def close(self) -> None:
        """Release the threads, without waiting for running calls."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _wrong_result(result: object, *, is_orderly: bool) -> str:
    """Return the error text: the wrong result, and the valid ones."""
    consumer = "an orderly consumer" if is_orderly else "a consumer"
    name = "OrderlyResult" if is_orderly else "ConsumeResult"
    redeliver = "SUSPEND" if is_orderly else "RECONSUME_LATER"
    return (
        f"the listener returned {result!r}: {consumer} accepts None or "
        f"{name}.SUCCESS (consumed) and {name}.{redeliver} (deliver again)"
    )


async def called(callback: Callable[..., Any], *arguments: object) -> None:
    """Call a coroutine function on the loop, a plain one on a thread; translate its exceptions."""
    try:
        if is_coroutine_function(callback):
            await callback(*arguments)
        else:
            await on_thread(None, callback, *arguments)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise ListenerError("a callback was cancelled from inside") from error
