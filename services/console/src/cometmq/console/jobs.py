# SPDX-License-Identifier: Apache-2.0
"""Changes that may take longer than a request, and continue after its answer."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final

from cometmq.console.web.problems import Problem
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.clock import Clock

GRACE_S: Final = 1.0
"""If the change ends within this time, the answer contains its outcome."""
RUNNING_MAX: Final = 8
KEPT_MAX: Final = 50
"""The most ended changes that are kept, so that a page can show their outcome."""


class Job:
    """One such change; changes with the same `name` must not run at the same time."""

    def __init__(
        self,
        name: str,
        *,
        total: int,
        count: Callable[[], int],
        stop: Callable[[], None],
        page: str,
        command: str,
    ) -> None:
        """`count` returns how much is done; `stop` lets the change end early."""
        self.name = name
        self.total = total
        self.page = page
        """The address of the page that shows it."""
        self.command = command
        """The `cometmq` command that makes the same change."""
        self.begun_ms = 0
        self.ended_ms: int | None = None
        self.text = ""
        """The outcome in one sentence, once it has ended."""
        self.error: CometError | None = None
        self._count = count
        self._stop = stop
        self.is_stopping = False

    @property
    def done(self) -> int:
        """The progress, from 0 to `total`."""
        return self._count()

    def stop(self) -> None:
        """Let the change end after its current step."""
        self.is_stopping = True
        self._stop()

    def per_s(self, now_ms: int) -> float:
        """Return the rate since the beginning."""
        passed_ms = (self.ended_ms or now_ms) - self.begun_ms
        return self.done * 1_000 / passed_ms if passed_ms > 0 else 0.0


class Jobs:
    """The changes that run, and the last ones that ended."""

    def __init__(self, clock: Clock, log: Log) -> None:
        self._clock = clock
        self._tasks = TaskSet(log)
        self._jobs: dict[str, Job] = {}

    def find(self, name: str) -> Job | None:
        """Return the newest change of a name."""
        return self._jobs.get(name)

    def running(self, name: str) -> Job | None:
        """Return the change of a name that has not ended."""
        found = self._jobs.get(name)
        return found if found is not None and found.ended_ms is None else None

    async def run(self, job: Job, work: Callable[[], Awaitable[str]]) -> bool:
        """Begin a change; return whether it has ended within GRACE_S.

        Raise its error if it fails within this time, and Problem if it cannot begin.
        """
        running = [it for it in self._jobs.values() if it.ended_ms is None]
        if self.running(job.name) is not None or len(running) >= RUNNING_MAX:
            text = "the same change, or too many others, are running: nothing was done"
            raise Problem(HTTPStatus.CONFLICT, text, title="This cannot be done now")
        self._jobs.pop(job.name, None)
        for it in [*self._jobs.values()][: max(0, len(self._jobs) - KEPT_MAX)]:
            if it.ended_ms is not None:
                del self._jobs[it.name]
        self._jobs[job.name] = job
        job.begun_ms = self._clock.now_ms()
        task = self._tasks.spawn(self._work(job, work), name=f"console-{job.name}")
        await asyncio.wait([task], timeout=GRACE_S)
        if job.error is not None:
            raise job.error
        return task.done()

    async def close(self) -> None:
        """End all changes; what they have done so far is saved."""
        await self._tasks.close()

    async def _work(self, job: Job, work: Callable[[], Awaitable[str]]) -> None:
        try:
            job.text = await work()
        except CometError as error:
            job.error = error
            job.text = str(error)
        finally:
            job.ended_ms = self._clock.now_ms()
            job.text = job.text or "the console has a fault; its log has the details"
