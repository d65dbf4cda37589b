# SPDX-License-Identifier: Apache-2.0
"""The journal of the tables: the changes made since their files were last saved.

Tables are saved at intervals, as in RocketMQ, so a kill would lose the changes since the last save:
up to five seconds of committed offsets. The journal keeps these changes. All changes made in one
turn of the event loop form one entry and are written at once, before any answer of that turn is
sent. A write reaches the page cache, which survives the process. With SYNC_FLUSH the journal is
synced twice a second; no answer waits for that, because a lost offset causes a redelivery, never a
lost message.

At startup the entries are applied to the tables' files (`cometmq.store.journal` defines which
entries). A follower of another broker copies its tables in the same way. It takes a snapshot of the
tables together with `number`, in one turn. From then on it applies the changes of each entry with
the next number, in the turn in which the entry arrives (`Journaled.apply_changes`). If a number
does not follow the last one, or the other broker restarts, the follower takes a new snapshot. Marks
belong to the files of one broker and are not sent.

In a broker group, entries and marks also record how recent the tables are (`position`). Entry and
position are one record, so a kill or a full disk leaves both or neither. The position is therefore
recorded nowhere else, and a clean stop leaves one journal file. The position is unknown if the
journal is damaged or missing, or if a table's file was written by another program or by a run
without a broker group.

Failures: answers do not depend on the journal. If it cannot be written, requests are answered as
before and the tables are saved at intervals, which is what RocketMQ guarantees; `/readyz` fails,
and the tables keep noting changes until a retry has written them.
"""

import asyncio
import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from cometmq.broker.tables.persistence import Saved
from cometmq.broker.turn import Turn
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.worker import Worker
from cometmq.store.disk import Disk, DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.journal import (
    FILE_BYTES,
    Entry,
    Kind,
    Marks,
    Position,
    collect,
    encode_changes,
    encode_marks,
)
from cometmq.store.redo_log import RedoLog

