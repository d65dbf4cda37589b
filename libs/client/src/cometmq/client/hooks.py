# SPDX-License-Identifier: Apache-2.0
"""Application hooks around sending and consuming; message trace uses them too.

Invariants
    An exception in a send or consume hook is logged and has no other effect. A `forbidden` hook
    rejects a message by raising, and the exception reaches the caller of `send` without retries,
    unless it is an `Outage` or a `CommandError` whose code is retried.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from cometmq.client.application_calls import Failures, original
from cometmq.client.message import Message, MessageExt, SendResult
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.remoting.types import NamedNumber


class MessageKind(NamedNumber):
    """The kind of a message; numbered as in the Java client."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3


class ConsumeOutcome(NamedNumber):
    """The result of a listener call; numbered as in the Java client."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class TransactionState(StrEnum):
    """The state of a local transaction; the values, such as UNKNOW, are the Java client's names.

    `print(state)` shows the member's name, such as UNKNOWN.
    """

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"

    def __str__(self) -> str:
        return self.name

    def __format__(self, spec: str) -> str:
        return format(self.name, spec)


class SendContext(msgspec.Struct):
    """One attempt to send a message or a batch; each retry has its own context."""

    group: str
    messages: Sequence[Message]
    """The message, or all messages of the batch."""
    message_id: str
    body_bytes: int
    """The size in transit, after compression; for a batch, its total size."""
    kind: MessageKind
    queue: MessageQueue
    address: str
    """The broker's address."""
    begin_ms: int
    is_oneway: bool
    end_ms: int = 0
    result: SendResult | None = None
    error: Exception | None = None
    region: str = ""
    is_trace_on: bool = True
    """False if the broker has disabled tracing."""
    state: dict[str, Any] = {}
    """Data that a hook passes from `before_send` to `after_send`."""

    @property
    def is_batch(self) -> bool:
        """Whether several messages are sent as one batch."""
        return len(self.messages) > 1


class EndContext(msgspec.Struct, frozen=True):
    """The end of a transaction, before the broker is informed."""

    group: str
    message: Message | MessageExt
    """The message as sent, or as received in a check."""
    message_id: str
    transaction_id: str | None
    state: TransactionState
    is_from_check: bool
    """Whether the broker asked for the state."""
    address: str
    """The broker's address."""
    time_ms: int


class ConsumeContext(msgspec.Struct):
    """One call to a listener."""

    group: str
    messages: Sequence[MessageExt]
    begin_ms: int
    end_ms: int = 0
    outcome: ConsumeOutcome | None = None
    """The result of the call; None before it."""
    is_success: bool = False
    """Whether all messages were consumed."""
    state: dict[str, Any] = {}
    """Data that a hook passes from `before_consume` to `after_consume`."""


class SendHook(Protocol):
    """Called before and after every attempt to send."""

    def before_send(self, context: SendContext) -> None:
        """Called before the request is sent."""

    def after_send(self, context: SendContext) -> None:
        """Called with the result or the error; a oneway send has neither."""


class EndHook(Protocol):
    """Called whenever a transaction ends."""

    def end_transaction(self, context: EndContext) -> None:
        """Called before the broker is informed."""


class ForbiddenHook(Protocol):
    """Decides whether a message may be sent."""

    def check(self, context: SendContext) -> None:
        """Raise, preferably InvalidArgument, to reject the message.

        An `Outage` is retried like a broker's outage, so raise it if the same message may be
        accepted later.
        """


class ConsumeHook(Protocol):
    """Called before and after every listener call."""

    def before_consume(self, context: ConsumeContext) -> None:
        """Called before the listener is called."""

    def after_consume(self, context: ConsumeContext) -> None:
        """Called with the outcome."""


class Hooks:
    """The hooks of one client."""

    def __init__(self, hooks: Iterable[SendHook | EndHook | ConsumeHook], log: Log) -> None:
        self._hooks = tuple(hooks)
        self._log = log

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def call(self, name: str, context: SendContext | EndContext | ConsumeContext) -> None:
        """Call a method of each hook; its exceptions are logged."""
        for hook in self._hooks:
            try:
                with Failures():
                    getattr(hook, name)(context)
            except Exception as error:  # noqa: BLE001  # application code must not stop a message
                cause = original(error)
                self._log.warning(
                    "hook.failed",
                    hook=type(hook).__name__,
                    error=describe(cause),
                    exc_info=cause,
                )


class SendHooks(Hooks):
    """The send hooks of one producer."""

    def __init__(
        self, hooks: Iterable[SendHook], forbidden: Iterable[ForbiddenHook], log: Log
    ) -> None:
        """`forbidden` hooks run first."""
        super().__init__(hooks, log)
        self._forbidden = tuple(forbidden)

    def __bool__(self) -> bool:
        return bool(self._hooks or self._forbidden)

    def before(self, context: SendContext) -> None:
        """Raise if a hook forbids the message, then call the send hooks."""
        for hook in self._forbidden:
            hook.check(context)
        self.call("before_send", context)
