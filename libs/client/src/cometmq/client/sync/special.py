# SPDX-License-Identifier: Apache-2.0
"""The blocking clients for transactions, scheduled pulls and administrators, and the wait for
signals.
"""

import asyncio
import contextvars
import inspect
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, ClassVar, Final, NoReturn, TypeVar

from cometmq import client
from cometmq.client.application_calls import (
    calling,
    check_function,
    check_plain_function,
    contained,
    is_coroutine_function,
    original,
)
from cometmq.client.consume.queues.rebalance import AllocateStrategy
from cometmq.client.errors import InvalidArgument, shown
from cometmq.client.hooks import EndHook, TransactionState
from cometmq.client.log import AnyLog
from cometmq.client.message import Message
from cometmq.client.produce.transactions import (
    CheckListener,
    Decision,
    SyncLocalTransaction,
    TransactionSendResult,
    state_of,
)
from cometmq.client.produce.transactions import TransactionProducer as AsyncTransactionProducer
from cometmq.client.settings import ClientOptions, PullOptions, TransactionOptions
from cometmq.client.signals import END_SIGNALS, handled
from cometmq.client.sync.clients import Producer, PullConsumer, Transaction
from cometmq.client.sync.loop import Lifecycle, SyncClient
from cometmq.remoting.bodies.queues import MessageQueue


class TransactionProducer(Producer):
    """Sends messages whose delivery depends on a local transaction, as well as ordinary ones.

    Local transactions are plain functions that run in the sending thread, so that they can use its
    database session. `check` is called on another thread, or as a coroutine on the clients' loop.
    """

    OPTIONS = TransactionOptions
    _inner: AsyncTransactionProducer

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        check: CheckListener,
        execute: SyncLocalTransaction | None = None,
        options: TransactionOptions | None = None,
        log: AnyLog = None,
    ) -> None:
        """`check` answers the brokers; `execute` is the default of `send_in_transaction`."""
        if execute is not None:
            check_plain_function(execute, "execute", "message", "argument")
        self._inner = AsyncTransactionProducer(
            group, namesrv, check=check, options=options, log=log
        )
        self._execute = execute

    def add_end_hook(self, hook: EndHook) -> None:
        """Call a hook whenever a transaction ends, on the clients' thread."""
        self._inner.add_end_hook(hook)

    def send_in_transaction(
        self,
        message: Message,
        argument: Any = None,
        *,
        execute: SyncLocalTransaction | None = None,
        timeout_ms: int | None = None,
    ) -> TransactionSendResult:
        """Store a half message, run the local transaction, and send its state to the broker.

        If the transaction raises an exception, the message is rolled back, and the exception is
        raised here.
        """
        if execute is not None:
            check_plain_function(execute, "execute", "message", "argument")
        execute = execute or self._execute
        if execute is None:
            raise InvalidArgument(
                "no local transaction: give `execute` to the producer or to `send_in_transaction`"
            )
        transaction = self.begin(message, timeout_ms=timeout_ms)
        if not transaction.is_safe:
            return transaction.end(TransactionState.ROLLBACK)
        decision = self._decided(execute, transaction.message, argument)
        state = self._inner.judge(transaction.message, decision)
        result = transaction.end(state, decision[1])
        if result.error is not None:
            raise result.error
        return result

    def begin(self, message: Message, *, timeout_ms: int | None = None) -> Transaction:
        """Store a half message; once the outcome is known, call `end` on the returned transaction.

        If a message is resent after an error, it may be stored twice, and the broker asks about
        the half message that was never ended.
        """
        return Transaction.around(self._run(self._inner.begin(message, timeout_ms=timeout_ms)))

    def _decided(self, execute: SyncLocalTransaction, message: Message, argument: Any) -> Decision:
        try:
            with calling(self._inner, "the transaction"):
                return state_of(execute(message, argument)), None
        except Exception as error:  # noqa: BLE001  # application code: an exception is no decision
            return TransactionState.UNKNOWN, original(error)


PullCallback = Callable[[PullConsumer, MessageQueue], int | None]
"""Pulls from a queue; returns the delay in ms until the next call, or None for 200 ms."""


