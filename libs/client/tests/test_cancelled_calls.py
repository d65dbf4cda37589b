# SPDX-License-Identifier: Apache-2.0
"""If application code cancels the task that called it, the call fails, but no worker stops."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cometmq.client import (
    ConsumeFrom,
    PushOptions,
)
from cometmq.client.consume.delivery import deliveries
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.transport import tasks
from cometmq.testing.client.listening import (
    FIRST,
    Recorder,
    consumer_of,
    logged,
    send,
    texts,
)


@pytest.fixture(autouse=True)
def _no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "RESTART_MS", 0)


@pytest.fixture
def cancelled(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """Return a function that returns the log lines about cancelled tasks; no task may fail."""
    yield lambda: logged(caplog, "task.cancelled")
    assert logged(caplog, "task.failed") == []


async def cancel_this_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()


class CancelsFirst:
    """A function that cancels its task during its first call."""

    def __init__(self, answer: Any = None) -> None:
        self.bodies: list[bytes] = []
        self.calls = 0
        self._answer = answer

    async def __call__(self, given: Any, *_: object) -> Any:
        self.calls += 1
        if isinstance(given, list):
            self.bodies += [message.body for message in given]
        if self.calls == 1:
            await cancel_this_task()
        return self._answer


@pytest.mark.parametrize(
    ("orderly", "bodies", "returned_count"), [(False, b"0120", 1), (True, b"0012", 0)]
)
async def test_a_message_of_a_cancelled_call_is_delivered_again(
    cluster: MemoryCluster,
    cancelled: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    orderly: bool,
    bodies: bytes,
    returned_count: int,
) -> None:
    monkeypatch.setattr(deliveries, "RETRY_HERE_MS", 10)
    await send(cluster, *texts(3))
    listener = CancelsFirst()
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=1, orderly=orderly)
    async with consumer_of(cluster, listener, options) as consumer:
        await eventually(lambda: consumer.stats().consumed_count == 3)
    assert b"".join(listener.bodies) == bodies
    assert cluster.broker.requests[RequestCode.CONSUMER_SEND_MSG_BACK] == returned_count
    assert cluster.broker.offsets["cg", "T", 0] == 3
    assert len(cancelled()) == 1


async def test_a_cancelled_call_is_not_returned_by_a_consumer_that_closes(
    cluster: MemoryCluster, cancelled: Callable[[], list[str]]
) -> None:
    await send(cluster, *texts(1))
    async with consumer_of(cluster, CancelsFirst(), FIRST):
        await eventually(lambda: len(cancelled()) == 1)
    assert cluster.broker.requests[RequestCode.CONSUMER_SEND_MSG_BACK] == 0
    async with consumer_of(cluster, again := Recorder(), FIRST):
        await eventually(lambda: again.bodies == [b"0"])


async def test_workers_end_when_all_tasks_are_cancelled(
    served: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """`asyncio.run` does this before it returns, and waits for the tasks."""
    await send(served, *texts(1))
    consumer = consumer_of(served, first := Recorder(), FIRST)
    await consumer.start()
    await eventually(lambda: first.bodies == [b"0"])
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    _, left = await asyncio.wait(others, timeout=60)
    assert left == set()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert "task.cancelled" not in caplog.text
    await consumer.close()
