# SPDX-License-Identifier: Apache-2.0
"""Reads and watches the consensus record for a member.

The record is read in a separate task, because a read may take seconds. A read counts only if the
member's state has not changed since it began; otherwise it is repeated (R4).
"""

import asyncio
from typing import Final

from cometmq.broker.copies.roles.acting import Current
from cometmq.broker.copies.roles.inbox import RETRY_MS, Read, Seen
from cometmq.broker.copies.roles.member_driver import MemberDriver
from cometmq.ha import state as states
from cometmq.ha.port import RecordUnreachable
from cometmq.ha.record import RecordDamaged, Versioned
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log

IDLE_READ_MS: Final = 1_000
"""Interval at which a member without a master reads the record, even if the watch shows no change.
"""


class RecordWatch:
    """Passes what the record says to the inbox of a member."""

    def __init__(self, driver: MemberDriver, current: Current, log: Log) -> None:
        self.fault = ""
        """Why the last read of the record failed; empty if it succeeded."""
        self.uid = ""
        """The uid of the record when it was last seen; empty if there was none."""
        self._record = driver.record
        self._saved = driver.saved
        self._inbox = driver.inbox
        self._log = log
        self._current = current
        self._seen: tuple[object, ...] = ()

    async def run(self) -> None:
        """Read and watch the record; the caller cancels this."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_reading(), name="member-reads")
            group.create_task(self._keep_watching(), name="member-watch")

    async def _keep_reading(self) -> None:
        while True:
            await self._read_wanted()
            self._inbox.is_read_wanted.clear()
            began = self._inbox.member
            try:
                found = await self._record.read()
            except (RecordUnreachable, RecordDamaged) as error:
                self._note_fault(error)
                self._inbox.is_read_wanted.set()
                await self._inbox.sleep(RETRY_MS / 1000)
                continue
            self._note_fault(None)
            self._note_seen(found)
            self._inbox.observe(Read(began, found))

    async def _read_wanted(self) -> None:
        """Wait until a read of the record is requested; without a master, wait at most
        `IDLE_READ_MS`.
        """
        while True:
            try:
                async with asyncio.timeout(IDLE_READ_MS / 1000):
                    await self._inbox.is_read_wanted.wait()
                    return
            except TimeoutError:
                member = self._inbox.member
                if member.epoch == 0 and member.role.is_candidate:
                    return

    async def _keep_watching(self) -> None:
        while True:
            try:
                async for found in self._record.watch():
                    self._look(found)
            except (RecordUnreachable, RecordDamaged) as error:
                self._note_fault(error)
                await self._inbox.sleep(RETRY_MS / 1000)

    def _look(self, found: Versioned | None) -> None:
        """Request a read if a watch shows a different record, epoch or master."""
        self._current.acting.record_seen(found)
        self._note_seen(found)
        if found is None:
            return
        seen = (found.record.uid, found.record.epoch, found.record.holder)
        if seen != self._seen:
            self._seen = seen
            self._inbox.is_read_wanted.set()

    def _note_seen(self, found: Versioned | None) -> None:
        """Have the facts of the record saved that the state file lacks, in case it
        is deleted (R10).
        """
        self.uid = "" if found is None else found.record.uid
        if found is None:
            return
        self._inbox.recorded_epoch = found.record.epoch
        if states.saw(self._saved.state, found.record) != self._saved.state:
            self._inbox.observe(Seen(found.record))

    def _note_fault(self, error: CometError | None) -> None:
        text = "" if error is None else str(error)
        if text and not self.fault:
            self._log.warning("record.unreachable", error=text)
        elif self.fault and not text:
            self._log.info("record.reachable")
        self.fault = text
