# SPDX-License-Identifier: Apache-2.0
"""What applications may hang into sending and consuming; message trace is built on it.

Invariants
    A send or consume hook that raises is logged, and changes nothing. A forbidden hook refuses
    a message by raising: that goes to whoever sends.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from cometmq.client.message import Message, MessageExt, SendResult
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe


class MessageKind(IntEnum):
    """What a message is to the broker; the numbers are those of the Java client."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3


class ConsumeOutcome(IntEnum):
    """How a call of a listener ended; the numbers are those of the Java client."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class TransactionState(StrEnum):
    """What a producer says of its local transaction; the values are those of the Java client."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"


class SendContext(msgspec.Struct):
    """One attempt to send a message or a batch; retries make a context each."""

    group: str
    messages: Sequence[Message]
    """The message, or those of a batch."""
    message_id: str
    body_bytes: int
    """As it travels: compressed, or the whole batch."""
    kind: MessageKind
    queue: MessageQueue
    address: str
    """Of the broker."""
    begin_ms: int
    is_oneway: bool
    end_ms: int = 0
    result: SendResult | None = None
    error: Exception | None = None
    region: str = ""
    is_trace_on: bool = True
    """False if the broker wants no traces."""
    state: dict[str, Any] = {}
    """For hooks to remember something from before to after."""

    @property
    def is_batch(self) -> bool:
        """Whether several messages travel as one."""
        return len(self.messages) > 1


class EndContext(msgspec.Struct, frozen=True):
    """The end of a transaction, before the broker is told of it."""

    group: str
    message: Message | MessageExt
    """What was sent; what the broker asked about."""
    message_id: str
    transaction_id: str | None
    state: TransactionState
    is_from_check: bool
    """Whether the broker has asked."""
    address: str
    """Of the broker."""
    time_ms: int


class ConsumeContext(msgspec.Struct):
    """One call of a listener."""

    group: str
    messages: Sequence[MessageExt]
    begin_ms: int
    end_ms: int = 0
    outcome: ConsumeOutcome | None = None
    """None before the call."""
    is_success: bool = False
    """Whether all messages are consumed."""
    state: dict[str, Any] = {}
    """For hooks to remember something from before to after."""


class SendHook(Protocol):
    """Sees every attempt to send."""

    def before_send(self, context: SendContext) -> None:
        """Called before the request leaves."""

    def after_send(self, context: SendContext) -> None:
        """Called with result or error; a oneway send has neither."""


class EndHook(Protocol):
    """Sees every end of a transaction."""

    def end_transaction(self, context: EndContext) -> None:
        """Called before the broker is told."""


class ForbiddenHook(Protocol):
    """Decides whether a message may be sent."""

    def check(self, context: SendContext) -> None:
        """Raise, by preference InvalidArgument, to refuse it."""


class ConsumeHook(Protocol):
    """Sees every call of a listener."""

    def before_consume(self, context: ConsumeContext) -> None:
        """Called before the listener."""

    def after_consume(self, context: ConsumeContext) -> None:
        """Called with the outcome."""


HookT = TypeVar("HookT")


class _Hooks(Generic[HookT]):
    """Hooks of one client."""

    def __init__(self, hooks: Iterable[HookT], log: Log) -> None:
        """Call them in this order."""
        self._hooks = tuple(hooks)
        self._log = log

    def _call(self, name: str, context: SendContext | EndContext | ConsumeContext) -> None:
        for hook in self._hooks:
            try:
                getattr(hook, name)(context)
            except Exception as error:  # noqa: BLE001  # foreign code must not stop a message
                self._log.warning(
                    "hook.failed",
                    hook=type(hook).__name__,
                    error=describe(error),
                    exc_info=error,
                )


class SendHooks(_Hooks[SendHook]):
    """What sees the sends of one producer."""

    def __init__(
        self, hooks: Iterable[SendHook], forbidden: Iterable[ForbiddenHook], log: Log
    ) -> None:
        """Ask `forbidden` first."""
        super().__init__(hooks, log)
        self._forbidden = tuple(forbidden)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._hooks or self._forbidden)

    def before(self, context: SendContext) -> None:
        """Refuse the message if a hook forbids it, then tell the others."""
        for hook in self._forbidden:
            hook.check(context)
        self._call("before_send", context)

    def after(self, context: SendContext) -> None:
        """Tell how it ended."""
        self._call("after_send", context)


class EndHooks(_Hooks[EndHook]):
    """What sees the ends of one producer's transactions."""

    def ending(self, context: EndContext) -> None:
        """Tell that the broker is told now."""
        self._call("end_transaction", context)


class ConsumeHooks(_Hooks[ConsumeHook]):
    """What sees the calls of one listener."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._hooks)

    def before(self, context: ConsumeContext) -> None:
        """Tell that the listener is called now."""
        self._call("before_consume", context)

    def after(self, context: ConsumeContext) -> None:
        """Tell how it ended."""
        self._call("after_consume", context)
