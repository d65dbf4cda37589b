# SPDX-License-Identifier: Apache-2.0
"""`member NAME NAMESRV JOURNAL`: runs a member of the groups of both topics until SIGTERM."""

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import Final

import msgspec
from tests.load.journal import ASSIGNED, BEGUN, ENDED, REVOKED, JournalWriter

from cometmq.client import (
    ConsumeFrom,
    MessageExt,
    MessageQueue,
    PushConsumer,
    PushOptions,
    on_signal,
)

PLAIN_TOPIC: Final = "churn-plain"
ORDERED_TOPIC: Final = "churn-ordered"
WORK_S_MAX: Final = 0.01
READY: Final = "member.ready"
"""Printed as soon as SIGTERM makes the member leave cleanly."""


class PrintedLog:
    """Prints the client's log, from level info upwards."""

    def debug(self, event: str, /, **facts: object) -> None:
        """Drop debug messages."""

    def info(self, event: str, /, **facts: object) -> None:
        sys.stdout.write(f"{event} {msgspec.json.encode(facts, enc_hook=str).decode()}\n")
        sys.stdout.flush()

    warning = error = info


class NotingListener:
    """Records every message in the journal, and takes up to WORK_S_MAX to process it."""

    def __init__(self, journal: JournalWriter, random: Random) -> None:
        self._journal = journal
        self._random = random

    async def __call__(self, messages: list[MessageExt]) -> None:
        (message,) = messages
        place = (*_place(message.queue), message.queue_offset)
        self._journal.write(BEGUN, *place, message.keys[0])
        await asyncio.sleep(self._random.uniform(0, WORK_S_MAX))
        self._journal.write(ENDED, *place)

    async def assigned(self, queues: list[MessageQueue]) -> None:
        for queue in queues:
            self._journal.write(ASSIGNED, *_place(queue))

    async def revoked(self, queues: list[MessageQueue]) -> None:
        for queue in queues:
            self._journal.write(REVOKED, *_place(queue))


def consumer(topic: str, name: str, namesrv: str, listener: NotingListener) -> PushConsumer:
    one = PushConsumer(
        f"{topic}-group",
        namesrv,
        listener=listener,
        options=PushOptions(
            instance_name=name,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            orderly=topic == ORDERED_TOPIC,
        ),
        log=PrintedLog(),
    )
    one.on_assigned(listener.assigned)
    if topic == ORDERED_TOPIC:  # the other consumer tests members without a callback
        one.on_revoked(listener.revoked)
    one.subscribe(topic)
    return one


async def main(name: str, namesrv: str, journal: str) -> None:
    log = PrintedLog()
    listener = NotingListener(JournalWriter(Path(journal)), Random(journal))
    plain = consumer(PLAIN_TOPIC, name, namesrv, listener)
    ordered = consumer(ORDERED_TOPIC, name, namesrv, listener)
    ending = asyncio.Event()
    with on_signal(ending.set):
        log.info(READY)
        async with plain, ordered:
            await ending.wait()


def _place(queue: MessageQueue) -> tuple[object, ...]:
    return queue.topic, queue.broker_name, queue.queue_id


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
