# SPDX-License-Identifier: Apache-2.0
"""Follows one broker: reads its queues, checks its open transactions, and retries after a failure.

A failure of the broker, the network or the local disk stops all work for this broker; after a
back-off, work resumes from the ledger. Other brokers are not affected.

When a group fails over, work resumes at the new master without a back-off, as soon as the name
servers report it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from cometmq.remoting.errors import (
    AccessDenied,
    CometError,
    ServiceNotAvailable,
    SlaveNotAvailable,
    SystemBusy,
    TransportError,
)
from cometmq.remoting.log import Log
from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.runtime.clock import Clock
from cometmq.runtime.saves import Job, Saver
from cometmq.store.errors import DiskError
from cometmq.txn_checker.asking import Asker
from cometmq.txn_checker.broker_link import BrokerLink
from cometmq.txn_checker.ledger import Checkpoint, Ledger
from cometmq.txn_checker.reading import FollowerStats, QueueReader
from cometmq.txn_checker.settings import TxnCheckerSettings

OTHER_MAKER_WAIT_S: Final = 60.0
PROBE_INTERVAL_MS: Final = 1_000
"""Interval between requests that show whether the broker is still the master. Pulls do not show it:
a former master serves them as a slave, and a frozen master keeps its connections.
"""
MOVED: Final = "another master is registered, which has not answered yet"


FIRST_MS: Final = 100
FAILOVER_MAX_MS: Final = 1_000
"""Longest pause after a failure that a failover may have caused."""
_OF_FAILOVERS: Final = (TransportError, SlaveNotAvailable, ServiceNotAvailable, SystemBusy)


class BackOff:
    """The pause before the next attempt: it doubles with each failure, from FIRST_MS up to a bound.

    During a failover the old master refuses requests or has stopped, and the next attempt may
    already reach the new master, so the pauses remain short. All other failures, such as a refused
    account or a failing disk, last until a person acts, so the pauses grow.
    """

    def __init__(self, longest_ms: int) -> None:
        self._longest_ms = longest_ms
        self._next_ms = FIRST_MS
        self.pause_ms = 0

    def restart(self) -> None:
        """Return to the shortest pause."""
        self._next_ms = FIRST_MS
        self.pause_ms = 0

    def failed(self, errors: Iterable[BaseException], *, may_be_back_soon: bool) -> None:
        """Choose the next pause. It is at most FAILOVER_MAX_MS if `may_be_back_soon` and a failover
        may have caused all the errors.
        """
        longest_ms = self._longest_ms
        if may_be_back_soon and all(isinstance(error, _OF_FAILOVERS) for error in errors):
            longest_ms = min(longest_ms, FAILOVER_MAX_MS)
        self.pause_ms = min(self._next_ms, longest_ms)
        self._next_ms = min(self.pause_ms * 2, self._longest_ms)


class Progress:
    """Commits offsets to the broker, and takes checkpoints of the ledger."""

    def __init__(self, link: BrokerLink, saver: Saver) -> None:
        self._link = link
        self._saver = saver
        self._committed: tuple[int, int] | None = None

    def forget(self) -> None:
        """Make the next `commit` send even unchanged offsets: the broker may have lost them."""
        self._committed = None

    async def commit(self, ledger: Ledger) -> None:
        """Commit to the broker the offsets below which every transaction has ended."""
        low_water = ledger.halves.low_water
        marks = (low_water, ledger.ops.mark(low_water))
        if marks != self._committed:
            await self._link.commit(HALF_TOPIC, marks[0])
            await self._link.commit(OP_HALF_TOPIC, marks[1])
            self._committed = marks

    async def checkpoint(self, ledger: Ledger) -> None:
        """Sync the ledger's tables if anything changed."""
        if not ledger.is_changed:
            return
        done: list[Checkpoint] = []

        def begin() -> Job:
            done.append(ledger.checkpoint())
            return done[-1].sync

        await self._saver.save(Path(ledger.folder), begin)
        if done:
            ledger.note_synced(done[-1])


