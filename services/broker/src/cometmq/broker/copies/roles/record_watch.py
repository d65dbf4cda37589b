# SPDX-License-Identifier: Apache-2.0
"""Reads and watches the consensus record for a member.

The record is read in a separate task, because a read may take seconds. A read counts only if the
member's state has not changed since it began; otherwise it is repeated (R4).

A claim is an epoch that a follower, a master or another broker has named. It only causes a read of
the record, which alone decides which epoch is the newest. The first claim is checked at once; after
that, the record is read at most once per `PAUSE_MS`, however many claims arrive. A claim that the
record does not confirm changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.ha import member as rules
from cometmq.ha import state as states
from cometmq.ha.member import Member
from cometmq.ha.port import RecordUnreachable
from cometmq.ha.record import Record, RecordDamaged, Versioned
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log

if TYPE_CHECKING:
    from cometmq.broker.copies.roles.member_driver import MemberDriver

IDLE_READ_MS: Final = 1_000
"""Interval at which a member without a master reads the record, even if the watch shows no change.
"""

RETRY_MS: Final = 200

PAUSE_MS: Final = 1_000
"""Minimum interval between reads that claims cause. A claim is unconfirmed after a second read:
members fenced for a new record may name its epoch first.
"""

REPORT_MS: Final = 60_000


class Read(NamedTuple):
    """The result of a read of the record, and the member's state when the read began."""

    began: Member
    found: Versioned | None


class Seen(NamedTuple):
    """A version of the record with facts that the state file lacks."""

    record: Record


class EpochClaims:
    """The claims that have not been checked yet; `run` checks them."""

    def __init__(
        self,
        *,
        check: Callable[[int], None],
        recorded: Callable[[], int],
        log: Log,
        sleep: Callable[[float], Awaitable[object]],
    ) -> None:
        """`check` causes a read if an epoch is news; `recorded` is the record's when last read."""
        self._check = check
        self._recorded = recorded
        self._log = log
        self._sleep = sleep
        self._highest = 0
        self._is_waiting = asyncio.Event()
        self._reported_s: float | None = None

    def note(self, epoch: int) -> None:
        self._highest = max(self._highest, epoch)
        self._is_waiting.set()

    async def run(self) -> None:
        while True:
            await self._is_waiting.wait()
            claimed = await self._checked(0)
            if claimed > self._recorded():
                claimed = await self._checked(claimed)
                if claimed > self._recorded():
                    self._report(claimed)

    async def _checked(self, again: int) -> int:
        """Check the highest new claim, or `again`; return the checked epoch after the pause."""
        claimed, self._highest = max(self._highest, again), 0
        self._is_waiting.clear()
        self._check(claimed)
        await self._sleep(PAUSE_MS / 1000)
        return claimed

    def _report(self, claimed: int) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._reported_s is None or now_s - self._reported_s >= REPORT_MS / 1000:
            self._reported_s = now_s
            self._log.warning(
                "member.epoch_unrecorded", claimed=claimed, recorded=self._recorded(),
                action="find out who names an epoch that the record does not have; protect"
                " haListenPort with groupKeyFile",
            )  # fmt: skip


class RecordWatch:
    """Passes what the record says to the inbox of a member."""

    def __init__(self, driver: "MemberDriver", log: Log) -> None:
        self.read_wanted = asyncio.Event()
        self.fault = ""
        """Why the last read of the record failed; empty if it succeeded."""
        self.uid = ""
        """The uid of the record when it was last seen; empty if there was none."""
        self.claims = EpochClaims(
            check=lambda epoch: driver.observe(rules.EpochSeen(epoch)),
            recorded=lambda: max(self._recorded_epoch, driver.state.promised),
            log=log,
            sleep=driver.sleep,
        )
        self._recorded_epoch = 0
        self._driver = driver
        self._log = log
        self._seen: tuple[object, ...] = ()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_reading(), name="member-reads")
            group.create_task(self._keep_watching(), name="member-watch")
            group.create_task(self.claims.run(), name="member-claims")

    async def _keep_reading(self) -> None:
        while True:
            await self._read_wanted()
            self.read_wanted.clear()
            began = self._driver.state
            try:
                found = await self._driver.record.read()
            except (RecordUnreachable, RecordDamaged) as error:
                self._note_fault(error)
                self.read_wanted.set()
                await self._driver.sleep(RETRY_MS / 1000)
                continue
            self._note_fault(None)
            self._note_seen(found)
            self._driver.observe(Read(began, found))

    async def _read_wanted(self) -> None:
        """Wait until a read is requested; without a master, at most `IDLE_READ_MS`."""
        while True:
            try:
                async with asyncio.timeout(IDLE_READ_MS / 1000):
                    await self.read_wanted.wait()
                    return
            except TimeoutError:
                member = self._driver.state
                if member.epoch == 0 and member.role.is_candidate:
                    return

    async def _keep_watching(self) -> None:
        while True:
            try:
                async for found in self._driver.record.watch():
                    self._look(found)
            except (RecordUnreachable, RecordDamaged) as error:
                self._note_fault(error)
                await self._driver.sleep(RETRY_MS / 1000)

    def _look(self, found: Versioned | None) -> None:
        """Request a read if a watch shows a different record, epoch or master."""
        self._driver.duties.acting.record_seen(found)
        self._note_seen(found)
        if found is None:
            return
        seen = (found.record.uid, found.record.epoch, found.record.holder)
        if seen != self._seen:
            self._seen = seen
            self.read_wanted.set()

    def _note_seen(self, found: Versioned | None) -> None:
        """Have facts of the record saved that the state file lacks, in case it is deleted (R10)."""
        self.uid = "" if found is None else found.record.uid
        if found is None:
            return
        self._recorded_epoch = found.record.epoch
        if states.saw(self._driver.saved, found.record) != self._driver.saved:
            self._driver.observe(Seen(found.record))

    def _note_fault(self, error: CometError | None) -> None:
        text = "" if error is None else str(error)
        if text and not self.fault:
            self._log.warning("record.unreachable", error=text)
        elif self.fault and not text:
            self._log.info("record.reachable")
        self.fault = text
