# SPDX-License-Identifier: Apache-2.0
"""Locks of an orderly member: validity, renewal and expiry."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client import ClientOptions, MessageQueue
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.consume.queues.locks import VALID_MS, QueueLocks
from cometmq.client.consume.queues.reader import ProcessQueue
from cometmq.client.testing import HANG, MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import RequestTimeout
from cometmq.remoting.log import NO_LOG
from cometmq.testing.client.messages import message_ext

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


class Offsets:
    """A member that has consumed up to offset 5; the test sets the broker's answer and its
    delay.
    """

    def __init__(self) -> None:
        self.stored: int | None = 5
        self.errors: list[Exception] = []
        self.asked, self.may_read = asyncio.Event(), asyncio.Event()
        self.may_read.set()

    def position(self, _: MessageQueue) -> int:
        return 5

    async def read(self, _: MessageQueue) -> int | None:
        self.asked.set()
        await self.may_read.wait()
        if self.errors:
            raise self.errors.pop()
        return self.stored


class Locked:
    """One member's locks, with a manual clock."""

    def __init__(self, instance: ClientInstance) -> None:
        self.clock = Clock()
        self.lost: list[MessageQueue] = []
        self.offsets = Offsets()
        parts: Any = SimpleNamespace(instance=instance, group="cg", offsets=self.offsets)
        self.locks = QueueLocks(
            parts,
            lost=self.lost.extend,
            retry_ms=5,
            clock_ms=self.clock,
        )


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


@pytest.mark.parametrize(
    ("stored", "are_valid", "lost"),
    [(5, True, []), (None, True, []), (6, False, QUEUES)],
    ids=["unchanged", "never stored", "consumed by another"],
)
async def test_an_expired_lock_is_renewed_if_the_offset_is_unchanged(
    locked: Locked, stored: int | None, are_valid: bool, lost: list[MessageQueue]
) -> None:
    """Another member may have locked and released the queue while our lock was expired."""
    await locked.locks.acquire(QUEUES)
    locked.offsets.stored = stored
    locked.clock.now_ms += VALID_MS + 1
    assert await locked.locks.renew()
    assert [locked.locks.is_valid(queue) for queue in QUEUES] == [are_valid] * 4
    assert locked.lost == lost


async def test_a_lock_that_ran_out_is_renewed_later_if_the_offset_is_not_known(
    locked: Locked,
) -> None:
    await locked.locks.acquire(QUEUES[:1])
    locked.offsets.errors = [RequestTimeout("no answer"), ValueError("foreign")]
    locked.clock.now_ms += VALID_MS + 1
    for _ in range(2):
        assert not await locked.locks.renew()
        assert not locked.locks.is_valid(QUEUES[0])
        assert locked.locks.is_held(QUEUES[0])
    assert await locked.locks.renew()
    assert locked.locks.is_valid(QUEUES[0])


@pytest.mark.parametrize("renews", [False, True])
async def test_a_lock_that_is_given_back_while_it_is_regained_stays_so(
    locked: Locked, cluster: MemoryCluster, renews: bool
) -> None:
    """Otherwise the member would renew the lock forever."""
    await locked.locks.acquire(QUEUES[:1])
    locked.clock.now_ms += VALID_MS + 1
    locked.offsets.may_read.clear()
    async with asyncio.TaskGroup() as group:
        regain = locked.locks.renew() if renews else locked.locks.recover(QUEUES[0])
        group.create_task(regain)
        await locked.offsets.asked.wait()
        await locked.locks.release(QUEUES[:1])
        locked.offsets.may_read.set()
    assert not locked.locks.is_held(QUEUES[0])
    assert locked.lost == []
    assert cluster.broker.locks == {}


async def test_a_refused_renewal_loses_the_queue(locked: Locked, cluster: MemoryCluster) -> None:
    await locked.locks.acquire(QUEUES)
    cluster.broker.locks["cg", QUEUES[2]] = "somebody"
    assert await locked.locks.renew()
    assert locked.lost == [QUEUES[2]]
    assert not locked.locks.is_valid(QUEUES[2])
    await locked.locks.release_all()
    assert cluster.broker.locks == {("cg", QUEUES[2]): "somebody"}


async def test_an_unconfirmed_lock_is_released_too(locked: Locked, cluster: MemoryCluster) -> None:
    """The broker may have granted the request even though it was cancelled."""
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
    assert await locked.locks.recover(QUEUES[0]) is None


# -- consequences -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [RequestTimeout("no answer"), ValueError("foreign")], ids=["late", "foreign"]
)
async def test_an_offset_that_cannot_be_read_gives_no_queue_up(
    locked: Locked, error: Exception
) -> None:
    """Otherwise consumed messages whose offsets are not saved would be redelivered, despite our
    lock.
    """
    held = ProcessQueue(QUEUES[0], 5)
    locked.offsets.errors = [error]
    assert await locked.locks.recovers(held)
    assert locked.locks.is_valid(QUEUES[0])
    assert locked.lost == []


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
    if owner is not None:
        cluster.broker.locks["cg", QUEUES[0]] = owner
    held = ProcessQueue(QUEUES[0], 5)
    held.put([message_ext(5)], 6)
    locked.offsets.stored = stored
    assert not locked.locks.is_valid(QUEUES[0])
    assert await locked.locks.recovers(held) is expected
    assert locked.lost == ([] if expected else [QUEUES[0]])
    assert locked.locks.is_valid(QUEUES[0]) is expected


async def test_recovering_waits_for_the_broker_and_ends_with_the_queue(
    locked: Locked, cluster: MemoryCluster
) -> None:
    await cluster.stop_broker(cluster.broker)
    held = ProcessQueue(QUEUES[0], 5)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(locked.locks.recovers(held))
        await eventually(lambda: not waiting.done())
        await cluster.start_broker(cluster.broker)
    assert waiting.result()
    held.is_leaving = True
    assert not await locked.locks.recovers(held)
    assert locked.lost == []


async def test_queues_that_stay_locked_by_another_member_are_logged_once(
    locked: Locked, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, Any]] = []
    log = SimpleNamespace(warning=lambda event, **facts: logged.append({"event": event, **facts}))
    monkeypatch.setattr(locked.locks._instance, "log", log)
    for queue in QUEUES[:2]:
        cluster.broker.locks["cg", queue] = "another member"
    for _ in range(12):  # members retry every second
        assert sorted(await locked.locks.acquire(QUEUES)) == QUEUES[2:]
        locked.clock.now_ms += 1_000
    (found,) = logged
    assert found["event"] == "queues.locked_elsewhere"
    assert (found["topic"], sorted(found["queue_ids"])) == ("T", [0, 1])
    cluster.broker.locks.clear()
    assert sorted(await locked.locks.acquire(QUEUES)) == QUEUES


async def test_refusals_that_are_far_apart_are_not_one_wait(
    locked: Locked, cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    log = SimpleNamespace(warning=lambda event, **_: logged.append(event))
    monkeypatch.setattr(locked.locks._instance, "log", log)
    cluster.broker.locks["cg", QUEUES[0]] = "another member"
    for _ in range(3):
        await locked.locks.acquire(QUEUES[:1])
        locked.clock.now_ms += 20_000
    assert logged == []
