# SPDX-License-Identifier: Apache-2.0
"""What applications write: the listener of a push consumer, and what it may answer."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum, auto
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, cast

import msgspec

from cometmq.client.application_calls import is_cancelled, on_thread
from cometmq.client.functions import is_coroutine_function
from cometmq.client.message import MessageExt
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe

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


class OrderlyAction(Enum):
    """What becomes of the messages that an orderly listener has seen."""

    COMMIT = auto()
    HOLD = auto()
    ROLLBACK = auto()
    SUSPEND = auto()


class OrderlyResult(msgspec.Struct, frozen=True):
    """How consuming a list of messages in order ended; a listener that returns None: SUCCESS.

    Java's `autoCommit=false` is said by results: SUCCESS there is HOLD here, COMMIT is SUCCESS.
    """

    action: OrderlyAction = OrderlyAction.COMMIT
    pause_ms: int | None = None
    """How long the queue waits before it is consumed again; None: `suspend_queue_ms`."""

    SUCCESS: ClassVar["OrderlyResult"]
    """These messages are consumed, and those that were held before them."""
    HOLD: ClassVar["OrderlyResult"]
    """Go on with the next, but commit nothing yet: a later ROLLBACK brings these again."""
    ROLLBACK: ClassVar["OrderlyResult"]
    """Deliver these and all that are held again, after a pause."""
    SUSPEND: ClassVar["OrderlyResult"]
    """Deliver these again, after a pause; the queue waits for them. So does who raises."""

    @classmethod
    def suspend(cls, pause_ms: int) -> "OrderlyResult":
        """Deliver these messages again after a pause."""
        return cls(OrderlyAction.SUSPEND, pause_ms)

    @classmethod
    def rollback(cls, pause_ms: int) -> "OrderlyResult":
        """Deliver these messages and all that are held again after a pause."""
        return cls(OrderlyAction.ROLLBACK, pause_ms)


OrderlyResult.SUCCESS = OrderlyResult()
OrderlyResult.HOLD = OrderlyResult(OrderlyAction.HOLD)
OrderlyResult.ROLLBACK = OrderlyResult(OrderlyAction.ROLLBACK)
OrderlyResult.SUSPEND = OrderlyResult(OrderlyAction.SUSPEND)

Listener: TypeAlias = Callable[
    [list[MessageExt]], ConsumeResult | Awaitable[ConsumeResult | None] | None
]
"""A coroutine function, or a plain one, which is called on a thread."""

OrderlyListener: TypeAlias = Callable[
    [list[MessageExt]], OrderlyResult | Awaitable[OrderlyResult | None] | None
]
"""The same for a consumer with the option `orderly`."""

R = TypeVar("R", bound=ConsumeResult | OrderlyResult)


class ListenerError(Exception):
    """A listener returned something that is no result."""


class Watch(Protocol):
    """What sees each call of a listener."""

    async def around(
        self, call: Callable[[list[MessageExt]], Awaitable[R]], messages: list[MessageExt]
    ) -> R:
        """Call the listener and return its result."""


class ListenerCaller(Generic[R]):
    """Calls a listener: a coroutine function on the loop, a plain function on a bounded pool."""

    def __init__(
        self,
        listener: Listener | OrderlyListener,
        success: R,
        *,
        thread_count: int,
        log: Log,
        watch: Watch | None = None,
    ) -> None:
        """Make the threads only if they are needed; `success` is what None stands for."""
        self._watch = watch
        self._listener = listener
        self._success = success
        self._log = log
        self._pool: ThreadPoolExecutor | None = None
        if not is_coroutine_function(listener):
            self._pool = ThreadPoolExecutor(thread_count, thread_name_prefix="cometmq-listener")

    async def call(self, messages: list[MessageExt]) -> R:
        """Return what the listener says; whatever it raises goes through."""
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

    async def call_safely(self, messages: list[MessageExt], failure: R) -> R:
        """Return what the listener says, or `failure` if it raises, which is logged."""
        try:
            if self._watch is not None:
                return await self._watch.around(self.call, messages)
            return await self.call(messages)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            self._failed(messages, error="the listener was cancelled from inside")
        except ListenerError as error:  # its traceback shows none of the listener's lines
            self._failed(messages, error=str(error))
        except Exception as error:  # noqa: BLE001  # foreign code: whatever it raises is a retry
            self._failed(messages, error=describe(error), exc_info=error)
        return failure

    def _failed(self, messages: list[MessageExt], **facts: object) -> None:
        first = messages[0]
        self._log.warning(
            "listener.failed", topic=first.topic, message_id=first.message_id, **facts
        )

    def close(self) -> None:
        """Let running threads end, without waiting for them."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _wrong_result(result: object, *, is_orderly: bool) -> str:
    """Return what is wrong with a listener's result, and what it may return."""
    consumer = "an orderly consumer" if is_orderly else "a consumer"
    name = "OrderlyResult" if is_orderly else "ConsumeResult"
    redeliver = "SUSPEND" if is_orderly else "RECONSUME_LATER"
    return (
        f"the listener returned {result!r}: {consumer} accepts None or "
        f"{name}.SUCCESS (consumed) and {name}.{redeliver} (deliver again)"
    )


async def called(callback: Callable[..., Any], *arguments: object) -> None:
    """Call a coroutine function on the loop, a plain function on a thread; raise Exceptions."""
    try:
        if is_coroutine_function(callback):
            await callback(*arguments)
        else:
            await on_thread(None, callback, *arguments)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise ListenerError("a callback was cancelled from inside") from error
