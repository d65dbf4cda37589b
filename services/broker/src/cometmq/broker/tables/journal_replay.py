# SPDX-License-Identifier: Apache-2.0
"""The start of the journal: applies the entries of the last run to the tables' files; and its
marks: which content of each file includes which entries.
"""

from typing import TYPE_CHECKING, Final

from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.store.journal import Entry, JournalContent, Marks

if TYPE_CHECKING:
    from cometmq.broker.tables.journal import Journaled


class Replay:
    """Finds out what each table's file lacks, and whether the journal has all of it."""

    def __init__(self, found: JournalContent, log: Log, *, keeps_position: bool) -> None:
        self._found = found
        self._log = log
        self.damage = found.damage
        """What is wrong with the journal; empty if at most its last entry was incomplete."""
        self.position = found.position if keeps_position and not self.damage else None
        """The position of the tables; None if it is unknown."""
        self.unreliable: set[str] = set()
        """Tables that may lack even changes that were made before the log's known end."""

    def apply(self, table: "Journaled", name: str) -> tuple[int | None, int | None, bool]:
        """Apply the missing entries to a loaded table.

        Return the number of the last entry that its file has (None if that is unknown), the number
        of the last entry that changes the table, and whether the table is complete.
        """
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
            base = entries[0].number - 1 if entries else self._found.number
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
        return base, entries[-1].number if entries else None, is_complete

    def _apply(self, table: "Journaled", name: str, entries: list[Entry]) -> bool:
        """Apply entries; return whether all of them fit the table.

        The others are still applied: changes after this start follow them, and no entry depends on
        an earlier one.
        """
        misfits: list[tuple[int, str]] = []
        for entry in entries:
            try:
                table.apply_changes(entry.changes[name])
            except (ValueError, CometError) as error:
                misfits.append((entry.number, describe(error)))
        if misfits:
            number, text = misfits[0]
            self._log.error("journal.damaged", table=name, entry=number, error=text)
            self.position = None
        if len(entries) > len(misfits):
            count = len(entries) - len(misfits)
            self._log.info("journal.replayed", table=name, entries=count)
        return not misfits

    def end(self, folder: str) -> None:
        """Log what could not be read."""
        cut, fault = self._found.cut, self._found.fault
        self._found.entries.clear()
        if cut is not None:
            tell = self._log.error if cut.is_damage else self._log.info
            tell("journal.damaged" if cut.is_damage else "journal.torn",
                 file=cut.path, position=cut.position, lost_bytes=cut.byte_count)  # fmt: skip
        if fault:
            self._log.error("journal.damaged", folder=folder, error=fault)


_MARKS_MAX: Final = 8  # of one table: failed saves may still have replaced the file


class TableMarks:
    """The marks of all tables, and the number of the last entry that changes each table."""

    def __init__(self) -> None:
        self.marks: Marks = {}
        self.are_new = False
        """Whether there are marks that have not been written to the journal yet."""
        self.last_changes: dict[str, int] = {}

    def begin(self, name: str, digest: str, number: int, last_change: int | None) -> None:
        """Add a table whose file has all entries up to a number."""
        self.marks[name] = {digest: number}
        if last_change is not None:
            self.last_changes[name] = last_change

    def add(self, name: str, digest: str, number: int) -> None:
        """Note that a file is about to be saved with all entries up to a number."""
        marks = self.marks[name]
        marks.pop(digest, None)
        marks[digest] = number
        if len(marks) > _MARKS_MAX:
            del marks[list(marks)[1]]  # the first is the last save that succeeded: keep it
        self.are_new = True

    def settle(self, name: str) -> None:
        """Note that a save has succeeded: the file has the content of the mark added last."""
        digest, number = self.marks[name].popitem()
        self.marks[name] = {digest: number}
        self.are_new = True

    def needed(self, number: int) -> int:
        """Return the highest number up to which every table's file has all entries, at most
        `number`; entries up to it are no longer needed.
        """
        for name, last in self.last_changes.items():
            # A kill during a save leaves either the old or the new content: keep the entries that
            # the old content needs.
            saved = min(self.marks[name].values())
            if last > saved:
                number = min(number, saved)
        return number
