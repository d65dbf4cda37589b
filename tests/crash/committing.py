# SPDX-License-Identifier: Apache-2.0
"""Consumers that commit, and count the committed messages that are redelivered to them."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import Final

from cometmq.peers.broker.client import Client
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import TransportError
from cometmq.remoting.message.record import decode_records

TOPIC: Final = "consumed"
QUEUE_COUNT: Final = 8
GROUPS: Final = ("fast", "slow", "batch")
SENDER_COUNT: Final = 4
SENT_TOGETHER: Final = 20
PULL_WAIT_MS: Final = 100


class Progress:
    """The progress of one group in one queue, across all runs of the broker."""

    def __init__(self) -> None:
        self.sent = 0  # offset of the last commit sent
        self.answered = 0  # offset of the last commit that the broker has answered
        self.got = 0  # end of the messages that were delivered
        self.delivered_count = 0
        self.in_flight_count = 0  # redelivered, and the commit went unanswered
        self.again_count = 0  # redelivered even though the commit was answered


class Committing:
    """Senders, plus one consumer per group and queue; all resume after each broker restart."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.progress = {
            (group, queue_id): Progress() for group in GROUPS for queue_id in range(QUEUE_COUNT)
        }

    @property
    def delivered_count(self) -> int:
        return sum(one.delivered_count for one in self.progress.values())

    @property
    def in_flight_count(self) -> int:
        return sum(one.in_flight_count for one in self.progress.values())

    @property
    def again_count(self) -> int:
        return sum(one.again_count for one in self.progress.values())

    async def create(self, address: str) -> None:
        async with Client(address) as client:
            await client.create_topic(TOPIC, QUEUE_COUNT)

    async def until_death(
        self, address: str, die: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        """Work until `die` has killed the broker and every worker has noticed."""
        clients = {name: Client(address) for name in (*GROUPS, "sender")}
        jobs = [
            self._consume(clients[group], group, queue_id, progress)
            for (group, queue_id), progress in self.progress.items()
        ]
        jobs += [self._send(clients["sender"]) for _ in range(SENDER_COUNT)]
        async with asyncio.TaskGroup() as group:
            group.create_task(die())
            for job in jobs:
                group.create_task(_end_with_broker(job))
        for client in clients.values():
            async with client:
                pass

    async def look(self, address: str) -> list[str]:
        """Return each group and queue whose offset is below its last acknowledged commit."""
        wrong = []
        async with Client(address) as client:
            for (group, queue_id), one in self.progress.items():
                found = await client.committed(group, TOPIC, queue_id)
                if not one.answered <= found <= one.sent:
                    wrong.append(
                        f"{group} {queue_id}: offset {found}, not {one.answered} to {one.sent}"
                    )
        return wrong

    async def _send(self, client: Client) -> None:
        while True:
            bodies = [("", b"x" * 100)] * SENT_TOGETHER
            await client.send_batch(TOPIC, self._random.randrange(QUEUE_COUNT), bodies)

    async def _consume(self, client: Client, group: str, queue_id: int, progress: Progress) -> None:
        """Pull and commit alternately, as clients do: with the next pull, or by a request."""
        offset = await client.committed(group, TOPIC, queue_id)
        while True:
            committed = offset
            progress.sent = max(progress.sent, committed)
            answer = await client.pull(
                TOPIC, queue_id, offset, group=group, count=32, wait_ms=PULL_WAIT_MS,
                commit=committed,
            )  # fmt: skip
            progress.answered = max(progress.answered, committed)
            if answer.code == ResponseCode.SUCCESS:
                for record in decode_records(answer.body):
                    _note(progress, record.queue_offset)
                    offset = record.queue_offset + 1
            if self._random.random() < 0.2:
                progress.sent = max(progress.sent, offset)
                await client.commit(group, TOPIC, queue_id, offset)
                progress.answered = max(progress.answered, offset)


def _note(progress: Progress, queue_offset: int) -> None:
    progress.delivered_count += 1
    if queue_offset < progress.answered:
        progress.again_count += 1
    elif queue_offset < progress.got:
        progress.in_flight_count += 1
    progress.got = max(progress.got, queue_offset + 1)


async def _end_with_broker(job: Coroutine[None, None, None]) -> None:
    with contextlib.suppress(TransportError):
        await job
