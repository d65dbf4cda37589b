# SPDX-License-Identifier: Apache-2.0
"""Members join and leave at random while messages flow and a broker restarts."""

import asyncio
import random
from collections import defaultdict

import pytest

from cometmq.client import (
    ConsumeFrom,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ProducerOptions,
    PushOptions,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import consumer_of

QUEUES = [MessageQueue("T", name, n) for name in ("broker-a", "broker-b") for n in range(4)]
STEP_COUNT = 12
SENT_PER_STEP = 5
MEMBER_COUNT_MAX = 4


@pytest.fixture
async def cluster(pair: MemoryCluster) -> MemoryCluster:
    pair.create_topic("T", queue_count=4)
    return pair


class Group:
    """The members of one group, and their consumed messages in order."""

    def __init__(self, cluster: MemoryCluster, seed: int, *, orderly: bool) -> None:
        self.random = random.Random(seed)
        self.offsets: defaultdict[MessageQueue, list[int]] = defaultdict(list)
        self.overlaps = 0
        self._cluster = cluster
        self._options = PushOptions(
            consume_from=ConsumeFrom.FIRST_OFFSET,
            orderly=orderly,
            pull_count_max=3,
            suspend_ms=200,
            persist_offset_interval_ms=50,
        )
        self._running: set[MessageQueue] = set()
        self._members: list[asyncio.Task[None]] = []
        self._ends: list[asyncio.Event] = []

    async def listener(self, messages: list[MessageExt]) -> None:
        queue = messages[0].queue
        self.overlaps += queue in self._running
        self._running.add(queue)
        await asyncio.sleep(self.random.random() * 0.004)
        self._running.discard(queue)
        if queue.topic == "T":
            self.offsets[queue] += [message.queue_offset for message in messages]

    async def member(self, end: asyncio.Event) -> None:
        async with consumer_of(self._cluster, self.listener, self._options):
            await end.wait()

    def step(self, tasks: asyncio.TaskGroup) -> None:
        can_leave = len(self._ends) > 1
        if can_leave and (len(self._ends) == MEMBER_COUNT_MAX or self.random.random() < 0.5):
            self._ends.pop(self.random.randrange(len(self._ends))).set()
        else:
            self._ends.append(asyncio.Event())
            tasks.create_task(self.member(self._ends[-1]))

    def finish(self) -> None:
        for end in self._ends:
            end.set()

    def is_complete(self, each: int) -> bool:
        return all(set(self.offsets[queue]) >= set(range(each)) for queue in QUEUES)


def patient(cluster: MemoryCluster) -> Producer:
    """Return a producer that waits as long as a busy machine may need."""
    options = ProducerOptions(send_timeout_ms=60_000)
    return Producer("pg", cluster.namesrv, options=options)


async def send_some(producer: Producer, step: int) -> None:
    for number in range(SENT_PER_STEP):
        for queue in QUEUES:
            body = b"%d" % (step * SENT_PER_STEP + number)
            await producer.send(Message("T", body), queue=queue)


async def run_storm(cluster: MemoryCluster, group: Group) -> None:
    async with asyncio.TaskGroup() as tasks, patient(cluster) as producer:
        group.step(tasks)
        for step in range(STEP_COUNT):
            group.step(tasks)
            await send_some(producer, step)
            await asyncio.sleep(group.random.random() * 0.1)
        await eventually(lambda: group.is_complete(STEP_COUNT * SENT_PER_STEP), timeout_s=60)
        group.finish()


@pytest.mark.parametrize("seed", range(3))
async def test_order_holds_without_duplicates(cluster: MemoryCluster, seed: int) -> None:
    group = Group(cluster, seed, orderly=True)
    await run_storm(cluster, group)
    assert group.overlaps == 0
    for queue in QUEUES:
        assert group.offsets[queue] == list(range(STEP_COUNT * SENT_PER_STEP)), queue
    assert all(broker.locks == {} for broker in cluster.brokers)


@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_delivery_loses_no_message(cluster: MemoryCluster, seed: int) -> None:
    group = Group(cluster, seed, orderly=False)
    await run_storm(cluster, group)
    committed = cluster.committed("cg", "T")
    for queue in QUEUES:  # a member that leaves late may move the offset back, never forward
        consumed = set(group.offsets[queue])
        assert set(range(committed[queue])) <= consumed
        assert consumed == set(range(STEP_COUNT * SENT_PER_STEP))


@pytest.mark.parametrize("seed", range(2))
async def test_a_restarted_broker_loses_no_message_and_no_offset(
    cluster: MemoryCluster, seed: int
) -> None:
    """Clients resend the offsets that the broker lost, so each message is consumed once."""
    group = Group(cluster, seed, orderly=True)
    broker = cluster.brokers[1]
    async with asyncio.TaskGroup() as tasks, patient(cluster) as producer:
        for _ in range(2):
            group.step(tasks)
        for step in range(4):
            await send_some(producer, step)
            await eventually(lambda n=step: group.is_complete((n + 1) * SENT_PER_STEP))  # type: ignore[arg-type, misc]
            await cluster.stop_broker(broker)
            broker.locks.clear()
            await cluster.start_broker(broker)
        await send_some(producer, 4)
        await eventually(lambda: group.is_complete(5 * SENT_PER_STEP), timeout_s=60)
        group.finish()
    assert group.overlaps == 0
    for queue in QUEUES:
        assert sorted(set(group.offsets[queue])) == list(range(5 * SENT_PER_STEP)), queue
