# SPDX-License-Identifier: Apache-2.0
"""One queue has one reader, whatever happens at the same time."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from cometmq.client.background import Background
from cometmq.client.readers import Limits, ReadContext, Readers
from cometmq.client.subscriptions import subscription
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.log import NO_LOG

QUEUE = MessageQueue("T", "a", 0)


class NoMessages:
    """Pulls that wait for ever."""

    async def pull(self, *_: Any, **__: Any) -> Any:
        await asyncio.Event().wait()

    def forget(self, queue: MessageQueue) -> None:
        assert queue == QUEUE


class SlowOffsets:
    """Offsets that are stored when the test says so."""

    def __init__(self) -> None:
        self.may_store = asyncio.Event()

    def position(self, queue: MessageQueue) -> int | None:
        assert queue == QUEUE

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        assert (queue, offset >= 0) == (QUEUE, True) or is_reset

    async def persist(self, _queues: Iterable[MessageQueue]) -> None:
        await self.may_store.wait()

    def forget(self, queue: MessageQueue) -> None:
        assert queue == QUEUE


@pytest.fixture
async def background() -> AsyncIterator[Background]:
    tasks = Background(NO_LOG)
    yield tasks
    await tasks.close()


async def test_a_queue_taken_during_a_seek_keeps_one_reader(background: Background) -> None:
    """A second one would go on after the queue is given up, and commit for its new owner."""
    offsets = SlowOffsets()
    context = ReadContext(
        puller=NoMessages(),
        offsets=offsets,
        subscriptions={"T": subscription("T", version_ms=1)},
        limits=lambda _: Limits(10, 10, 10),
        sink=lambda *_: None,
        may_read=lambda: True,
        pulled=lambda *_: None,
        not_ready=lambda: None,
        log=NO_LOG,
    )

    async def first_offset(_: MessageQueue) -> int:
        return 0

    readers = Readers(context, background, first_offset)
    assert await readers.take("T", [QUEUE])
    async with asyncio.TaskGroup() as group:
        group.create_task(readers.seek(QUEUE, 5))
        await asyncio.sleep(0)
        assert await readers.take("T", [QUEUE])
        taken = readers.get(QUEUE)
        assert taken is not None
        offsets.may_store.set()
    current = readers.get(QUEUE)
    assert current is not None
    assert current.process_queue.next_offset == 5
    assert taken.process_queue.is_dropped
