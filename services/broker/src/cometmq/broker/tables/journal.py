# SPDX-License-Identifier: Apache-2.0
"""The journal of the tables: the changes made since their files were last saved.

Tables are saved at intervals, as in RocketMQ, so a kill would lose the changes since the last save:
up to five seconds of committed offsets. The journal keeps these changes. All changes made in one
turn of the event loop form one entry and are written at once, before any answer of that turn is
sent. A write reaches the page cache, which survives the process. With SYNC_FLUSH the journal is
synced twice a second; no answer waits for that, because a lost offset causes a redelivery, never a
lost message.

Entries are numbered. Before a table's file is saved, a mark in the journal records the content and
the number of the last entry that it includes. At startup, the entries that a file lacks are applied
to it (`journal_replay.py`).

In a broker group, entries and marks also record how recent the tables are (`position`). Entry and
position are one record, so a kill or a full disk leaves both or neither. The position is in no
other file, so even a clean stop leaves one journal file. The position is unknown if the journal is
damaged or missing, or if a table's file was written by another program or by a run without a broker
group.

Failures: answers do not depend on the journal. If it cannot be written, requests are answered as
before and the tables are saved at intervals, as in RocketMQ; `/readyz` fails, and the tables keep
noting changes until a retry has written them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Protocol

import msgspec

from cometmq.broker.tables.journal_files import JournalFiles
from cometmq.broker.tables.journal_replay import Replay, TableMarks
from cometmq.broker.tables.persistence import Saved
from cometmq.broker.turn import Turn
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.worker import Worker
from cometmq.store.disk import Disk
from cometmq.store.journal import FILE_BYTES, Kind, Position, encode_changes, encode_marks


class Journaled(Saved, Protocol):
    """A table whose changes are journaled."""

    noted: Callable[[], None] | None
    """Called for the first change after `forget_noted`; if None, changes are not noted."""

    def noted_changes(self) -> list[bytes]:
        """Return the noted changes as JSON, in pieces far smaller than a journal file."""

    def forget_noted(self) -> None:
        """Forget the noted changes, because the journal now has them."""

    def apply_changes(self, data: msgspec.Raw) -> None:
        """Apply some of the changes without recording them again, and set `is_dirty`.

        Raise ValueError or CometError if the JSON does not have the table's shape.
        """


class Counter(Protocol):
    """Counts the entries of this broker's own changes, while it is a master."""

    def next_position(self) -> Position:
        """Return the position that the next entry will reach."""

    def written(self, changes: Sequence[tuple[str, bytes]]) -> None:
        """Note an entry that has been written."""