class Follower:
    def __init__(  # noqa: PLR0913  # what a follower works with, each by name
        self,
        name: str,
        link: BrokerLink,
        settings: TxnCheckerSettings,
        *,
        open_ledger: Callable[[], Awaitable[Ledger]],
        lost: Callable[[], None],
        saver: Saver,
        clock: Clock,
        log: Log,
    ) -> None:
        """Call `lost` when the broker fails, because a different broker may be the master now."""
        self.name = name
        self.stats = FollowerStats()
        self._link = link
        self._settings = settings
        self._open_ledger = open_ledger
        self._lost = lost
        self._log = log
        self._back_off = BackOff(settings.back_off_max)
        self._moved = asyncio.Event()
        self._logged: list[str] = []
        self.ledger: Ledger | None = None
        """None before the first recovery, and after an error until it is recovered again."""
        self._progress = Progress(link, saver)
        self._asker = Asker(name, link, settings, clock=clock, log=log, stats=self.stats)
        self.fault: str | None = "has not answered yet"
        """The reason why the broker is not being followed; None while it is."""
        self.is_registered = True
        """Whether the name servers know a master; if not, pauses between attempts grow longer."""
        self.tried = asyncio.Event()
        """Set after the first success or failure."""

    def route_changed(self) -> None:
        """Start the next attempt at once: the name servers now return another address."""
        self._moved.set()

    async def run(self) -> None:
        """Follow the broker until cancelled."""
        while True:
            self._moved.clear()
            error = await self._attempt()
            if error is not None:
                self._note_failed(error)
            if self._moved.is_set():
                self._note_moved()
            else:
                await self._rest_until_retry()

    async def _attempt(self) -> Exception | None:
        """Follow the broker until it fails or its route changes; return the failure.

        Errors are returned, not raised, so that other followers continue. The work runs in a task
        of its own, because in Python 3.11 a task that runs a task group loses its cancellation if
        the group fails at the same time.
        """
        failures: list[Exception] = []

        async def follow(ledger: Ledger) -> None:
            try:
                await self._follow(ledger)
            except Exception as error:  # noqa: BLE001  # an ExceptionGroup, too
                failures.append(error)

        async def leave() -> None:
            await self._moved.wait()

        try:
            ledger = self.ledger
            if ledger is None:
                ledger = self.ledger = await self._open_ledger()
        except Exception as error:  # noqa: BLE001  # must not stop the other followers
            return error
        tasks = TaskSet(self._log)
        try:
            works = (follow(ledger), leave())
            both = [tasks.spawn(work, name=f"txn-{self.name}") for work in works]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.close()
        return failures[0] if failures else None

    def _note_moved(self) -> None:
        self._back_off.restart()
        self._logged = []
        self.stats.is_following = False
        self.fault = MOVED
        self._log.info("broker.moved", broker=self.name)

    async def _rest_until_retry(self) -> None:
        """Wait until the back-off is over or the route changes."""
        try:
            async with asyncio.timeout(self._back_off.pause_ms / 1_000):
                await self._moved.wait()
        except TimeoutError:
            return
        self._back_off.restart()

    def _note_failed(self, error: Exception) -> None:
        leaves = list(_leaves(error))
        if self.stats.is_following:
            self._back_off.restart()
        self._back_off.failed(leaves, may_be_back_soon=self.is_registered)
        self.stats.failed_count += 1
        self.stats.is_following = False
        self._note_tried(_reason(leaves[0]))
        if any(isinstance(error, DiskError) for error in leaves):
            self.ledger = None  # it may now differ from the disk
        errors = sorted({describe(error) for error in leaves})
        if errors != self._logged:  # attempts are a second apart: log each failure once
            self._log.warning("broker.unfollowed", broker=self.name, errors=errors)
            self._logged = errors
        self._lost()

    def _note_tried(self, fault: str | None) -> None:
        self.fault = fault
        self.tried.set()

    async def close(self) -> None:
        """Commit the progress and take a checkpoint, so that the next start is short."""
        if self.ledger is None or self.ledger.is_new:
            return
        try:
            await self._progress.checkpoint(self.ledger)
            await self._progress.commit(self.ledger)
        except CometError as error:
            self._log.warning("progress.uncommitted", broker=self.name, error=describe(error))

    async def _follow(self, ledger: Ledger) -> None:
        while not await self._link.leaves_checks_to_us():
            self._note_tried(None)
            self._log.info("broker.checks_itself", broker=self.name)
            await asyncio.sleep(OTHER_MAKER_WAIT_S)
        reader = QueueReader(
            self.name, self._link, self._settings, ledger, log=self._log, stats=self.stats
        )
        self._progress.forget()
        await reader.adjust()
        await self._link.check_rights(ledger.halves.next, ledger.ops.next)
        self._note_tried(None)
        self._log.info(
            "broker.followed", broker=self.name, open=ledger.halves.open_count,
            half=ledger.halves.next, op=ledger.ops.next,
        )  # fmt: skip
        self.stats.is_following = True
        self._logged = []
        settings, progress = self._settings, self._progress

        async def check() -> None:
            """Apply all op messages that the broker has now, then check the transactions still
            open.
            """
            await reader.ops_read()
            await self._asker.round(ledger)

        async with asyncio.TaskGroup() as group:
            group.create_task(reader.read_halves())
            group.create_task(reader.read_ops())
            for interval_ms, step in (
                (PROBE_INTERVAL_MS, self._link.leaves_checks_to_us),
                (settings.transaction_check_interval, check),
                (settings.persist_interval, partial(progress.commit, ledger)),
                (settings.checkpoint_interval, partial(progress.checkpoint, ledger)),
            ):
                group.create_task(_again(interval_ms, step))


async def _again(interval_ms: int, step: Callable[[], Awaitable[object]]) -> None:
    while True:
        await asyncio.sleep(interval_ms / 1_000)
        await step()


def _reason(error: BaseException) -> str:
    """Return why a broker is not followed, and a remedy if one is known."""
    reason = str(error) or type(error).__name__
    if isinstance(error, AccessDenied):
        return f"{reason}; set accessKey and secretKey to the account of an administrator"
    return reason


def _leaves(error: BaseException) -> Iterable[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for part in error.exceptions:
        yield from _leaves(part)
