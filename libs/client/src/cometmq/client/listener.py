# SPDX-License-Identifier: Apache-2.0
"""Listeners: the functions that applications pass to a push consumer, their results, and calls of
them, which hooks, message trace and trace context observe.
"""

import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from enum import Enum, auto
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar, cast

import msgspec

from cometmq.client import trace_context
from cometmq.client.application_calls import (
    NoThreads,
    calling,
    is_coroutine_function,
    on_thread,
    original,
)
from cometmq.client.arguments import redelivery_level, whole
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.errors import InvalidArgument, shown
from cometmq.client.hooks import ConsumeContext, ConsumeOutcome, Hooks
from cometmq.client.message import MessageExt
from cometmq.client.settings import DELAY_LEVEL_MAX
from cometmq.remoting.log import Log
from cometmq.remoting.spelling import SpelledFields
from cometmq.remoting.transport.tasks import describe

DEAD_LETTER_LEVEL = -1


class ConsumeResult(msgspec.Struct, frozen=True, metaclass=SpelledFields):
    """The result of consuming a list of messages; a listener may return None instead of SUCCESS.

    Unconsumed messages are redelivered up to 16 times, then moved to the group's dead-letter topic.
    """

    consumed_count: int | None = None
    """The number of consumed messages, counted from the first; None for all."""
    delay_level: int = 0
    """The delay before redelivery: 1 to 18 is a delay level; 0 increases the delay each time."""

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an invalid count or delay level."""
        if self.consumed_count is not None:
            whole(self.consumed_count, "the count of consumed messages")
        redelivery_level(self.delay_level)

    SUCCESS: ClassVar["ConsumeResult"]
    RECONSUME_LATER: ClassVar["ConsumeResult"]
    DEAD_LETTER: ClassVar["ConsumeResult"]

    @classmethod
    def later(cls, delay_level: int = 0) -> "ConsumeResult":
        """Return a result that requests redelivery of all messages at `delay_level`."""
        return cls(0, _redelivery_level(delay_level))

    @classmethod
    def consumed(cls, count: int, *, delay_level: int = 0) -> "ConsumeResult":
        """Return a result that consumes the first `count` messages and redelivers the others."""
        return cls(count, _redelivery_level(delay_level))


def _redelivery_level(level: int) -> int:
    if redelivery_level(level) > DELAY_LEVEL_MAX:
        raise InvalidArgument(
            f"the delay level of a redelivery is -1 (dead letter), 0 (longer each time) or 1 to "
            f"{DELAY_LEVEL_MAX}, not {shown(level)}; for brokers with more levels, return "
            "ConsumeResult(0, level)"
        )
    return level


ConsumeResult.SUCCESS = ConsumeResult()
ConsumeResult.RECONSUME_LATER = ConsumeResult.later()
ConsumeResult.DEAD_LETTER = ConsumeResult(0, DEAD_LETTER_LEVEL)


class OrderlyAction(Enum):
    """What the consumer does with the messages after an orderly listener has returned."""

    COMMIT = auto()
    HOLD = auto()
    ROLLBACK = auto()
    SUSPEND = auto()


class OrderlyResult(msgspec.Struct, frozen=True, metaclass=SpelledFields):
    """The result of consuming a list of messages in order; a listener may return None instead of
    SUCCESS.

    With Java's `autoCommit=false`, Java's SUCCESS corresponds to HOLD, and Java's COMMIT to
    SUCCESS.
    """

    action: OrderlyAction = OrderlyAction.COMMIT
    pause_ms: int | None = None
    """The pause before the queue is consumed again; None means `suspend_queue_ms`."""

    def __post_init__(self) -> None:
        """Raise InvalidArgument for an invalid pause."""
        if self.pause_ms is not None:
            whole(self.pause_ms, "pause_ms")

    SUCCESS: ClassVar["OrderlyResult"]
    """These messages, and all messages held before them, are consumed."""
    HOLD: ClassVar["OrderlyResult"]
    """Continue, but commit nothing yet: a later ROLLBACK redelivers these messages."""
    ROLLBACK: ClassVar["OrderlyResult"]
    """Redeliver these and all held messages, after a pause."""
    SUSPEND: ClassVar["OrderlyResult"]
    """Redeliver these messages after a pause, before later ones; so does an exception."""

    @classmethod
    def suspend(cls, pause_ms: int) -> "OrderlyResult":
        """Return a result that redelivers these messages after a pause."""
        return cls(OrderlyAction.SUSPEND, pause_ms)

    @classmethod
    def rollback(cls, pause_ms: int) -> "OrderlyResult":
        """Return a result that redelivers these messages and all held ones after a pause."""
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
    """Return the error to log with a traceback; None for the client's own ListenerError."""
    return None if isinstance(error, ListenerError) else error


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
        watch: "ConsumeWatch | None" = None,
        client: object = None,
    ) -> None:
        """`success` replaces a result of None; the listener cannot close `client`."""
        self.group = group
        self._client = client
        self._watch = watch
        self._listener = listener
        self._success = success
        self._log = log
        self._pool: ThreadPoolExecutor | None = None
        self._begins_ms: dict[object, int] = {}
        if not is_coroutine_function(listener):
            self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix="cometmq-listener")

    async def call(self, messages: list[MessageExt]) -> R:
        """Call the listener with a copy of the list; its exceptions propagate."""
        given = list(messages)
        call = calling(self._client, "the listener")
        self._begins_ms[call] = monotonic_ms()
        try:
            with call:
                if self._pool is None:
                    result: Any = await cast("Awaitable[Any]", self._listener(given))
                else:
                    result = await on_thread(self._pool, self._listener, given)
        finally:
            del self._begins_ms[call]
        if result is None:
            return self._success
        if not isinstance(result, type(self._success)):
            raise ListenerError(_wrong_result(result, is_orderly=self.is_orderly))
        return result

    @property
    def is_orderly(self) -> bool:
        """Whether the listener returns an OrderlyResult."""
        return isinstance(self._success, OrderlyResult)

    @property
    def name(self) -> str:
        """The name of the listener."""
        return getattr(self._listener, "__qualname__", None) or type(self._listener).__name__

    @property
    def is_on_loop(self) -> bool:
        """Whether the listener runs on the event loop and can therefore block it."""
        return self._pool is None

    def line_on(self, thread_id: int) -> str:
        """Return the line of the listener that a thread is executing, or ""."""
        line, frame = "", sys._current_frames().get(thread_id)  # noqa: SLF001  # no other way
        while frame is not None and frame.f_code is not ListenerCaller.call.__code__:
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return "" if frame is None else line

    @property
    def begins_ms(self) -> Collection[int]:
        """The start times of the running calls, by the monotonic clock."""
        return self._begins_ms.values()

    async def call_safely(self, messages: list[MessageExt], failure: R) -> tuple[R, str]:
        """Return the listener's result, or `failure` and the error after logging an exception.

        Raise NoThreads if the listener was not called, which is no failure of these messages.
        """
        try:
            if self._watch is not None:
                return await self._watch.around(self.call, messages), ""
            return await self.call(messages), ""
        except NoThreads:
            raise
        except ListenerError as refused:  # the traceback contains none of the listener's lines
            error = self._failed(messages, str(refused))
        except Exception as raised:  # noqa: BLE001  # application code: any exception means redelivery
            cause = original(raised)
            error = self._failed(messages, describe(cause), exc_info=cause)
        return failure, error

    def _failed(self, messages: list[MessageExt], error: str, **facts: object) -> str:
        first = messages[0]
        self._log.warning(
            "listener.failed",
            group=self.group,
            topic=first.topic,
            message_id=first.message_id,
            error=error,
            **facts,
        )
        return error

    def close(self) -> None:
        """Release the threads, without waiting for running calls."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


AnyCaller: TypeAlias = ListenerCaller[ConsumeResult] | ListenerCaller[OrderlyResult]


def _wrong_result(result: object, *, is_orderly: bool) -> str:
    consumer = "an orderly consumer" if is_orderly else "a consumer"
    name = "OrderlyResult" if is_orderly else "ConsumeResult"
    redeliver = "SUSPEND" if is_orderly else "RECONSUME_LATER"
    return (
        f"the listener returned {shown(result)}: {consumer} accepts None or "
        f"{name}.SUCCESS (consumed) and {name}.{redeliver} (deliver again)"
    )


class ConsumeWatch:
    """Observes the calls of one consumer's listener."""

    def __init__(
        self, group: str, hooks: Hooks, *, timeout_ms: int, continues_traces: bool
    ) -> None:
        """A call of more than `timeout_ms` counts as timed out, whatever its result."""
        self._group = group
        self._hooks = hooks
        self._timeout_ms = timeout_ms
        self._continues_traces = continues_traces

    async def around(
        self, call: Callable[[list[MessageExt]], Awaitable[R]], messages: list[MessageExt]
    ) -> R:
        """Call the listener and return its result."""
        context = ConsumeContext(self._group, tuple(messages), wall_ms(), outcome=None)
        self._hooks.call("before_consume", context)
        context.outcome = ConsumeOutcome.EXCEPTION
        try:
            with trace_context.consuming(messages) if self._continues_traces else nullcontext():
                result = await call(messages)
            context.is_success = _is_success(result, len(messages))
            context.outcome = self._outcome(context)
        finally:
            context.end_ms = wall_ms()
            self._hooks.call("after_consume", context)
        return result

    def polled(self, messages: Sequence[MessageExt]) -> None:
        """Report messages returned by `poll`; how they are used is not known."""
        if not messages:
            return
        context = ConsumeContext(self._group, tuple(messages), wall_ms())
        self._hooks.call("before_consume", context)
        context.end_ms = wall_ms()
        context.outcome = ConsumeOutcome.SUCCESS
        context.is_success = True
        self._hooks.call("after_consume", context)

    def _outcome(self, context: ConsumeContext) -> ConsumeOutcome:
        if wall_ms() - context.begin_ms >= self._timeout_ms:
            return ConsumeOutcome.TIME_OUT
        return ConsumeOutcome.SUCCESS if context.is_success else ConsumeOutcome.FAILED


def _is_success(result: ConsumeResult | OrderlyResult, count: int) -> bool:
    if isinstance(result, OrderlyResult):
        return result.action in {OrderlyAction.COMMIT, OrderlyAction.HOLD}
    return result.consumed_count is None or result.consumed_count >= count
