# SPDX-License-Identifier: Apache-2.0
"""The demo's workload, and the ledger of sent, acknowledged and received messages."""

import asyncio
from collections import Counter
from itertools import count, pairwise
from time import monotonic
from typing import Final

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    PushOptions,
    SendStatus,
)
from cometmq.client.admin import AdminClient
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG

TOPIC: Final = "Ledger"
SENDER_COUNT: Final = 8
PAUSE_S: Final = 0.004
DRAIN_TIMEOUT_S: Final = 30


class Ledger:
    """The messages sent, acknowledged and received, by number."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, float] = {}
        """When each message was acknowledged, on the monotonic clock."""
        self.failed: dict[int, str] = {}
        """The error of each failed send; its message may be stored nevertheless."""
        self.received: Counter[int] = Counter()

    @property
    def lost(self) -> set[int]:
        """Messages that were acknowledged but never received."""
        return self.acknowledged.keys() - self.received.keys()

    @property
    def repeated_count(self) -> int:
        """The total number of repeated deliveries."""
        return self.received.total() - len(self.received)

    def longest_pause_s(self, since: float) -> float:
        """Return the longest time without an acknowledgement after `since`."""
        times = sorted(time for time in self.acknowledged.values() if time >= since)
        return max((later - earlier for earlier, later in pairwise([since, *times])), default=0.0)


class Load:
    """Senders and a consumer that run until they are stopped."""

    def __init__(self, namesrv: str) -> None:
        self.ledger = Ledger()
        self._namesrv = namesrv
        self._numbers = count()
        self._is_sending = True

    async def run(self) -> None:
        """Send and consume until `stop`, then wait until everything has arrived."""
        async with AdminClient(self._namesrv, log=NO_LOG) as admin:
            await admin.create_topic(TOPIC)
        consumer = PushConsumer(
            "ledger-readers",
            self._namesrv,
            listener=self._receive,
            options=PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET),
            log=NO_LOG,
        )
        consumer.subscribe(TOPIC)
        async with Producer("ledger-senders", self._namesrv, log=NO_LOG) as producer, consumer:
            async with asyncio.TaskGroup() as group:
                for _ in range(SENDER_COUNT):
                    group.create_task(self._send(producer))
            await self._drain()

    def stop(self) -> None:
        """Stop sending."""
        self._is_sending = False

    async def _receive(self, messages: list[MessageExt]) -> None:
        self.ledger.received.update(int(message.body) for message in messages)

    async def _send(self, producer: Producer) -> None:
        while self._is_sending:
            number = next(self._numbers)
            try:
                result = await producer.send(Message(TOPIC, b"%d" % number))
            except CometError as error:
                self.ledger.failed[number] = str(error)
            else:
                # Any other status: some in-sync copies lack the message, so a failover may lose it.
                if result.status is SendStatus.SEND_OK:
                    self.ledger.acknowledged[number] = monotonic()
                else:
                    self.ledger.failed[number] = result.status.name
            await asyncio.sleep(PAUSE_S)

    async def _drain(self) -> None:
        for _ in range(DRAIN_TIMEOUT_S * 10):
            if not self.ledger.lost:
                return
            await asyncio.sleep(0.1)
