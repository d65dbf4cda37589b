# SPDX-License-Identifier: Apache-2.0
"""Retries a command's sends while servers are down or busy, until a deadline."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from ssl import SSLError
from time import monotonic
from typing import Final, NoReturn

import msgspec

from cometmq.cli.say import say
from cometmq.client import Message, MessageQueue, Producer, SendContext, SendHook, SendResult
from cometmq.client.errors import (
    BrokerMissing,
    ClientError,
    NoNamesrv,
    NoRoute,
    SendFailed,
    WrongServer,
)
from cometmq.client.transfer.queue_selection import UNANSWERED
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import CometError, CommandError, Outage, RequestTimeout, TransportError


async def answering_queue(producer: Producer, topic: str) -> MessageQueue:
    """Return a queue at the first broker that answers; if none does, raise the last error."""
    try:
        queues = await producer.queues(topic)
    except NoRoute:  # a send creates the topic at a broker of the default topic
        queues = await producer.queues(producer.options.default_topic)
        found = await _first_answering(producer, queues)
        return MessageQueue(topic, found.broker_name, 0)
    return await _first_answering(producer, queues)


async def _first_answering(producer: Producer, queues: Sequence[MessageQueue]) -> MessageQueue:
    shuffled = random.sample(queues, len(queues))  # spreads the messages that are sent again
    chosen = {queue.broker_name: queue for queue in shuffled}
    error: CometError = BrokerMissing("the topic has no queue to send to")
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(_asked(producer, queue)) for queue in chosen.values()]
        for answer in asyncio.as_completed(asking):
            found = await answer
            if isinstance(found, MessageQueue):
                for task in asking:
                    task.cancel()
                return found
            error = found
    raise error


async def _asked(producer: Producer, queue: MessageQueue) -> MessageQueue | CometError:
    """Send a cheap request to the broker of a queue; return an error if it does not answer."""
    try:
        await producer.admin.max_offset(queue)
    except Outage as error:
        return error
    except CometError:  # a refusal is an answer, too
        pass
    return queue


FIRST_PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 1.0
SEND_TIMEOUT_MS: Final = 4_000
"""Longer than slaveTimeout (3 s), after which a master answers without its slave."""
ATTEMPT_MS_MIN: Final = 1_000
"""Time limit of an attempt that begins just before the deadline."""
BUSY: Final = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY})
"""Refusals of a broker that is overloaded, starting, stopping, or out of disk space."""


REPEATS_MAX: Final = 2
"""Number of times that a message is sent again to brokers that answer other requests but not the
send, as a master does while it waits for a slave that hangs; each attempt may store a copy.
"""


class MaybeStored(ClientError):
    """A message was not confirmed, and an unanswered attempt may have stored it."""


class Patience(SendHook):
    """Retries each message while servers are down, hanging or busy.

    Add it to the producer as a hook, so that it is also notified of the producer's own retries.
    """

    def __init__(self, limit_s: float) -> None:
        self.repeated_count = 0
        """Stored messages of which an unanswered attempt may have stored another copy."""
        self.limit_s = limit_s
        self._begin = monotonic()
        self._has_stored = False
        self._unanswered: set[str] = set()  # ids of messages that may be stored
        self._is_topic_known = False
        self._is_outage_named = False
        self._had_no_namesrv = False
        self._stopped = asyncio.Event()

    def before_send(self, context: SendContext) -> None:
        """Do nothing; only the outcome matters."""

    def after_send(self, context: SendContext) -> None:
        """Record that an attempt was not answered."""
        if isinstance(context.error, UNANSWERED):
            self._unanswered.add(context.message_id)

    async def send(self, producer: Producer, message: Message) -> SendResult:
        """Store a message; raise ClientError if it is not stored in time.

        If a broker stores a message but does not answer, the retry stores a second copy, with the
        same message id. Raise MaybeStored if any attempt went unanswered, regardless of the last
        attempt's error.
        """
        message_id = message.message_id or producer.new_message_id()
        message = msgspec.structs.replace(message, message_id=message_id)
        deadline = (monotonic() if self._has_stored else self._begin) + self.limit_s
        pause_s = FIRST_PAUSE_S
        repeats = 0
        while True:
            is_repeat = message_id in self._unanswered
            try:
                result = await self._attempt(producer, message, message_id, deadline)
            except CometError as error:
                if isinstance(error, SendFailed) and error.may_be_stored:
                    self._unanswered.add(message_id)
                    self._is_topic_known = True
                repeats += is_repeat and _has_timed_out(error)
                has_time = bool(self.limit_s) and not self._stopped.is_set()
                may_pass = has_time and repeats < REPEATS_MAX and self._may_pass(error)
                left_s = deadline - monotonic()
                if may_pass and left_s > 0:
                    self._name_outage(error)
                    await self._pause(min(pause_s, left_s))
                    pause_s = min(2 * pause_s, PAUSE_S_MAX)
                    if not self._stopped.is_set():
                        continue
                    may_pass = False
                limit = f"; gave up after {self.limit_s:g} s (--timeout)" if may_pass else ""
                if repeats >= REPEATS_MAX:
                    limit = _WAITING_TEXT
                self._give_up(error, message, message_id, limit)
            self._is_topic_known = self._has_stored = True
            self._is_outage_named = False
            self.repeated_count += message_id in self._unanswered
            self._unanswered.discard(message_id)
            return result

    async def _attempt(
        self, producer: Producer, message: Message, message_id: str, deadline: float
    ) -> SendResult:
        """Send a message; the attempt ends soon after the deadline.

        If an earlier attempt went unanswered, wait until a broker answers, and send to it once: a
        hanging broker keeps each attempt in its socket buffers, and stores all of them later.
        """
        queue = None
        if message_id in self._unanswered:
            queue = await answering_queue(producer, message.topic)
        timeout_ms = SEND_TIMEOUT_MS
        if self.limit_s:
            left_ms = int((deadline - monotonic()) * 1_000)
            timeout_ms = min(timeout_ms, max(left_ms, ATTEMPT_MS_MIN))
        return await producer.send(message, queue=queue, timeout_ms=timeout_ms)

    def _give_up(
        self, error: CometError, message: Message, message_id: str, limit: str
    ) -> NoReturn:
        """Raise the error of the last attempt, or an error that covers all attempts."""
        if message_id in self._unanswered:
            is_last = isinstance(error, SendFailed) and error.may_be_stored
            text = str(error) if is_last else _uncertain_text(message, error)
            raise MaybeStored(text + limit) from error
        if not limit:
            raise error
        if isinstance(error, NoNamesrv):  # keeps its class and cause: `main` adds hints
            raise NoNamesrv(f"{error}{limit}") from error.__cause__
        raise ClientError(f"{error}{limit}") from error

    def stop(self) -> None:
        """Let each pending send end with its current attempt, or at once if it is backing off."""
        self._stopped.set()

    async def _pause(self, pause_s: float) -> None:
        """Wait for some seconds, or until the retries are stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._stopped.wait()

    def _may_pass(self, error: CometError) -> bool:
        """Return whether waiting may help.

        A topic that no name server knows may be misspelt, unless a broker has received a message
        for it. A name server that has just started knows no topic until brokers have registered
        again.
        """
        cause = (error.__cause__ or error) if isinstance(error, SendFailed) else error
        if isinstance(cause, CommandError):
            return cause.code in BUSY
        if isinstance(cause, NoRoute):
            return self._is_topic_known or self._had_no_namesrv
        if isinstance(cause, NoNamesrv):  # a wrong address or TLS key does not become right
            is_tls = cause.__cause__ is not None and isinstance(cause.__cause__.__cause__, SSLError)
            self._had_no_namesrv = not (isinstance(cause, WrongServer) or is_tls)
            return self._had_no_namesrv
        return isinstance(cause, TransportError | BrokerMissing)

    def _name_outage(self, error: CometError) -> None:
        """Print only the first failure of an outage, because all sends in flight fail for the same
        reason.
        """
        if not self._is_outage_named:
            self._is_outage_named = True
            say(f"cometmq: {error}; trying again for {self.limit_s:g} s", err=True)


_WAITING_TEXT: Final = (
    "; the broker answers other requests, so it may be waiting for a slave or a disk that hangs:"
    " cometmq cluster"
)


def _has_timed_out(error: CometError) -> bool:
    """Return whether a broker took a send and left it unanswered."""
    is_send = isinstance(error, SendFailed) and error.may_be_stored
    return is_send and isinstance(error.__cause__, RequestTimeout)


def _uncertain_text(message: Message, error: CometError) -> str:
    """Return an error message that also mentions the earlier, unanswered attempt."""
    reason = (error.__cause__ or error) if isinstance(error, SendFailed) else error
    return (
        f"no broker has confirmed the message to the topic {message.topic}, which may be stored:"
        f" an earlier attempt was not answered; the last one failed: {reason}"
    )
