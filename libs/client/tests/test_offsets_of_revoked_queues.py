# SPDX-License-Identifier: Apache-2.0
"""Offsets of revoked queues, which are stored only while ownership is certain."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client import ConsumeFrom, MessageQueue, PushConsumer, PushOptions
from cometmq.client.consume.queues import offsets, ownership
from cometmq.client.consume.queues.offsets import Positions
from cometmq.client.consume.queues.ownership import Ownership
from cometmq.client.consume.queues.parts import ConsumerParts, OwnershipCallbacks
from cometmq.client.consume.queues.reader import ProcessQueue
from cometmq.client.namespace import NO_NAMESPACE
from cometmq.client.testing import DISCONNECT, HANG, MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import ConnectionLost, RequestTimeout, SystemBusy
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.testing.client.listening import Recorder, consumer_of, send, texts

A, B = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
FAILURES = [
    RequestTimeout("no answer"),
    ConnectionLost("gone"),
    SystemBusy("busy"),
    OSError("disk"),
    ExceptionGroup("several", [ValueError("foreign")]),
]


class Store:
    """An offset store that fails a given number of times."""

    def __init__(self, events: list[str]) -> None:
        self.stored: list[tuple[MessageQueue, int]] = []
        self.failures: list[Exception] = []
        self.tried = asyncio.Event()
        self.positions = Positions()
        self._events = events

    def update(self, queue: MessageQueue, offset: int) -> None:
        self.positions.update(queue, offset, is_reset=False)

    def unsaved(self, queue: MessageQueue) -> int | None:
        return self.positions.unsaved(queue)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        await self.commit(queues)

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        wanted = sorted(self.positions.to_commit(queues))
        self.tried.set()
        if wanted and self.failures:
            raise self.failures.pop()
        for queue in wanted:
            self.stored.append((queue, self.positions.offsets[queue]))
            self.positions.note_sent(queue, is_answered=True)
            self._events.append("stored")

    def forget(self, queue: MessageQueue) -> None:
        self.positions.forget(queue)


class Locks:
    """Locks that a test can invalidate."""

    def __init__(self, events: list[str]) -> None:
        self.are_valid = self.are_held = True
        self.asked = asyncio.Event()
        self._events = events

    def is_valid(self, _: MessageQueue) -> bool:
        return self.are_valid

    def is_held(self, _: MessageQueue) -> bool:
        return self.are_held

    def renew_now(self) -> None:
        self.asked.set()

    async def release(self, queues: Collection[MessageQueue]) -> None:
        self._events.append(f"unlocked {len(queues)}")

    async def release_all(self) -> None:
        self._events.append("unlocked all")


class Leaving:
    """An Ownership with its collaborators."""

    def __init__(self, background: TaskSet) -> None:
        self.events: list[str] = []
        self.store = Store(self.events)
        self.locks = Locks(self.events)
        self.callbacks = OwnershipCallbacks("cg", revoked=self._told)
        self.background = background

    async def _told(self, queues: list[MessageQueue]) -> None:
        self.events.append(f"told {len(queues)}")

    def owner(self, *, orderly: bool = True) -> Ownership:
        locks: Any = self.locks if orderly else None
        store: Any = self.store
        instance: Any = SimpleNamespace(
            namespace=NO_NAMESPACE,
            outages=SimpleNamespace(failed=lambda *_, **__: None),
            log=NO_LOG,
        )
        parts = ConsumerParts(
            instance, "cg", PushOptions(), {}, store, self.callbacks, self.background
        )
        return Ownership(parts, locks)


@pytest.fixture
async def leaving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Leaving]:
    monkeypatch.setattr(ownership, "COMMIT_RETRY_MS", 1)
    background = TaskSet(NO_LOG)
    yield Leaving(background)
    await background.close()


def held_to(store: Store, queue: MessageQueue, offset: int) -> ProcessQueue:
    store.update(queue, offset)
    return ProcessQueue(queue, offset)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_a_failed_commit_is_tried_again_before_the_lock_goes(
    leaving: Leaving, failure: Exception
) -> None:
    leaving.store.failures = [failure] * 3
    await leaving.owner().leave([held_to(leaving.store, A, 7)])
    await eventually(lambda: "unlocked 1" in leaving.events)
    assert leaving.store.stored == [(A, 7)]
    assert leaving.events == ["stored", "told 1", "unlocked 1"]


async def test_a_broker_that_does_not_answer_keeps_no_queue_of_another_locked(
    leaving: Leaving,
) -> None:
    elsewhere = MessageQueue("T", "b", 0)
    commit, gone = leaving.store.commit, asyncio.Event()

    async def hang_at_b(queues: Iterable[MessageQueue]) -> None:
        if elsewhere in queues:
            await gone.wait()
        await commit(queues)

    leaving.store.commit = hang_at_b  # type: ignore[method-assign]
    held = [held_to(leaving.store, queue, 7) for queue in (elsewhere, A, B)]
    await leaving.owner().leave(held)
    await eventually(lambda: leaving.events[-1:] == ["unlocked 2"])
    assert {queue for queue, _ in leaving.store.stored} == {A, B}
    gone.set()
    await eventually(lambda: leaving.events[-1] == "unlocked 1")
    assert (elsewhere, 7) in leaving.store.stored


@pytest.mark.parametrize("is_lost", [False, True])
async def test_no_offset_is_stored_while_the_lock_is_expired(
    leaving: Leaving, is_lost: bool
) -> None:
    """Until the lock is renewed, another member may have stored a higher offset."""
    leaving.store.failures = [RequestTimeout("no answer")] * 1_000_000
    await leaving.owner().leave([held_to(leaving.store, A, 7)])
    await leaving.store.tried.wait()
    leaving.locks.are_valid = False
    leaving.store.failures.clear()
    await leaving.locks.asked.wait()
    assert leaving.events == []
    if is_lost:
        leaving.locks.are_held = False
    else:
        leaving.locks.are_valid = True
    await eventually(lambda: "unlocked 1" in leaving.events)
    assert leaving.store.stored == ([] if is_lost else [(A, 7)])


@pytest.mark.parametrize("ends", [False, True])
async def test_a_commit_that_never_succeeds_holds_up_only_for_a_while(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(ownership, "LEAVE_COMMIT_MS", 300)  # time for several attempts
    monkeypatch.setattr(ownership, "END_COMMIT_MS", 300)
    leaving.store.failures = [RequestTimeout("no answer")] * 1_000_000
    held, owner = [held_to(leaving.store, A, 7)], leaving.owner()
    await (owner.close(held, is_drained=True) if ends else owner.leave(held))
    await eventually(lambda: leaving.events)
    await eventually(lambda: "unlocked" in leaving.events[-1])
    assert leaving.store.stored == []
    assert len(leaving.store.failures) < 1_000_000 - 1


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_failed_commit_at_the_end_is_tried_again(leaving: Leaving, orderly: bool) -> None:
    leaving.store.failures = [ConnectionLost("gone")] * 3
    owner = leaving.owner(orderly=orderly)
    await owner.close([held_to(leaving.store, A, 7)], is_drained=True)
    assert leaving.store.stored == [(A, 7)]
    assert leaving.events == ["stored", "told 1", *(["unlocked all"] if orderly else [])]


async def test_close_stores_the_offset_of_a_busy_queue_that_is_leaving(
    leaving: Leaving,
) -> None:
    busy, owner = held_to(leaving.store, A, 7), leaving.owner()
    busy.calls.began()
    await owner.leave([busy])
    await owner.close([held_to(leaving.store, B, 9)], is_drained=False)
    assert sorted(leaving.store.stored) == [(A, 7), (B, 9)]
    assert leaving.events[-1] == "unlocked all"


async def test_without_a_lock_the_offset_is_stored_at_once_and_never_later(
    leaving: Leaving,
) -> None:
    """The next owner may already have started, and a later store would reset its progress."""
    busy, owner = held_to(leaving.store, A, 7), leaving.owner(orderly=False)
    busy.calls.began()
    await owner.leave([busy])
    await eventually(lambda: leaving.store.stored)
    leaving.store.positions.unsaved_queues.add(A)
    busy.calls.ended()
    await eventually(lambda: "told 1" in leaving.events)
    assert leaving.store.stored == [(A, 7)]


@pytest.mark.parametrize("then_ends", [False, True])
async def test_no_offset_of_a_lost_queue_is_stored(leaving: Leaving, then_ends: bool) -> None:
    """A regained lock counts as lost, because another member has held it."""
    lost, owner = held_to(leaving.store, A, 7), leaving.owner()
    lost.calls.began()
    await owner.leave([lost], is_lost=True)
    if then_ends:
        await owner.close([], is_drained=False)
    else:
        lost.calls.ended()
        await eventually(lambda: "unlocked 1" in leaving.events)
    assert leaving.store.stored == []


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_hanging_revocation_callback_is_bounded(
    leaving: Leaving, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    monkeypatch.setattr(ownership, "FORCED_LEAVE_MS", 20)

    async def hang(_: list[MessageQueue]) -> None:
        await asyncio.Event().wait()

    leaving.callbacks.revoked = hang
    owner = leaving.owner(orderly=orderly)
    await owner.leave([held_to(leaving.store, A, 7)])
    async with asyncio.timeout(60):
        await owner.close([held_to(leaving.store, B, 9)], is_drained=True)
    assert sorted(leaving.store.stored) == [(A, 7), (B, 9)]
    unlocked = [event for event in leaving.events if event.startswith("unlocked")]
    assert unlocked == (["unlocked 1", "unlocked all"] if orderly else [])


async def test_a_store_that_fails_keeps_no_queue_without_a_lock(leaving: Leaving) -> None:
    leaving.callbacks.revoked = None
    leaving.store.failures = [ValueError("foreign")]
    await leaving.owner(orderly=False).leave([held_to(leaving.store, A, 7)])
    assert leaving.store.positions.offsets == {}


# -- with brokers -----------------------------------------------------------------------------


def orderly(cluster: MemoryCluster, seen: Recorder, name: str, **more: Any) -> PushConsumer:
    options = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, instance_name=name, suspend_queue_ms=10
    )
    return consumer_of(cluster, seen, options, **more)


@pytest.mark.parametrize("fault", [HANG, DISCONNECT, SystemBusy("busy")], ids=str)
@pytest.mark.parametrize("ends", [False, True])
async def test_a_commit_that_is_lost_on_its_way_repeats_nothing(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, fault: Any, ends: bool
) -> None:
    monkeypatch.setattr(offsets, "COMMIT_TIMEOUT_MS", 100)
    monkeypatch.setattr(ownership, "COMMIT_RETRY_MS", 10)
    last = MessageQueue("T", "broker-a", 3)
    seen, after = Recorder(), Recorder()
    first, second = orderly(cluster, seen, "a"), orderly(cluster, after, "b")
    async with first:
        await send(cluster, *texts(3), queue=last)
        await eventually(lambda: first.stats().consumed_count == 3)
        cluster.broker.fail(RequestCode.UPDATE_CONSUMER_OFFSET, fault, times=10)
        if not ends:
            async with second:
                await eventually(lambda: last in second.queues)
    if ends:
        async with second:
            await eventually(lambda: last in second.queues)
    assert cluster.committed("cg", "T")[last] == 3
    assert after.bodies == []
