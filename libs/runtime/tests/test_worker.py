# SPDX-License-Identifier: Apache-2.0
"""A worker runs jobs in order on one named thread, and its queue is bounded."""

import os
import threading
from errno import EAGAIN
from functools import partial

import pytest

from cometmq.remoting.errors import Overloaded
from cometmq.runtime.worker import NoThread, Worker, refused_thread


async def test_jobs_run_in_order_on_one_named_thread():
    worker = Worker("disk")
    seen: list[int] = []
    futures = [worker.submit(partial(seen.append, i)) for i in range(100)]
    name = await worker.submit(lambda: threading.current_thread().name)
    for future in futures:
        await future
    worker.close()
    assert seen == list(range(100))
    assert name == "disk"
    assert worker.stats() == ("disk", 0, 101, 0)


async def test_an_error_of_a_job_reaches_the_caller_and_the_worker_goes_on():
    worker = Worker("disk")
    with pytest.raises(ZeroDivisionError):
        await worker.submit(lambda: 1 // 0)
    assert await worker.submit(lambda: 7) == 7
    worker.close()
    assert worker.stats().failed_count == 1


async def test_a_full_queue_refuses():
    worker = Worker("disk", pending_count_max=2)
    gate = threading.Event()
    waiting = [worker.submit(gate.wait), worker.submit(gate.wait)]
    with pytest.raises(Overloaded, match="worker disk: 2 jobs are pending"):
        worker.submit(gate.wait)
    gate.set()
    for future in waiting:
        await future
    assert await worker.submit(lambda: 1) == 1
    worker.close()


def refuse(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


async def test_jobs_need_no_thread_that_may_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose first read was refused a thread waited for that read for ever when it
    stopped.
    """
    worker = Worker("disk")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert await worker.submit(lambda: 7) == 7
    worker.close()


def test_a_refused_thread_is_reported_with_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoThread, match=r"thread disk cannot be started: raise .*ulimit -u"):
        Worker("disk")


@pytest.mark.parametrize(
    ("error", "is_refusal"),
    [
        (RuntimeError("can't start new thread"), True),
        (BlockingIOError(EAGAIN, os.strerror(EAGAIN)), True),  # of fork
        (BlockingIOError(EAGAIN, "write could not complete without blocking", 7), False),
        (RuntimeError("no running event loop"), False),
        (OSError(EAGAIN - 1, "another"), False),
    ],
)
def test_only_errors_of_threads_and_processes_are_refusals(
    error: Exception, is_refusal: bool
) -> None:
    assert (refused_thread(error) is not None) == is_refusal
