# SPDX-License-Identifier: Apache-2.0
"""Notes of operators about topics and groups, in SQLite.

All notes are in memory too, so that lists can show them. All calls of SQLite run on one thread.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import msgspec

from cometmq.console.database import DiskFull, opened
from cometmq.remoting.errors import CometError, StoreError
from cometmq.remoting.log import Log
from cometmq.runtime.worker import Worker

CHARS_MAX: Final = 2_000
COUNT_MAX: Final = 10_000
_SCHEMA: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS notes (
    kind TEXT NOT NULL, name TEXT NOT NULL, text TEXT NOT NULL, user TEXT NOT NULL,
    at_ms INTEGER NOT NULL, PRIMARY KEY (kind, name)
) WITHOUT ROWID;
"""


_QUERY: Final = "SELECT kind, name, text, user, at_ms FROM notes"


class NoteRefused(CometError):
    """A note cannot be stored; nothing was changed."""


class Note(msgspec.Struct, frozen=True):
    """A text about a topic or a group."""

    kind: str
    """`topic` or `group`."""
    name: str
    text: str
    user: str
    at_ms: int

    @property
    def line(self) -> str:
        """Return the beginning of the text, for lists."""
        words = " ".join(self.text.split())
        return words if len(words) <= 80 else f"{words[:79]}…"


def read_notes(folder: Path) -> list[Note]:
    """Return the notes of a console that may be running; raise StoreError if they cannot be read.

    Nothing is created or changed.
    """
    path = folder / "notes.db"
    is_running = path.with_name("notes.db-wal").exists()  # otherwise SQLite would create it
    mode = "mode=ro" if is_running else "immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True)) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            return [Note(*row) for row in database.execute(f"{_QUERY} ORDER BY kind, name")]
    except sqlite3.Error as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


class Notes:
    """Stores the notes."""

    def __init__(self, folder: Path, *, log: Log) -> None:
        self._path = folder / "notes.db"
        self._log = log
        self._worker = Worker("notes", pending_count_max=1_000)
        self._database: sqlite3.Connection | None = None
        self._notes: dict[tuple[str, str], Note] = {}

    async def open(self) -> None:
        """Open or create the file; a damaged one is renamed and replaced.

        If the disk is full, the file is only read; the next `put` opens it again for writing.
        """
        try:
            self._add(await self._worker.submit(self._read))
        except DiskFull as error:
            self._log.warning("notes.readonly", error=str(error))
            with suppress(StoreError):
                self._add(await self._worker.submit(lambda: read_notes(self._path.parent)))

    def of(self, kind: str) -> Mapping[str, Note]:
        """Return the notes about topics or groups, by name."""
        return {name: it for (its, name), it in self._notes.items() if its == kind}

    def get(self, kind: str, name: str) -> Note | None:
        return self._notes.get((kind, name))

    @property
    def all(self) -> list[Note]:
        return list(self._notes.values())

    @property
    def is_full(self) -> bool:
        return len(self._notes) >= COUNT_MAX

    async def put(self, note: Note) -> None:
        """Store a note durably, or delete it if its text is empty; raise NoteRefused."""
        key = note.kind, note.name
        if len(note.text) > CHARS_MAX or (self.is_full and key not in self._notes):
            raise NoteRefused(
                f"at most {COUNT_MAX:,} notes of {CHARS_MAX:,} characters can be stored"
            )
        try:
            self._add(await self._worker.submit(lambda: self._write(note)))
        except (sqlite3.Error, StoreError) as error:
            raise NoteRefused(f"the note cannot be stored in {self._path}: {error}") from error
        if note.text:
            self._notes[key] = note
        else:
            self._notes.pop(key, None)

    def _add(self, notes: list[Note]) -> None:
        self._notes.update({(it.kind, it.name): it for it in notes})

    async def close(self) -> None:
        await self._worker.submit(self._close)
        self._worker.close()

    # -- on the thread ------------------------------------------------------------------------

    def _read(self) -> list[Note]:
        self._database, rows = opened(
            self._path,
            schema=_SCHEMA,
            query=_QUERY,
            damaged=self._damaged,
        )
        return [Note(*row) for row in rows]

    def _damaged(self, error: str, kept: Path) -> None:
        self._log.warning("notes.damaged", error=error, kept=str(kept))

    def _write(self, note: Note) -> list[Note]:
        """Store a note. If the file was not open, open it and return the notes in it."""
        found = self._read() if self._database is None else []
        database = self._database
        assert database is not None
        if note.text:
            row = (note.kind, note.name, note.text, note.user, note.at_ms)
            database.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?)", row)
        else:
            database.execute(
                "DELETE FROM notes WHERE kind = ? AND name = ?", (note.kind, note.name)
            )
        return found

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
