# SPDX-License-Identifier: Apache-2.0
"""The blocking producer."""

from collections.abc import Iterable, Sequence
from typing import Any

from cometmq import client
from cometmq.client.constructors import explaining
from cometmq.client.hooks import ForbiddenHook, SendHook
from cometmq.client.log import AnyLog
from cometmq.client.message import Message, MessageExt, SendResult
from cometmq.client.produce.producer import NO_ARGUMENT, ProducerStats
from cometmq.client.settings import ProducerOptions
from cometmq.client.sync.working import WorkingClient
from cometmq.client.transfer.queue_selection import QueueSelector, by_hash
from cometmq.remoting.bodies.queues import MessageQueue


class Producer(WorkingClient[client.Producer]):
    """Sends messages; several threads may use it at the same time."""

    OPTIONS: type[ProducerOptions] = ProducerOptions

    @explaining
    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: ProducerOptions | None = None,
        log: AnyLog = None,
    ) -> None:
        """Use the name servers in `namesrv`; if it is empty, use the `namesrv` option."""
        super().__init__(client.Producer(group, namesrv, options=options, log=log))

    def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send a message and return where it is stored."""
        return self._run(self._inner.send(message, queue=queue, timeout_ms=timeout_ms))

    def send_ordered(
        self,
        message: Message,
        argument: Any,
        *,
        selector: QueueSelector = by_hash,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message to the queue that `selector` chooses by `argument`."""
        return self._run(
            self._inner.send_ordered(message, argument, selector=selector, timeout_ms=timeout_ms)
        )

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send a message without an acknowledgement."""
        self._run(self._inner.send_oneway(message, queue=queue))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Store messages of one topic in one queue with a single request."""
        return self._run(self._inner.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def split_batch(
        self, messages: Iterable[Message], *, bytes_max: int | None = None
    ) -> Iterable[list[Message]]:
        """Split messages into lists that `send_batch` accepts."""
        return self._inner.split_batch(messages, bytes_max=bytes_max)

    def request(
        self,
        message: Message,
        timeout_ms: int | None = None,
        *,
        queue: MessageQueue | None = None,
        argument: Any = NO_ARGUMENT,
        selector: QueueSelector = by_hash,
    ) -> MessageExt:
        """Send a message and return its consumer's reply; raise NoReply on timeout."""
        return self._run(
            self._inner.request(
                message, timeout_ms, queue=queue, argument=argument, selector=selector
            )
        )

    def reply(self, request: MessageExt, body: bytes) -> SendResult:
        """Reply to a consumed request; raise NotARequest, or RequesterGone if it is too late."""
        return self._run(self._inner.reply(request, body))

    def add_hook(self, hook: SendHook) -> None:
        """Call a hook before and after every attempt to send, on the clients' thread."""
        self._inner.add_hook(hook)

    def add_forbidden_hook(self, hook: ForbiddenHook) -> None:
        """Add a hook that may reject messages."""
        self._inner.add_forbidden_hook(hook)

    def new_message_id(self) -> str:
        """Return a unique key for a message that may be resent."""
        return self._on_loop(self._inner.new_message_id)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that accept messages; raise NoRoute if no broker has it."""
        return self._run(self._inner.queues(topic))

    def stats(self) -> ProducerStats:
        """Return the counters."""
        return self._inner.stats()
