# SPDX-License-Identifier: Apache-2.0
"""Marks: which content of each table's file includes which entries of the journal.

A mark has a digest of the content, and the number of the last entry that it includes.
"""

from typing import Final

from cometmq.store.journal import Marks

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
