# SPDX-License-Identifier: Apache-2.0
"""A queue has one reader, even under concurrent changes."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client.consume.queues.offsets import Positions
from cometmq.client.consume.queues.owned import OwnedQueues
from cometmq.client.consume.queues.parts import ConsumerParts, OwnershipCallbacks
from cometmq.client.consume.queues.reader import Prefetch, ProcessQueue, Reader, ReadParts
from cometmq.client.log import PROGRAM_LOG
from cometmq.client.message import MessageExt
from cometmq.client.namespace import NO_NAMESPACE
from cometmq.client.settings import PushOptions
from cometmq.client.subscriptions import subscription
from cometmq.client.testing import eventually
from cometmq.client.transfer.pulled import Pulled, PullStatus
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.testing.client.messages import QUEUE, message_ext


class NoMessages:
    """A puller whose pulls never return."""

    async def pull(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    def forget(self, queue: MessageQueue) -> None:
        assert queue == QUEUE


class Script:
    """A puller that returns prepared answers, and blocks after the last one."""

    def __init__(self, answers: Iterable[Pulled]) -> None:
        self.answers = iter(answers)
        self.is_over = asyncio.Event()
        self.commits: list[int | None] = []

    async def pull(self, *_: Any, commit_offset: int | None, **__: Any) -> Pulled:
        self.commits.append(commit_offset)
        for answer in self.answers:
            return answer
        self.is_over.set()
        return await NoMessages().pull()


class SlowOffsets:
    """An offset store that waits until the test lets it continue."""

    def __init__(self) -> None:
        self.may_store = asyncio.Event()
        self.positions = Positions()
        self.persisted: list[MessageQueue] = []

    async def read(self, _: MessageQueue) -> int | None:
        return 0

    def unsaved(self, queue: MessageQueue) -> int | None:
        return self.position(queue)

    def position(self, queue: MessageQueue) -> int | None:
        return self.positions.offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        self.positions.update(queue, offset, is_reset=is_reset)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        self.persisted += queues
        await self.may_store.wait()

    def forget(self, queue: MessageQueue) -> None:
        assert queue == QUEUE


@pytest.fixture
async def background() -> AsyncIterator[TaskSet]:
    tasks = TaskSet(NO_LOG)
    yield tasks
    await tasks.close()


class Seen:
    """Keeps the pulled messages."""

    is_full = False
    takes_unreadable = False

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    def submit(self, _: ProcessQueue, messages: list[MessageExt]) -> None:
        self.messages += messages


class Locks:
    """Locks whose validity the test chooses."""

    def __init__(self, is_valid: Callable[[MessageQueue], bool]) -> None:
        self.is_valid = is_valid


def parts_of(
    puller: Any,
    offsets: Any,
    background: TaskSet,
    *,
    subscriptions: dict[str, SubscriptionData] | None = None,
    locks: Any = None,
    log: Log = NO_LOG,
) -> ReadParts:
    instance: Any = SimpleNamespace(
        namespace=NO_NAMESPACE,
        outages=SimpleNamespace(failed=lambda *_, **__: None),
        routes=SimpleNamespace(was_absent=lambda *_: False),
        log=log,
    )
    options = PushOptions(queue_count_max=10, queue_bytes_max=1 << 20, queue_span_max=10)
    parts = ConsumerParts(
        instance,
        "cg",
        options,
        {"T": subscription("T", version_ms=1)} if subscriptions is None else subscriptions,
        offsets,
        OwnershipCallbacks("cg"),
        background,
    )
    return ReadParts(parts, puller, Seen(), Prefetch(options, [QUEUE]), locks)


def queues_of(parts: ReadParts) -> OwnedQueues:
    locks: Any = parts.locks
    return OwnedQueues(parts.shared, parts.sink, parts.puller, locks)


class Counted(NoMessages):
    """Counts the pulls that have begun."""

    def __init__(self) -> None:
        self.count = 0

    async def pull(self, *_: Any, **__: Any) -> Any:
        self.count += 1
        await super().pull()


async def turns() -> None:
    """Let tasks that have been started run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_queue_that_is_reset_after_the_stop_is_not_read(background: TaskSet) -> None:
    puller, offsets = Counted(), SlowOffsets()
    readers = queues_of(parts_of(puller, offsets, background))
    assert await readers.take({"T": [QUEUE]})
    await eventually(lambda: puller.count == 1)
    await readers.stop()
    readers.restart(QUEUE, 5)
    await turns()
    assert puller.count == 1
    reader = readers.get(QUEUE)
    assert reader is not None
    assert reader.process_queue.next_offset == 5


