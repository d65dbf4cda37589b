# SPDX-License-Identifier: Apache-2.0
"""Makes all kinds of writes at once until the broker dies: sends, topics and groups, offsets."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import Final

from tests.crash.acknowledged import Acknowledged

from cometmq.peers.broker.client import Client
from cometmq.remoting.errors import TransportError

TOPIC: Final = "load"
DELAYED_TOPIC: Final = "delayed"
QUEUE_COUNT: Final = 4
GROUP: Final = "readers"
CONNECTION_COUNT: Final = 3
WORKERS_PER_CONNECTION: Final = 8
BIG_BODY_BYTES: Final = 60_000
TABLE_CHANGES_MAX: Final = 40


class Workload:
    """One run against one broker process; the workers end when it dies."""

    def __init__(self, address: str, promised: Acknowledged, random: Random, run: int) -> None:
        """`run` is part of all names, so that runs do not collide."""
        self._address = address
        self._promised = promised
        self._random = random
        self._run = run
        self._clients = [Client(address) for _ in range(CONNECTION_COUNT + 1)]

    async def until_death(self, die: Callable[[], Coroutine[None, None, None]]) -> None:
        """Work until `die` has killed the broker and every worker has noticed."""
        *senders, admin = self._clients
        jobs = [
            self._send(client, f"r{self._run}w{number}c{connection}")
            for connection, client in enumerate(senders)
            for number in range(WORKERS_PER_CONNECTION)
        ]
        jobs += [
            self._send_delayed(admin, f"r{self._run}d"),
            self._change_tables(admin),
            self._commit(admin),
        ]
        async with asyncio.TaskGroup() as group:
            group.create_task(die())
            for job in jobs:
                group.create_task(self._end_with_broker(job))
        for client in self._clients:
            async with client:
                pass

    @staticmethod
    async def _end_with_broker(job: Coroutine[None, None, None]) -> None:
        with contextlib.suppress(TransportError):
            await job

    async def _send(self, client: Client, worker: str) -> None:
        random = Random(f"{self._random.random()}{worker}")
        number = 0
        while True:
            queue_id = random.randrange(QUEUE_COUNT)
            count = random.choice((1, 1, 1, 1, 1, 1, 2, 9))
            keyed = []
            for _ in range(count):
                body = random.randbytes(self._size(random))
                keyed.append((f"{worker}-{number}", body))
                self._promised.note_attempt(*keyed[-1])
                number += 1
            await self._send_keyed(client, queue_id, keyed)

    async def _send_keyed(
        self, client: Client, queue_id: int, keyed: list[tuple[str, bytes]]
    ) -> None:
        if len(keyed) == 1:
            ((key, body),) = keyed
            reply = await client.send(TOPIC, queue_id, body, keys=key)
        else:
            reply = await client.send_batch(TOPIC, queue_id, keyed)
        ids = reply.msg_id.split(",")
        assert len(ids) == len(keyed), reply
        for distance, (key, _) in enumerate(keyed):
            offset = reply.queue_offset + distance
            self._promised.note_place((TOPIC, queue_id), offset, key, ids[distance])

    @staticmethod
    def _size(random: Random) -> int:
        return BIG_BODY_BYTES if random.random() < 0.003 else random.choice((1, 40, 200, 900))

    async def _send_delayed(self, client: Client, worker: str) -> None:
        number = 0
        while True:
            key, body = f"{worker}-{number}", self._random.randbytes(50)
            self._promised.note_attempt(key, body)
            if number % 3:
                await client.send(DELAYED_TOPIC, 0, body, keys=key, level=1 + number % 3)
            else:  # passes through two or three levels
                await client.send(DELAYED_TOPIC, 0, body, keys=key, delay_ms=6_400 + number % 7_000)
            self._promised.note_delayed(key)
            number += 1

    async def _change_tables(self, client: Client) -> None:
        for number in range(TABLE_CHANGES_MAX):
            topic, count = f"topic-{self._run}-{number}", self._random.randint(1, 9)
            await client.create_topic(topic, count)
            self._promised.topics[topic] = count
            group = f"group-{self._run}-{number}"
            await client.create_group(group, count)
            self._promised.groups[group] = count
            if number % 4 == 0:
                del self._promised.topics[topic]
                await client.delete_topic(topic)
                self._promised.deleted_topics.add(topic)

    async def _commit(self, client: Client) -> None:
        while True:
            for queue_id in range(QUEUE_COUNT):
                queue = (TOPIC, queue_id)
                offset = self._promised.commit_max.get(queue, 0) + 1
                self._promised.commit_max[queue] = offset
                await client.commit(GROUP, *queue, offset)
                self._promised.note_commit(queue, offset)