class Journal:
    """Notes the changes of tables and writes them; only the event loop may use it."""

    def __init__(  # noqa: PLR0913  # the collaborators, all but two by name
        self,
        disk: Disk,
        folder: str,
        *,
        worker: Worker,
        log: Log = NO_LOG,
        file_bytes: int = FILE_BYTES,
        keeps_position: bool = False,
        was_killed: bool = False,
        turn: Turn | None = None,
        log_end: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Read the journal of the last run. The caller must then `attach` each table and call
        `begin`.

        - `keeps_position`: this broker is a member of a broker group.
        - `was_killed`: the last run was killed while it wrote a journal. A journal without any
          record then counts as damaged: it is lost, or the copy of a running broker's store is
          incomplete.
        - `log_end` returns the end of the log; every message before it has its topic in the tables.
        """
        self.turn = turn or Turn()
        self._log_end = log_end
        self._folder = folder
        self._log = log
        self.files = JournalFiles(
            disk, folder, worker=worker, log=log, file_bytes=file_bytes,
            marks=self._encode_marks, filled=self.turn.filled,
        )  # fmt: skip
        found = self.files.found
        if was_killed and not found.marks and not found.fault:
            found.fault = "the store was in use, but there is no record of its journal"
        self.replay = Replay(found, log, keeps_position=keeps_position)
        self.number = found.number
        """The number of the last entry."""
        self.position = self.replay.position
        """The position in the last entry or in the marks; None if it is unknown."""
        # The journal has all changes on which messages before this offset depend.
        self.known_log_end = found.log_end
        self._due: Position | None = None  # for the next entry that is not counted
        self._tables: dict[str, Journaled] = {}
        self._marks = TableMarks()
        self._changed: dict[str, Journaled] = {}  # with noted changes
        self._unwritten: list[tuple[str, bytes]] = []  # applied, but not written yet
        self._counter: Counter | None = None
        self.fault = ""  # the reason why the journal cannot be written

    @property
    def size_bytes(self) -> int:
        return self.files.redo.size_bytes

    # Start and stop

    def attach(self, table: Journaled) -> bool:
        """Apply the journal's entries to a loaded table, and note its changes from now on.

        Return whether the table is now as the last run left it, without missing changes.
        """
        name = table.file.path.name
        base, last, is_complete = self.replay.apply(table, name)
        self.position = self.replay.position
        base = self.number if base is None else base
        self._marks.begin(name, table.file.loaded_digest, base, last)
        self._tables[name] = table
        table.noted = partial(self._note, name)
        return is_complete

    def begin(self) -> None:
        """Start writing; call this after the last table is attached."""
        self.replay.end(self._folder)
        self._marks.are_new = True
        self.write()

    async def close(self) -> None:
        """Delete the entries if all tables are saved; call this only if no save has failed.

        A file with the marks and the position is kept: the next start notices tables that have
        changed since.
        """
        await self.files.drain()
        for table in self._tables.values():
            table.noted = None
        if any(table.is_dirty for table in self._tables.values()):
            return
        await self.files.worker.submit(partial(self._attempt, self.files.condense))

    # Changes

    def _note(self, name: str) -> None:
        if not self._changed:
            self.turn.noted.fire()
        self._changed[name] = self._tables[name]

    def write(self, position: Position | None = None) -> None:
        """Append the noted changes; call this before answers are sent and at the end of a turn.

        `position` is the tables' position after these changes. If the write fails, `retry` repeats
        it.
        """
        if position is not None:
            self._due = position
        # After a failure the changes remain noted until `retry`: a failing disk costs one attempt
        # per second instead of one per request.
        has_entry = bool(self._changed or self._unwritten) or self._due is not None
        if (has_entry or self._marks.are_new) and not self.fault:
            self._attempt(self._write)

    def apply(self, changes: Mapping[str, msgspec.Raw], position: Position | None = None) -> None:
        """Apply an entry from another broker and write it; if the write fails, set `fault`.

        Raise ValueError or CometError if a change does not have its table's shape.
        """
        for name, change in changes.items():
            table = self._tables.get(name)
            if table is not None:  # a later version may have more tables
                table.apply_changes(change)
                self._unwritten.append((name, bytes(change)))
        self.write(position)

    def count(self, counter: Counter | None) -> None:
        """Let `counter` give this broker's own changes their positions; None: no positions."""
        self._counter = counter

    def retry(self) -> None:
        """Try to write again after a failure; called by a timer."""
        if self.fault:
            self.fault = ""
            self._marks.are_new = True
            self._attempt(self._write, is_retry=True)
            if not self.fault:
                self._log.info("journal.resumed")

    def _write(self) -> None:
        log_end = self._log_end()
        if log_end is None:
            log_end = self.known_log_end
        if not self._changed and not self._unwritten:
            self.known_log_end = log_end
        if self._marks.are_new:
            self.files.append(Kind.MARKS, self._encode_marks(), self.number)
            self._marks.are_new = False
        if self._unwritten:
            self._write_entry(self._unwritten, None if self._changed else self._due)
            self._unwritten = []
        if self._changed:
            self._write_own(log_end)
        if self._due is not None:
            self._write_entry((), self._due)

    def _write_own(self, log_end: int | None) -> None:
        """Write the noted changes of this broker's tables, and count them."""
        changes: list[tuple[str, bytes]] = []
        for name, table in self._changed.items():
            changes.extend(zip(repeat(name), table.noted_changes()))
        # A table with thousands of changes has several pieces, each of which is an entry.
        entries = [changes] if len(changes) == len(self._changed) else [[one] for one in changes]
        for number, entry in enumerate(entries, 1):
            is_last = number == len(entries)
            if is_last:
                self.known_log_end = log_end
            if self._counter is None:
                self._write_entry(entry, self._due if is_last else None)
            else:
                self._write_entry(entry, self._counter.next_position())
                self._due = None  # an earlier position, of the beginning of this epoch
                self._counter.written(entry)
        for table in self._changed.values():
            table.forget_noted()
        self._changed.clear()

    def _write_entry(
        self, changes: Sequence[tuple[str, bytes]], position: Position | None = None
    ) -> None:
        payload = encode_changes(self.number + 1, changes, position, self.known_log_end)
        if len(payload) > self.files.redo.payload_bytes_max // 2:  # the file begins with marks
            if len(changes) > 1:
                for change in changes[:-1]:
                    self._write_entry([change])
                self._write_entry(changes[-1:], position)
            else:
                table = changes[0][0]
                self._log.warning("journal.entry_too_long", table=table, bytes=len(payload))
            return
        self.files.append(Kind.CHANGES, payload, self.number)
        self.number += 1
        for name, _ in changes:
            self._marks.last_changes[name] = self.number
        if position is not None:
            self.position = position
            if position == self._due:
                self._due = None

    def _encode_marks(self) -> bytes:
        return encode_marks(self.number, self._marks.marks, self.position, self.known_log_end)

    def _attempt(self, action: Callable[[], None], *, is_retry: bool = False) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # whatever the error, answers must be sent
            self.fault = describe(error)
            self.files.failed_count += 1
            if not is_retry:
                self._log.error("journal.write_failed", folder=self._folder, error=self.fault)

    # Saves of the tables' files

    def mark(self, name: str, digest: str, number: int) -> None:
        """Record that a file is about to be saved with all entries up to this number."""
        self._marks.add(name, digest, number)
        self.write()

    def saved(self, name: str) -> None:
        """Record that a file has the content marked last; delete obsolete journal files."""
        if not self._marks.marks.get(name):
            return
        if not self._marks.are_new:
            self.turn.noted.fire()
        self._marks.settle(name)
        self.files.drop(self._marks.needed(self.number))
        self._attempt(self.files.delete)
