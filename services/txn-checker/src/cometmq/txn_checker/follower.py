# SPDX-License-Identifier: Apache-2.0
"""Follow one broker's half and op queues, and check its open transactions.

A failure of the broker, the network or the local disk stops all work for this broker; after a
back-off, work resumes from the ledger. Other brokers are not affected.

When a group fails over, work resumes at the new master without a back-off, as soon as the name
servers report it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

from cometmq.remoting.errors import AccessDenied, CometError, RemoteProtocolError
from cometmq.remoting.log import Log
from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.runtime.clock import Clock
from cometmq.runtime.saves import Job, Saver
from cometmq.store.errors import DiskError
from cometmq.txn_checker.asking import Asker
from cometmq.txn_checker.back_off import BackOff
from cometmq.txn_checker.broker_link import (
    BrokerLink,
    Pulled,
    ended_by,
    half_of,
)
from cometmq.txn_checker.entry import NO_HALF
from cometmq.txn_checker.ledger import Checkpoint, Ledger
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.stats import FollowerStats

TOPIC_WAIT_S: Final = 1.0
OTHER_MAKER_WAIT_S: Final = 60.0
PROBE_INTERVAL_MS: Final = 1_000
"""Interval between probes that check whether the broker is still the master: a former master serves
pulls as a slave, and a frozen master keeps its connections.
"""
MOVED: Final = "another master is registered, which has not answered yet"


class Follower:
    def __init__(
        self,
        name: str,
        link: BrokerLink,
        settings: TxnCheckerSettings,
        *,
        open_ledger: Callable[[], Awaitable[Ledger]],
        saver: Saver,
        clock: Clock,
        log: Log,
    ) -> None:
        self.name = name
        self.stats = FollowerStats()
        self._link = link
        self._settings = settings
        self._open_ledger = open_ledger
        self._saver = saver
        self._log = log
        self._back_off = BackOff(settings.back_off_max)
        self._moved = asyncio.Event()
        self._logged: list[str] = []
        self._ledger: Ledger | None = None
        self._committed: tuple[int, int] | None = None
        self._asker = Asker(name, link, settings, clock=clock, log=log, stats=self.stats)
        self.fault: str | None = "has not answered yet"
        """The reason why the broker is not being followed; None while it is."""
        self.lost: Callable[[], None] = lambda: None
        """Called when the broker fails, because a different broker may be the master now."""
        self.is_registered = True
        """Whether the name servers know a master; if not, attempts are rarer."""
        self.tried = asyncio.Event()
        """Set after the first success or failure."""
        self._halves_moved = asyncio.Event()
        self._ops_moved = asyncio.Event()

    @property
    def ledger(self) -> Ledger | None:
        """Return the ledger; None before the first recovery."""
        return self._ledger

    def route_changed(self) -> None:
        """Reconnect, without a back-off, to the broker that the name servers now return."""
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

        No error affects other followers. The work runs in a separate task, because in Python 3.11 a
        task group loses its task's cancellation if the group fails at the same time.
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
            ledger = self._ledger
            if ledger is None:
                ledger = self._ledger = await self._open_ledger()
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
            self._ledger = None  # it may now differ from the disk
        errors = sorted({describe(error) for error in leaves})
        if errors != self._logged:  # attempts are a second apart: log each failure once
            self._log.warning("broker.unfollowed", broker=self.name, errors=errors)
            self._logged = errors
        self.lost()

    def _note_tried(self, fault: str | None) -> None:
        self.fault = fault
        self.tried.set()

    async def close(self) -> None:
        """Commit the progress and take a checkpoint, so that the next start is short."""
        if self._ledger is None or self._ledger.is_new:
            return
        try:
            await self._checkpoint(self._ledger)
            await self._persist(self._ledger)
        except CometError as error:
            self._log.warning("progress.uncommitted", broker=self.name, error=describe(error))

    async def _follow(self, ledger: Ledger) -> None:
        while not await self._link.leaves_checks_to_us():
            self._note_tried(None)
            self._log.info("broker.checks_itself", broker=self.name)
            await asyncio.sleep(OTHER_MAKER_WAIT_S)
        await self._adjust(ledger)
        await self._link.check_rights(ledger.half_next, ledger.op_next)
        self._note_tried(None)
        self._log.info(
            "broker.followed", broker=self.name, open=ledger.open_count, half=ledger.half_next,
            op=ledger.op_next,
        )  # fmt: skip
        self.stats.is_following = True
        self._logged = []
        settings = self._settings
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_halves(ledger))
            group.create_task(self._read_ops(ledger))
            group.create_task(self._again(PROBE_INTERVAL_MS, self._probe, ledger))
            group.create_task(self._again(settings.transaction_check_interval, self._round, ledger))
            group.create_task(self._again(settings.persist_interval, self._persist, ledger))
            group.create_task(self._again(settings.checkpoint_interval, self._checkpoint, ledger))

    # Start

    async def _adjust(self, ledger: Ledger) -> None:
        """Update the ledger for changes made to the queues while they were not being followed."""
        link = self._link
        self._committed = None  # the broker may have lost the committed offsets
        if ledger.is_new:
            ledger.begin(await link.examined(HALF_TOPIC), await link.examined(OP_HALF_TOPIC))
        elif await self._is_replaced(ledger):
            self._log.error(
                "queues.replaced", broker=self.name, half=ledger.half_next, op=ledger.op_next
            )
            oldest = await link.oldest(HALF_TOPIC), await link.oldest(OP_HALF_TOPIC)
            ledger.reset()
            ledger.begin(*oldest)
        else:
            # Meanwhile, another checker may have continued, or a RocketMQ broker, which writes no
            # op messages.
            examined = await link.examined(HALF_TOPIC)
            if examined > ledger.low_water:
                ledger.halves_gone(examined)

    async def _is_replaced(self, ledger: Ledger) -> bool:
        """Return whether the broker has lost messages that are already in the ledger.

        A broker loses either the tail of its log or everything, so it is enough to compare the
        newest half message.
        """
        link, known = self._link, ledger.newest
        if ledger.half_next > await link.end(HALF_TOPIC) or ledger.op_next > await link.end(
            OP_HALF_TOPIC
        ):
            return True
        pulled = None if known is None else await link.pull(HALF_TOPIC, ledger.half_next - 1)
        record = None if pulled is None else next(pulled.in_order(ledger.half_next - 1), None)
        if known is None or record is None:
            return False
        half = half_of(record)
        return (half.physical_offset, half.stored_s) != (known.physical_offset, known.stored_s)

    async def _again(
        self, interval_ms: int, step: Callable[[Ledger], Awaitable[None]], ledger: Ledger
    ) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            await step(ledger)

    # Reading the queues

    async def _read_halves(self, ledger: Ledger) -> None:
        sweep_end = 0
        while True:
            pulled = await self._link.pull(HALF_TOPIC, ledger.half_next)
            if pulled is None:
                await asyncio.sleep(TOPIC_WAIT_S)
                continue
            _check_end(HALF_TOPIC, ledger.half_next, pulled)
            ledger.halves_gone(pulled.min_offset)
            records = pulled.in_order(ledger.half_next)
            ledger.add_halves(
                [NO_HALF if record is None else half_of(record) for record in records]
            )
            self.stats.half_behind = max(0, pulled.max_offset - ledger.half_next)
            self._halves_moved.set()
            sweep_end = await self._rest(ledger.half_next, sweep_end or pulled.max_offset)

    async def _rest(self, offset: int, sweep_end: int) -> int:
        """Pause after a sweep; return where it ends, or 0 if the next pull begins another.

        A sweep ends where the queue ended at its first pull. What arrives meanwhile waits for the
        next one: checks are due only seconds later, and for the broker, single reads are more work
        than writes.
        """
        if offset < sweep_end:
            return sweep_end
        await asyncio.sleep(self._settings.pull_pause / 1_000)
        return 0

    async def _read_ops(self, ledger: Ledger) -> None:
        sweep_end = 0
        while True:
            pulled = await self._link.pull(OP_HALF_TOPIC, ledger.op_next)
            if pulled is None:
                await asyncio.sleep(TOPIC_WAIT_S)
                continue
            _check_end(OP_HALF_TOPIC, ledger.op_next, pulled)
            ledger.ops_gone(pulled.min_offset)
            records = pulled.in_order(ledger.op_next)
            await self._take_ops(
                ledger, [[] if record is None else ended_by(record) for record in records]
            )
            self.stats.op_behind = max(0, pulled.max_offset - ledger.op_next)
            self._ops_moved.set()
            sweep_end = await self._rest(ledger.op_next, sweep_end or pulled.max_offset)

    async def _take_ops(self, ledger: Ledger, ops: list[list[int]]) -> None:
        """Apply op messages; wait if they refer to half messages that have not been read yet."""
        taken = ledger.read_ops(ops)
        while taken < len(ops):
            end = await self._link.end(HALF_TOPIC)
            ops = [[half for half in halves if half < end] for halves in ops[taken:]]
            self._halves_moved.clear()
            taken = ledger.read_ops(ops)
            if taken < len(ops):
                await self._halves_moved.wait()

    # Checks and progress

    async def _probe(self, _ledger: Ledger) -> None:
        """Raise an error if the broker is no longer the master or is not responding."""
        await self._link.leaves_checks_to_us()

    async def _round(self, ledger: Ledger) -> None:
        """Check every transaction that is still open after all current op messages are applied."""
        op_end = await self._link.end(OP_HALF_TOPIC)
        while ledger.op_next < op_end:
            self._ops_moved.clear()
            await self._ops_moved.wait()
        await self._asker.round(ledger)
        self.stats.round_count += 1

    async def _persist(self, ledger: Ledger) -> None:
        """Commit to the broker the offsets below which every transaction has ended."""
        low_water = ledger.low_water
        marks = (low_water, ledger.op_mark(low_water))
        if marks != self._committed:
            await self._link.commit(HALF_TOPIC, marks[0])
            await self._link.commit(OP_HALF_TOPIC, marks[1])
            self._committed = marks

    async def _checkpoint(self, ledger: Ledger) -> None:
        if not ledger.is_changed:
            return
        done: list[Checkpoint] = []

        def begin() -> Job:
            done.append(ledger.checkpoint())
            return done[-1].sync

        await self._saver.save(Path(ledger.folder), begin)
        if done:
            ledger.note_synced(done[-1])


def _check_end(topic: str, known: int, pulled: Pulled) -> None:
    """Raise an error if a queue is shorter than the part already read.

    The next start compares the messages themselves.
    """
    if pulled.max_offset < known:
        raise RemoteProtocolError(
            f"{topic} ends at {pulled.max_offset}, but was read up to {known}"
        )


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
