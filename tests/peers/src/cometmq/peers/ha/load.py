# SPDX-License-Identifier: Apache-2.0
"""Senders and a group of orderly consumers that record every message in a ledger."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from time import monotonic
from typing import Final

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    SendResult,
    SendStatus,
)
from cometmq.client.admin import AdminClient
from cometmq.peers.errors import PeerError
from cometmq.peers.ha.ledger import Acknowledged, Ledger
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG

TOPIC: Final = "Ledger"
CONSUMERS: Final = "ledger-readers"
SENDER_COUNT: Final = 8
CONSUMER_COUNT: Final = 2
PAUSE_S: Final = 0.01
PAUSE_AFTER_FAILURE_S: Final = 0.05
DRAIN_TIMEOUT_S: Final = 240
POLL_S: Final = 0.1
SEND_TIMEOUT_MS: Final = 10_000
"""A switchover on a loaded machine may delay sends for longer than the default."""


class Load:
    """A load of several hundred messages per second.

    Even-numbered senders let the client choose queues and retry; odd-numbered senders always use
    one queue and make a single attempt per send.
    """

    def __init__(self, namesrv: str) -> None:
        self.ledger = Ledger()
        self._namesrv = namesrv
        self._numbers = count()
        self._is_sending = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Ledger]:
        """Send and consume inside the context; on leaving, wait for all acknowledged messages."""
        await create_topic(self._namesrv, TOPIC)
        async with AsyncExitStack() as stack:
            for number in range(CONSUMER_COUNT):
                await stack.enter_async_context(self._consumer(number))
            options = ProducerOptions(send_timeout_ms=SEND_TIMEOUT_MS)
            producer = Producer("ledger-senders", self._namesrv, options=options, log=NO_LOG)
            await stack.enter_async_context(producer)
            async with asyncio.TaskGroup() as group:
                for sender in range(SENDER_COUNT):
                    group.create_task(self._send(producer, sender))
                yield self.ledger
                self._is_sending = False
            with suppress(PeerError):  # the ledger names the messages that are missing
                await until(lambda: not self.ledger.lost(), "messages are consumed")

    def _consumer(self, number: int) -> PushConsumer:
        consumer = PushConsumer(
            CONSUMERS,
            self._namesrv,
            listener=self._receive,
            options=PushOptions(
                consume_from=ConsumeFrom.FIRST_OFFSET,
                instance_name=f"reader-{number}",
                orderly=True,
            ),
            log=NO_LOG,
        )
        consumer.subscribe(TOPIC)
        return consumer

    async def _receive(self, messages: list[MessageExt]) -> None:
        for message in messages:
            place = (message.queue.queue_id, message.queue_offset)
            self.ledger.receive(place, int(message.body))

    async def _send(self, producer: Producer, sender: int) -> None:
        ledger = self.ledger
        while self._is_sending:
            number = next(self._numbers)
            ledger.senders[number] = sender
            message = Message(TOPIC, b"%d" % number)
            began = ledger.pending[number] = monotonic()
            try:
                result = await _store(producer, message, sender)
            except CometError as error:
                ledger.failed[number] = (monotonic(), str(error))
                del ledger.pending[number]
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            else:
                place = (result.queue.queue_id, result.queue_offset)
                ledger.acknowledged[number] = Acknowledged(began, monotonic(), place)
                del ledger.pending[number]
                await asyncio.sleep(PAUSE_S)


async def create_topic(
    namesrv: str, topic: str, *, broker_names: Sequence[str] | None = None
) -> None:
    """Create a topic, in all broker groups or in these; try again if a loaded machine has not
    answered in time.
    """
    deadline = monotonic() + DRAIN_TIMEOUT_S
    async with AdminClient(namesrv, log=NO_LOG) as admin:
        while True:
            try:
                await admin.create_topic(topic, broker_names=broker_names)
            except CometError:
                if monotonic() > deadline:
                    raise
                await asyncio.sleep(POLL_S)
            else:
                return


async def until_settled(ledger: Ledger, moment: float) -> None:
    """Wait until every send that began before `moment` has an outcome.

    Otherwise a send that fails late would be attributed to the next fault.
    """
    pending = ledger.pending
    await until(lambda: all(began >= moment for began in pending.values()), "sends have an outcome")


async def until(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition; raise PeerError if it does not hold within `DRAIN_TIMEOUT_S`."""
    deadline = monotonic() + DRAIN_TIMEOUT_S
    while not condition():
        if monotonic() > deadline:
            raise PeerError(f"not within {DRAIN_TIMEOUT_S} s: {what}")
        await asyncio.sleep(POLL_S)


async def _store(producer: Producer, message: Message, sender: int) -> SendResult:
    """Send a message; raise CometError unless all in-sync copies have stored it."""
    if sender % 2:
        result = await producer.send_ordered(message, sender)
    else:
        result = await producer.send(message)
    if result.status is not SendStatus.SEND_OK:  # a failover may lose it
        raise CometError(result.status.name)
    return result
