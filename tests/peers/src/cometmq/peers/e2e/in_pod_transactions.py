# SPDX-License-Identifier: Apache-2.0
"""Sends half messages inside a pod, and consumes them, until a line of JSON asks for the totals."""

import asyncio
import json
import sys
from contextlib import suppress
from itertools import count
from typing import Any, Final

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    PushConsumer,
    PushOptions,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.peers.e2e.in_pod import say
from cometmq.peers.errors import PeerError
from cometmq.peers.ha.load import PAUSE_AFTER_FAILURE_S, create_topic, until
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG

TOPIC: Final = "Transactions"
PAUSE_S: Final = 0.03
QUIET_S: Final = 10
"""A message that is resolved twice, or against its outcome, arrives within this time."""


class Transactions:
    """Numbered transactions; even ones are ended by the producer, odd ones after a check."""

    def __init__(self) -> None:
        self.stored: set[int] = set()
        """Transactions whose half message is acknowledged."""
        self.checked: set[int] = set()
        self.failed_count = 0
        self.places: dict[int, set[tuple[int, int]]] = {}
        """Where each number was consumed: more than one place means that it was resolved twice."""

    async def execute(self, _: Message, number: int) -> TransactionState:
        self.stored.add(number)
        return TransactionState.UNKNOWN if number % 2 else _outcome(number)

    async def check(self, message: MessageExt) -> TransactionState:
        """Answer for a half message whose producer may have counted it as failed."""
        number = int(message.body)
        self.checked.add(number)
        return _outcome(number) if number in self.stored else TransactionState.ROLLBACK

    async def receive(self, messages: list[MessageExt]) -> None:
        for message in messages:
            place = (message.queue.queue_id, message.queue_offset)
            self.places.setdefault(int(message.body), set()).add(place)

    def missing(self) -> list[int]:
        committed = {it for it in self.stored if _outcome(it) is TransactionState.COMMIT}
        return sorted(committed - self.places.keys())

    def result(self) -> dict[str, Any]:
        committed = {it for it in self.stored if _outcome(it) is TransactionState.COMMIT}
        return {
            "stored": len(self.stored),
            "checked": len(self.checked),
            "failed": self.failed_count,
            "missing": self.missing()[:20],
            "unexpected": sorted(self.places.keys() - committed)[:20],
            "twice": sorted(it for it, places in self.places.items() if len(places) > 1)[:20],
        }

    async def send(self, producer: TransactionProducer) -> None:
        """Send until cancelled."""
        for number in count():
            try:
                await producer.send_in_transaction(Message(TOPIC, b"%d" % number), number)
            except CometError:
                self.failed_count += 1
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            else:
                await asyncio.sleep(PAUSE_S)


def _outcome(number: int) -> TransactionState:
    return TransactionState.ROLLBACK if number % 4 < 2 else TransactionState.COMMIT


async def main(namesrv: str) -> None:
    loop = asyncio.get_running_loop()
    transactions = Transactions()
    await create_topic(namesrv, TOPIC)
    # A repeated send may store two half messages with one id, which no check can tell apart.
    options = TransactionOptions(retry_times=0)
    producer = TransactionProducer(
        "transactions", namesrv, check=transactions.check, execute=transactions.execute,
        options=options, log=NO_LOG,
    )  # fmt: skip
    consumer = PushConsumer(
        "transaction-readers", namesrv, listener=transactions.receive,
        options=PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET), log=NO_LOG,
    )  # fmt: skip
    consumer.subscribe(TOPIC)
    async with consumer, producer:
        async with asyncio.TaskGroup() as tasks:
            sender = tasks.create_task(transactions.send(producer))
            await until(lambda: bool(transactions.places), "a transaction is consumed")
            say("running")
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                if json.loads(line)["do"] == "finish":
                    break
            sender.cancel()
        with suppress(PeerError):  # the result names the missing ones
            await until(lambda: not transactions.missing(), "all transactions are consumed")
        await asyncio.sleep(QUIET_S)
    say(transactions.result())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