class _ThreadsPull(client.ScheduledPull):
    _GRACE_MS = None  # a thread cannot be cancelled

    def __init__(self, group: str, namesrv: str, *, concurrency: int, **more: Any) -> None:
        super().__init__(group, namesrv, concurrency=concurrency, **more)
        self.pool = ThreadPoolExecutor(concurrency, thread_name_prefix="cometmq-pull")

    async def close(self) -> None:
        await super().close()
        self.pool.shutdown(wait=False)  # no call is running


class ScheduledPull(Lifecycle):
    """Calls a function repeatedly for each owned queue, on other threads."""

    OPTIONS: ClassVar = PullOptions

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: PullOptions | None = None,
        strategy: AllocateStrategy | None = None,
        concurrency: int = 20,
        log: AnyLog = None,
    ) -> None:
        """`concurrency` limits how many calls run at once, over all queues."""
        self._inner = _ThreadsPull(
            group, namesrv, options=options, strategy=strategy, concurrency=concurrency, log=log
        )
        self.consumer = PullConsumer.around(self._inner.consumer)

    def register(self, topic: str, callback: PullCallback) -> None:
        """Call `callback` for the owned queues of a topic."""

        check_function(callback, "callback", "consumer", "queue")
        if is_coroutine_function(callback):
            raise InvalidArgument(
                "callback is a coroutine function, but this client calls it on a thread: write "
                "`def callback(consumer, queue)`, or use cometmq.client.ScheduledPull"
            )

        async def call(_: client.PullConsumer, queue: MessageQueue) -> int | None:
            loop = asyncio.get_running_loop()
            run = contextvars.copy_context().run  # the context identifies a callback
            running = loop.run_in_executor(
                self._inner.pool, run, contained, callback, self.consumer, queue
            )
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await asyncio.wait([running])  # the queue waits for its thread
                raise

        self._inner.register(topic, call)


T = TypeVar("T")


class AdminClient(SyncClient):
    """Calls any method of the async admin client: `admin.call(lambda a: a.topics())`.

    Methods that yield results are called with `iterate`:
    `for message in admin.iterate(lambda a: a.dead_letters("group"))`.
    """

    OPTIONS: Final = ClientOptions

    def __init__(
        self, namesrv: str = "", *, options: ClientOptions | None = None, log: AnyLog = None
    ) -> None:
        """Use the name servers in `namesrv`; if it is empty, use the `namesrv` option."""
        self._inner: client.AdminClient = client.AdminClient(namesrv, options=options, log=log)

    def call(self, method: Callable[[client.AdminClient], Awaitable[T]]) -> T:
        """Return the result of a method of the async admin client."""
        check_function(method, "method", "admin")

        async def call() -> T:
            found = method(self._inner)
            if inspect.isawaitable(found):
                return await found
            raise InvalidArgument(
                "call a method, as in `admin.call(lambda a: a.topics())`; one that yields its "
                f"results by `admin.iterate(...)`; not {shown(found)}"
            )

        return self._run(call())

    def iterate(self, method: Callable[[client.AdminClient], AsyncIterator[T]]) -> Iterator[T]:
        """Yield the results of `read`, `dead_letters` or any other method that yields results."""
        check_function(method, "method", "admin")
        items: object = self._on_loop(lambda: method(self._inner))
        if inspect.iscoroutine(items):
            items.close()
        if not isinstance(items, AsyncIterator):
            raise InvalidArgument(
                "the method returns one result: write `admin.call(...)`, not `admin.iterate(...)`"
            )
        return self._iterate(items)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an AttributeError that shows how to call a method of the async client."""
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}: write "
            f"`admin.call(lambda a: a.{name}(...))`, or `iterate` for a method that yields",
            name=name,
            obj=self,
        )


def until_signal(signals: Sequence[signal.Signals] = END_SIGNALS) -> None:
    """Wait for a signal that asks the process to stop."""
    # A signal handler must not set an Event whose `wait` it interrupts, as both take the same lock.
    told: SimpleQueue[None] = SimpleQueue()
    with on_signal(lambda: told.put(None), signals=signals):
        told.get()


@contextmanager
def on_signal(
    callback: Callable[[], object], *, signals: Sequence[signal.Signals] = END_SIGNALS
) -> Iterator[None]:
    """Call a function on the main thread when a signal arrives, instead of taking the default
    action.

    A second signal of the same kind takes the default action. The function must not block, because
    it interrupts the main thread at any point, possibly inside a client call.
    """
    with handled(signals, callback):
        yield
