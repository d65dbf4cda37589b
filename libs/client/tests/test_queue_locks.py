# SPDX-License-Identifier: Apache-2.0
"""Locks of an orderly member: how long they are ours, and what follows when they run out."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from cometmq.client import ClientOptions, MessageQueue
from cometmq.client.instance import ClientInstance
from cometmq.client.process_queue import ProcessQueue
from cometmq.client.queue_guards import LockGuards
from cometmq.client.queue_locks import VALID_MS, QueueLocks
from cometmq.client.testing import HANG, MemoryCluster, eventually
from cometmq.client.testing.messages import message_ext
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import RequestTimeout
from cometmq.remoting.log import NO_LOG

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


class Locked:
    """Locks of one member with a clock of their own."""

    def __init__(self, instance: ClientInstance) -> None:
        self.clock = Clock()
        self.lost: list[MessageQueue] = []
        self.locks = QueueLocks(instance, "cg", lost=self.lost.extend, clock_ms=self.clock)


@pytest.fixture
async def locked(cluster: MemoryCluster) -> AsyncIterator[Locked]:
    options = ClientOptions(namesrv=cluster.namesrv)
    instance = await ClientInstance.acquire(options, log=NO_LOG)
    await instance.routes.find("T")
    yield Locked(instance)
    await instance.release()


async def test_a_lock_is_ours_for_thirty_seconds(locked: Locked, cluster: MemoryCluster) -> None:
    assert sorted(await locked.locks.acquire(QUEUES)) == QUEUES
    assert set(cluster.broker.locks) == {("cg", queue) for queue in QUEUES}
    locked.clock.now_ms += VALID_MS
    assert locked.locks.is_valid(QUEUES[0])
    locked.clock.now_ms += 1
    assert not locked.locks.is_valid(QUEUES[0])
    assert sorted(await locked.locks.acquire(QUEUES)) == QUEUES
    assert locked.locks.is_valid(QUEUES[0])
    await locked.locks.release(QUEUES[:1])
    assert not locked.locks.is_valid(QUEUES[0])
    assert set(cluster.broker.locks) == {("cg", queue) for queue in QUEUES[1:]}


async def test_a_lock_that_ran_out_is_not_renewed_in_silence(
    locked: Locked, cluster: MemoryCluster
) -> None:
    """Another member may have had it, consumed, and given it back: that has to be looked at."""
    await locked.locks.acquire(QUEUES)
    locked.clock.now_ms += VALID_MS + 1
    await locked.locks.acquire(QUEUES[:1])
    count = cluster.broker.requests[LOCK]
    cluster.broker.locks.clear()
    assert await locked.locks.renew()
    assert cluster.broker.requests[LOCK] == count + 1
    assert set(cluster.broker.locks) == {("cg", QUEUES[0])}
    assert [locked.locks.is_valid(queue) for queue in QUEUES] == [True, False, False, False]
    await locked.locks.release_all()
    assert cluster.broker.locks == {}


async def test_what_a_renewal_does_not_get_is_lost(locked: Locked, cluster: MemoryCluster) -> None:
    await locked.locks.acquire(QUEUES)
    cluster.broker.locks["cg", QUEUES[2]] = "somebody"
    assert await locked.locks.renew()
    assert locked.lost == [QUEUES[2]]
    assert not locked.locks.is_valid(QUEUES[2])
    await locked.locks.release_all()
    assert cluster.broker.locks == {("cg", QUEUES[2]): "somebody"}


async def test_a_lock_that_nobody_confirmed_is_given_back_too(
    locked: Locked, cluster: MemoryCluster
) -> None:
    """A cancelled question may have been answered at the broker."""
    cluster.broker.fail(LOCK, HANG)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(locked.locks.acquire(QUEUES[:1]))
        await eventually(lambda: cluster.broker.requests[LOCK] == 1)
        asking.cancel()
    await locked.locks.release_all()
    assert cluster.broker.requests[UNLOCK] == 1


async def test_a_queue_released_during_a_renewal_stays_released(
    locked: Locked, cluster: MemoryCluster
) -> None:
    await locked.locks.acquire(QUEUES)
    async with asyncio.TaskGroup() as group:
        group.create_task(locked.locks.renew())
        group.create_task(locked.locks.release(QUEUES))
    assert cluster.broker.locks == {}
    assert not locked.locks.is_valid(QUEUES[0])


async def test_a_broker_that_does_not_answer_takes_no_lock_away(
    locked: Locked, cluster: MemoryCluster
) -> None:
    await locked.locks.acquire(QUEUES)
    await cluster.stop_broker(cluster.broker)
    assert not await locked.locks.renew()
    assert locked.lost == []
    assert locked.locks.is_valid(QUEUES[0])

    async def is_unchanged() -> bool:
        raise AssertionError("nobody has locked it")

    assert await locked.locks.recover(QUEUES[0], is_unchanged) is None


# -- what follows -----------------------------------------------------------------------------


class Offsets:
    """An offset at the broker, which cannot be read at first if a test wants that."""

    def __init__(self, stored: int | None, *errors: Exception) -> None:
        self.stored = stored
        self._errors = list(errors)

    async def read(self, _: MessageQueue) -> int | None:
        if self._errors:
            raise self._errors.pop()
        return self.stored


def guards_of(locked: Locked, offsets: Offsets, begin_anew: Any) -> LockGuards:
    return LockGuards(
        locked.locks,
        offsets,  # type: ignore[arg-type]
        begin_anew=begin_anew,
        log=NO_LOG,
        retry_ms=5,
    )


async def never(_: Collection[MessageQueue]) -> None:
    raise AssertionError("nobody else has the queue")


@pytest.mark.parametrize(
    "error", [RequestTimeout("no answer"), ValueError("foreign")], ids=["late", "foreign"]
)
async def test_an_offset_that_cannot_be_read_gives_no_queue_up(
    locked: Locked, error: Exception
) -> None:
    """What was consumed and is not stored yet would come again, although the lock is ours."""
    held = ProcessQueue(QUEUES[0], 5)
    guards = guards_of(locked, Offsets(5, error), never)
    assert await guards.recovers(held)
    assert guards.is_valid(QUEUES[0])


@pytest.mark.parametrize(
    ("owner", "stored", "expected"),
    [
        (None, 5, True),
        (None, None, True),
        (None, 6, False),
        ("somebody", 5, False),
    ],
    ids=["unchanged", "never stored", "consumed by another", "of another"],
)
async def test_a_lock_that_ran_out_recovers_unless_another_had_it(
    locked: Locked,
    cluster: MemoryCluster,
    owner: str | None,
    stored: int | None,
    expected: bool,
) -> None:
    begun_anew: list[MessageQueue] = []

    async def begin_anew(queues: Collection[MessageQueue]) -> None:
        begun_anew.extend(queues)

    if owner is not None:
        cluster.broker.locks["cg", QUEUES[0]] = owner
    held = ProcessQueue(QUEUES[0], 5)
    held.put([message_ext(5)], 6)
    guards = guards_of(locked, Offsets(stored), begin_anew)
    assert not guards.is_valid(QUEUES[0])
    assert await guards.recovers(held) is expected
    assert begun_anew == ([] if expected else [QUEUES[0]])
    assert guards.is_valid(QUEUES[0]) is expected


async def test_recovering_waits_for_the_broker_and_ends_with_the_queue(
    locked: Locked, cluster: MemoryCluster
) -> None:
    await cluster.stop_broker(cluster.broker)
    held = ProcessQueue(QUEUES[0], 5)
    guards = guards_of(locked, Offsets(5), never)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(guards.recovers(held))
        await eventually(lambda: not waiting.done())
        await cluster.start_broker(cluster.broker)
    assert waiting.result()
    held.is_leaving = True
    assert not await guards.recovers(held)