class LateOffsets(SlowOffsets):
    """An offset store whose answers come when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()

    async def read(self, _: MessageQueue) -> int | None:
        await self.may_answer.wait()
        return 0


async def test_a_rebalance_that_ends_after_the_stop_begins_nothing(background: TaskSet) -> None:
    puller, offsets = Counted(), LateOffsets()
    readers = queues_of(parts_of(puller, offsets, background))
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(readers.take({"T": [QUEUE]}))
        await asyncio.sleep(0)
        await readers.stop()
        offsets.may_answer.set()
    assert not taking.result()
    assert not await readers.take({"T": [QUEUE]})
    await turns()
    assert (puller.count, readers.queues) == (0, [])


async def test_a_queue_taken_during_a_reset_keeps_one_reader(background: TaskSet) -> None:
    """A second reader would outlive the queue, and commit for its new owner."""
    offsets = SlowOffsets()
    readers = queues_of(parts_of(NoMessages(), offsets, background))
    assert await readers.take({"T": [QUEUE]})
    before = readers.get(QUEUE)
    assert before is not None
    async with asyncio.TaskGroup() as group:
        group.create_task(readers.reset(QUEUE, 5))
        await asyncio.sleep(0)
        assert await readers.take({"T": [QUEUE]})
        offsets.may_store.set()
    current = readers.get(QUEUE)
    assert current is not None
    assert current.process_queue.next_offset == 5
    assert before.process_queue.is_dropped


class Pulls(NoMessages):
    """Notes which queues are pulled from."""

    def __init__(self) -> None:
        self.queues: list[MessageQueue] = []

    async def pull(self, queue: MessageQueue, *_: Any, **__: Any) -> Any:
        self.queues.append(queue)
        await super().pull()


class GreenletTimeout(BaseException):
    """Like the timeouts of gevent."""


@pytest.mark.parametrize("method", ["read", "update"])
@pytest.mark.parametrize("error", [LookupError("foreign"), GreenletTimeout("foreign")])
async def test_a_store_that_fails_for_one_queue_stops_no_other(
    background: TaskSet, method: str, error: BaseException
) -> None:
    other, errors = MessageQueue("T", "a", 1), [error]

    class FailsOnce(SlowOffsets):
        async def read(self, queue: MessageQueue) -> int | None:
            if method == "read":
                self.fail(queue)
            return await super().read(queue)

        def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
            if method == "update":
                self.fail(queue)
            super().update(queue, offset, is_reset=is_reset)

        def fail(self, queue: MessageQueue) -> None:
            if queue == other and errors:
                raise errors.pop()

    pulls, shares = Pulls(), {"T": [QUEUE, other]}
    readers = queues_of(parts_of(pulls, FailsOnce(), background))
    assert not await readers.take(shares)
    await eventually(lambda: pulls.queues == [QUEUE])
    assert await readers.take(shares)
    await eventually(lambda: pulls.queues == [QUEUE, other])


async def test_a_queue_whose_opening_was_interrupted_is_opened_again(background: TaskSet) -> None:
    assigned: list[list[MessageQueue]] = []

    async def on_assigned(queues: list[MessageQueue]) -> None:
        assigned.append(queues)
        if len(assigned) == 1:
            await asyncio.Event().wait()

    pulls, offsets = Pulls(), SlowOffsets()
    parts = parts_of(pulls, offsets, background)
    parts.shared.callbacks.assigned = on_assigned
    readers = queues_of(parts)

    async def take() -> None:
        assert await readers.take({"T": [QUEUE]})

    taking = background.spawn(take(), name="take")
    await eventually(lambda: bool(assigned))
    taking.cancel()
    await asyncio.wait([taking])
    assert pulls.queues == []
    await take()
    await eventually(lambda: pulls.queues == [QUEUE])
    assert assigned == [[QUEUE], [QUEUE]]

    await readers.stop()
    await take()
    assert len(assigned) == 2  # a stopped queue is not opened again


async def test_a_queue_that_is_being_left_takes_no_more_messages(background: TaskSet) -> None:
    """Its reader ends a little later, and its offset may be stored already."""
    may_answer = asyncio.Event()

    class Slow(NoMessages):
        async def pull(self, *_: Any, **__: Any) -> Any:
            await may_answer.wait()
            return Pulled(PullStatus.FOUND, [message_ext(0)], 1, 0, 1)

    parts = parts_of(Slow(), Positions(), background)
    reader = Reader(parts, QUEUE, 0)
    reading = background.spawn(reader.run(), name="read")
    await asyncio.sleep(0)
    reader.process_queue.is_leaving = True
    may_answer.set()
    await asyncio.wait([reading])
    assert len(reader.process_queue) == 0


async def test_a_reset_of_a_queue_that_is_being_opened_is_kept(background: TaskSet) -> None:
    """The answer to the read of its offset may be older than the reset."""

    class OldAnswer(SlowOffsets):
        async def read(self, queue: MessageQueue) -> int | None:
            found = await super().read(queue)
            await readers.reset(queue, 5)
            return found

    offsets = OldAnswer()
    readers = queues_of(parts_of(NoMessages(), offsets, background))
    assert await readers.take({"T": [QUEUE]})
    reader = readers.get(QUEUE)
    assert reader is not None
    assert reader.process_queue.next_offset == 5
    assert offsets.unsaved(QUEUE) == 5


async def test_a_recreated_queue_ignores_offsets_of_held_messages(
    background: TaskSet,
) -> None:
    """A recreated topic has lower offsets, so the old ones would skip its messages."""
    message = message_ext(100)
    script = Script(
        [
            Pulled(PullStatus.FOUND, [message], 101, 0, 101),
            Pulled(PullStatus.OFFSET_ILLEGAL, [], 3, 0, 3),
        ]
    )
    offsets = SlowOffsets()
    reader = Reader(parts_of(script, offsets, background), QUEUE, 100)
    before = reader.process_queue
    background.spawn(reader.run(), name="read")
    await asyncio.wait_for(script.is_over.wait(), 60)
    assert before.is_dropped
    assert reader.process_queue.committable == 3
    assert offsets.position(QUEUE) == 3


@pytest.mark.parametrize(
    ("asked", "following", "bounds", "skipped_count", "advice"),
    [
        (100, 20, (0, 20), 20, "deleted and created again.* group reset cg T --to first"),
        (100, 20, (15, 20), 5, "deleted and created again.* group reset cg T --to first"),
        (100, 0, (0, 0), 0, "deleted and created again, or the broker has lost messages$"),
        (3, 20, (20, 40), 17, "earlier messages have expired"),
        (-1, 20, (20, 40), 20, "earlier messages have expired"),
    ],
)
async def test_a_moved_offset_is_explained(
    background: TaskSet,
    caplog: pytest.LogCaptureFixture,
    asked: int,
    following: int,
    bounds: tuple[int, int],
    skipped_count: int,
    advice: str,
) -> None:
    script = Script([Pulled(PullStatus.OFFSET_ILLEGAL, [], following, *bounds)])
    reader = Reader(parts_of(script, SlowOffsets(), background, log=PROGRAM_LOG), QUEUE, asked)
    background.spawn(reader.run(), name="read")
    await asyncio.wait_for(script.is_over.wait(), 60)
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith("offset.moved group=cg topic=T broker=")
    assert f"queue_offset={asked} next_offset={following} skipped_count={skipped_count}" in text
    assert re.search(advice, text.rstrip("'\""))


async def test_offsets_of_an_uncertain_queue_are_not_committed(
    background: TaskSet,
) -> None:
    """Otherwise a member that was frozen for longer than its lock would reset the group's
    progress.
    """
    nothing = Pulled(PullStatus.NO_NEW, [], 5, 0, 5)
    script, offsets = Script([nothing, nothing]), SlowOffsets()
    offsets.may_store.set()
    answers = iter([True, False, True])
    locks = Locks(lambda _: next(answers))
    parts = parts_of(script, offsets, background, locks=locks)
    offsets.update(QUEUE, 5)
    reader = Reader(parts, QUEUE, 5)
    background.spawn(reader.run(), name="read")
    await asyncio.wait_for(script.is_over.wait(), 60)
    assert script.commits == [5, None, 5]

    owned = {QUEUE: True, MessageQueue("T", "a", 1): False}
    locks.is_valid = owned.__getitem__
    readers = queues_of(parts)
    for queue in owned:
        readers._readers[queue] = Reader(parts, queue, 0)
    await readers.store()
    assert offsets.persisted == [QUEUE]


class Held:
    """A puller whose pulls are held until the test answers them."""

    def __init__(self) -> None:
        self.pulls: list[tuple[int, str]] = []
        self.answers: asyncio.Queue[Pulled] = asyncio.Queue()

    async def pull(
        self, _: MessageQueue, offset: int, wanted: SubscriptionData, **__: Any
    ) -> Pulled:
        self.pulls.append((offset, wanted.sub_string))
        return await self.answers.get()


@pytest.mark.parametrize("is_told", [True, False], ids=["in flight", "answered"])
async def test_an_answer_for_an_old_subscription_is_no_progress(
    background: TaskSet, is_told: bool
) -> None:
    puller = Held()
    subscriptions = {"T": subscription("T", "a", version_ms=1)}
    parts = parts_of(puller, SlowOffsets(), background, subscriptions=subscriptions)
    seen: Any = parts.sink
    reader = Reader(parts, QUEUE, 3)
    background.spawn(reader.run(), name="reader")
    await eventually(lambda: puller.pulls == [(3, "a")])

    subscriptions["T"] = subscription("T", "a || b", version_ms=2)
    if is_told:
        reader.resubscribed()
    else:
        puller.answers.put_nowait(Pulled(PullStatus.NO_MATCHED, [], 9, 0, 9))
    await eventually(lambda: puller.pulls == [(3, "a"), (3, "a || b")])

    message = message_ext(3)
    puller.answers.put_nowait(Pulled(PullStatus.FOUND, [message], 4, 0, 4))
    await eventually(lambda: seen.messages == [message])
    assert puller.pulls[-1] == (4, "a || b")