SYNC_INTERVAL_MS: Final = 500
RETRY_INTERVAL_MS: Final = 1_000
FILES_MAX: Final = 16
"""Maximum number of files while tables cannot be saved; usually there are one or two."""
_MARKS_MAX: Final = 8  # of one table: failed saves may still have replaced the file


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
    """The journal; only the event loop may use it, except that `sync` runs its work on a worker."""

    def __init__(  # noqa: PLR0913  # the collaborators, all but two by name
        self,
        disk: Disk,
        folder: str,
        *,
        worker: Worker,
        log: Log = NO_LOG,
        file_bytes: int = FILE_BYTES,
        keeps_position: bool = False,
        turn: Turn | None = None,
        log_end: Callable[[], int | None] = lambda: None,
    ) -> None:
        """Read the journal of the last run. The caller must then `attach` each table and call
        `begin`.

        `keeps_position` is for members of a broker group. `log_end` returns the end of a log whose
        messages all have their topics in the tables.
        """
        self.turn = turn or Turn()
        self._log_end = log_end
        self._disk = disk
        self._worker = worker
        self._folder = folder
        self._files = RedoLog(disk, folder, file_bytes=file_bytes)
        self._log = log
        self._found = collect(self._files, self._files.replay())
        self.number = self._found.number
        """The number of the last entry."""
        is_known = keeps_position and not self.damage
        self.position: Position | None = self._found.position if is_known else None
        """The position in the last entry or in the marks; None if it is unknown."""
        # All changes that messages before this offset depend on are in the journal.
        self.known_log_end = self._found.log_end
        self._due: Position | None = None  # for the next entry that is not counted
        self._ends = dict.fromkeys(self._files.starts[:-1], self.number)
        """Start of each full file -> number of its last entry or of a later entry."""
        self._tables: dict[str, Journaled] = {}
        self._marks: Marks = {}
        self._has_new_marks = False
        self._changed: dict[str, Journaled] = {}  # with noted changes
        self._owed: list[tuple[str, bytes]] = []  # applied, but not written yet
        self._last_changes: dict[str, int] = {}  # table -> number of the last entry with it
        self._doomed: list[str] = []  # files that are no longer used
        self._is_deleting, self._is_synced = False, True
        self._unsynced: list[DiskFile] = []  # full ones
        self._syncing: asyncio.Future[None] | None = None
        self._counter: Counter | None = None
        self.fault = ""  # the reason why the journal cannot be written
        # Tables that may lack even changes that were made before `known_log_end`.
        self.unreliable: set[str] = set()
        self.failed_count = self.byte_count = 0

    @property
    def damage(self) -> str:
        """What is wrong with the journal of the last run; empty if at most its last entry was
        incomplete.
        """
        return self._found.damage

    @property
    def size_bytes(self) -> int:
        return self._files.size_bytes

    # Start and stop

    def attach(self, table: Journaled) -> bool:
        """Apply the journal's entries to a loaded table, and note its changes from now on.

        Return whether the table is then complete: as the last run left it.
        """
        name = table.file.path.name
        digest = table.file.loaded_digest
        entries = self._found.entries_of(name)
        base = self._found.base(name, digest)
        is_complete = base is not None and not self.damage
        if table.file.is_restored:
            self._log.error(
                "table.damaged", table=name, action="find out why the disk changes bytes"
            )
        if base is None and table.file.is_restored:
            # A backup is older than the damaged file, and no entry is older than the backup: all of
            # them lead to the last values.
            base = entries[0].number - 1 if entries else self.number
            self.position, is_complete = None, False
            self.unreliable.add(name)
        if base is not None:
            missing = [entry for entry in entries if entry.number > base]
            if not self._apply(table, name, missing):
                is_complete = False
                self.unreliable.add(name)
        else:
            # No mark names this content: another program wrote the file. It is unknown which of
            # these entries the file already includes.
            self.position = None
            if self._found.marks:
                self.unreliable.add(name)
            if entries:
                self._log.warning("journal.left_out", table=name, entries=len(entries))
            if digest and name in self._found.marks:
                self._log.warning("table.changed", table=name)
        if entries:
            self._last_changes[name] = entries[-1].number
        self._marks[name] = {digest: self.number if base is None else base}
        self._tables[name] = table
        table.noted = partial(self._note, name)
        return is_complete

    def _apply(self, table: Journaled, name: str, entries: list[Entry]) -> bool:
        """Apply entries; return whether all of them fit the table."""
        for entry in entries:
            try:
                table.apply_changes(entry.changes[name])
            except (ValueError, CometError) as error:
                self._log.error(
                    "journal.damaged", table=name, entry=entry.number, error=describe(error)
                )
                self.position = None
                return False
        if entries:
            self._log.info("journal.replayed", table=name, entries=len(entries))
        return True

    def begin(self) -> None:
        """Start writing; call this after the last table is attached."""
        cut, fault = self._found.cut, self._found.fault
        self._found.entries.clear()
        if cut is not None:
            tell = self._log.error if cut.is_damage else self._log.info
            tell("journal.damaged" if cut.is_damage else "journal.torn",
                 file=cut.path, position=cut.position, lost_bytes=cut.byte_count)  # fmt: skip
        if fault:
            self._log.error("journal.damaged", folder=self._folder, error=fault)
            self._attempt(self._files.clear)
            self._ends.clear()
        self._has_new_marks = True
        self.write()

    async def close(self) -> None:
        """Delete the entries if all tables are saved; call this only if no save has failed.

        A file with the marks and the position is kept: the next start notices tables that have
        changed since.
        """
        await self._worker.submit(lambda: None)  # after a sync and a deletion before it
        self._delete()  # files that became obsolete during that deletion
        await self._worker.submit(lambda: None)
        for table in self._tables.values():
            table.noted = None
        if any(table.is_dirty for table in self._tables.values()):
            return
        await self._worker.submit(partial(self._attempt, self._condense))

    def _condense(self) -> None:
        """Replace the files with one that holds only the marks and the position; blocks.

        It is synced before the store counts as closed, so that after a clean stop, a crash of the
        host does not make the store a new copy.
        """
        files = self._files
        try:
            file = files.begin_file(Kind.MARKS, self._encode_marks())
            _sync(self._disk, self._folder, [file])
        except DiskError:  # after a crash of the host, the files could hold an earlier position
            files.clear()
            raise
        if not self._doomed:  # otherwise the entries would have a gap
            files.drop_below(files.file_start)

    # Changes

    def _note(self, name: str) -> None:
        if not self._changed:
            self.turn.noted()
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
        has_entry = bool(self._changed or self._owed) or self._due is not None
        if (has_entry or self._has_new_marks) and not self.fault:
            self._attempt(self._write)

    def apply(self, changes: Mapping[str, msgspec.Raw], position: Position | None = None) -> None:
        """Apply an entry from another broker and write it; if the write fails, set `fault`.

        Raise ValueError or CometError if a change does not have its table's shape.
        """
        for name, change in changes.items():
            table = self._tables.get(name)
            if table is not None:  # a later version may have more tables
                table.apply_changes(change)
                self._owed.append((name, bytes(change)))
        self.write(position)

    def count(self, counter: Counter | None) -> None:
        """Write positions with this broker's own changes from now on; with None, write none."""
        self._counter = counter

    def retry(self) -> None:
        """Try to write again after a failure; called by a timer."""
        if self.fault:
            self.fault = ""
            self._has_new_marks = True
            self._attempt(self._write, is_retry=True)
            if not self.fault:
                self._log.info("journal.resumed")

    def _write(self) -> None:
        log_end = self._log_end()
        if log_end is None:
            log_end = self.known_log_end
        if not self._changed and not self._owed:
            self.known_log_end = log_end
        if self._has_new_marks:
            self._append(Kind.MARKS, self._encode_marks())
            self._has_new_marks = False
        if self._owed:
            self._write_entry(self._owed, None if self._changed else self._due)
            self._owed = []
        for changes, is_last in self._noted_entries():
            if is_last:
                self.known_log_end = log_end
            self._write_own(changes, is_last=is_last)
        for table in self._changed.values():
            table.forget_noted()
        self._changed.clear()
        if self._due is not None:
            self._write_entry((), self._due)

    def _write_own(self, changes: Sequence[tuple[str, bytes]], *, is_last: bool) -> None:
        """Write an entry of this broker's own changes, and count it."""
        if self._counter is None:
            self._write_entry(changes, self._due if is_last else None)
            return
        self._write_entry(changes, self._counter.next_position())
        self._due = None  # an earlier position, of the beginning of this epoch
        self._counter.written(changes)

    def _noted_entries(self) -> Iterator[tuple[Sequence[tuple[str, bytes]], bool]]:
        """Yield the noted changes entry by entry, and whether the entry is the last one."""
        changes = [
            (name, piece)
            for name, table in self._changed.items()
            for piece in table.noted_changes()
        ]
        if len(changes) == len(self._changed):
            if changes:
                yield changes, True
        else:  # a table with thousands of changes has several pieces
            for number, change in enumerate(changes, 1):
                yield [change], number == len(changes)

    def _write_entry(
        self, changes: Sequence[tuple[str, bytes]], position: Position | None = None
    ) -> None:
        payload = encode_changes(self.number + 1, changes, position, self.known_log_end)
        if len(payload) > self._files.payload_bytes_max // 2:  # the file begins with marks
            if len(changes) > 1:
                for change in changes[:-1]:
                    self._write_entry([change])
                self._write_entry(changes[-1:], position)
            else:
                table = changes[0][0]
                self._log.warning("journal.entry_too_long", table=table, bytes=len(payload))
            return
        self._append(Kind.CHANGES, payload)
        self.number += 1
        for name, _ in changes:
            self._last_changes[name] = self.number
        if position is not None:
            self.position = position
            if position == self._due:
                self._due = None

    def _encode_marks(self) -> bytes:
        return encode_marks(self.number, self._marks, self.position, self.known_log_end)

    def _append(self, kind: Kind, payload: bytes) -> None:
        if not self._files.has_room(len(payload)):
            self._begin_file()
        self._files.append(kind, payload)
        self.byte_count += len(payload)
        self._is_synced = False

    def _begin_file(self) -> None:
        # Saves have failed for so long that no file could be deleted. Fail here, as on a full disk,
        # rather than fill the disk.
        if len(self._ends) + 1 >= FILES_MAX:
            raise DiskError("write", self._folder, errno.EFBIG)
        starts, file = self._files.starts, self._files.file
        self._files.begin_file(Kind.MARKS, self._encode_marks())
        if starts and file is not None:
            self._ends[starts[-1]] = self.number
            self._unsynced.append(file)
            self.turn.filled()

    def _attempt(self, action: Callable[[], None], *, is_retry: bool = False) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # whatever the error, answers must be sent
            self.fault = describe(error)
            self.failed_count += 1
            if not is_retry:
                self._log.error("journal.write_failed", folder=self._folder, error=self.fault)

    # Saves of the tables' files

    def mark(self, name: str, digest: str, number: int) -> None:
        """Record that a file is about to be saved with all entries up to this number."""
        marks = self._marks[name]
        marks.pop(digest, None)
        marks[digest] = number
        if len(marks) > _MARKS_MAX:
            del marks[list(marks)[1]]  # the first is the last save that succeeded: keep it
        self._has_new_marks = True
        self.write()

    def saved(self, name: str) -> None:
        """Record that a file now has the content that was marked last; delete journal files that
        are now obsolete.
        """
        marks = self._marks.get(name)
        if not marks:
            return
        digest, number = marks.popitem()
        self._marks[name] = {digest: number}
        if not self._has_new_marks:
            self._has_new_marks = True
            self.turn.noted()
        self._drop()
        self._attempt(self._delete)

    def _drop(self) -> None:
        """Stop using full journal files whose changes are all saved in the tables' files."""
        needed = self.number
        for name, last in self._last_changes.items():
            # A kill during a save leaves either the old or the new content: keep the entries that
            # the old content needs.
            saved = min(self._marks[name].values())
            if last > saved:
                needed = min(needed, saved)
        for start in sorted(self._ends):
            if self._ends[start] > needed:
                break
            later = self._files.starts[self._files.starts.index(start) + 1]
            self._doomed += self._files.forget_below(later)
            del self._ends[start]

    def _delete(self) -> None:
        """Delete unneeded files on the worker, because freeing the blocks of one may take 30 ms.

        The oldest file is deleted first, so that the remaining entries have no gap.
        """
        paths = list(self._doomed)
        if not paths or self._is_deleting:
            return
        future = self._worker.submit(partial(_remove, self._disk, paths))
        self._is_deleting = True
        future.add_done_callback(partial(self._deleted, len(paths)))

    def _deleted(self, count: int, future: asyncio.Future[None]) -> None:
        self._is_deleting = False
        error = None if future.cancelled() else future.exception()
        if error is None:
            del self._doomed[:count]
        else:
            self._log.warning("journal.not_deleted", error=describe(error))

    # Syncs

    def sync(self) -> None:
        """On the worker, sync the writes since the last sync, unless a sync is already running."""
        file = self._files.file
        if self._syncing is not None or self._is_synced or file is None:
            return
        files, self._unsynced = [*self._unsynced, file], []
        self._is_synced = True
        self._syncing = self._worker.submit(partial(_sync, self._disk, self._folder, files))
        self._syncing.add_done_callback(self._synced)

    def _synced(self, future: asyncio.Future[None]) -> None:
        self._syncing = None
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.failed_count += 1
            self._log.error("journal.sync_failed", folder=self._folder, error=describe(error))
            self.turn.filled()  # the kernel may have dropped the changes: the tables have them


def _remove(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        disk.remove(path)


def _sync(disk: Disk, folder: str, files: list[DiskFile]) -> None:
    for file in files:
        file.sync()
    disk.sync_folder(folder)
