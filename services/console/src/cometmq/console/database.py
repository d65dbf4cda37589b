# SPDX-License-Identifier: Apache-2.0
"""Opens SQLite files. A damaged file is renamed and replaced; any other fault is raised."""

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from cometmq.remoting.errors import StoreError

_DAMAGES: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_FULL: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}  # the second: no space for the log
_COMPANIONS: Final = ("-wal", "-shm")


class DiskFull(StoreError):
    """The disk has no space to open a database; the file is left unchanged."""


def opened(
    path: Path, *, schema: str, query: str, damaged: Callable[[str, Path], None]
) -> tuple[sqlite3.Connection, list[Any]]:
    """Open or create a database; return it and the rows of the query.

    A damaged file is renamed, and `damaged` is called with the error and the new name. Raise
    DiskFull or StoreError if the file cannot be used for another reason; it is then left unchanged.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return _opened(path, schema, query)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGES:
                raise
            damaged(str(error), put_aside(path))
        return _opened(path, schema, query)
    except (OSError, sqlite3.Error) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _FULL or getattr(error, "errno", 0) == errno.ENOSPC:
            raise DiskFull(f"cannot open {path}: {error}; free space on its disk") from error
        raise StoreError(
            f"cannot open {path}: {error}; end other programs that use it, and give this user the"
            " right to read and write it"
        ) from error


def _opened(path: Path, schema: str, query: str) -> tuple[sqlite3.Connection, list[Any]]:
    if not path.exists():  # SQLite would let everybody read it; its companions follow the file
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    try:
        database.text_factory = lambda text: text.decode("utf-8", "replace")
        database.executescript(schema)
        return database, database.execute(query).fetchall()
    except sqlite3.Error:
        database.close()
        raise


def put_aside(path: Path) -> Path:
    """Rename a file and its write-ahead log, which may contain newer data."""
    number, aside = 1, path.with_suffix(".damaged")
    while any(_companion(aside, end).exists() for end in ("", *_COMPANIONS)):
        number += 1
        aside = path.with_suffix(f".damaged{number}")
    for end in (*_COMPANIONS, ""):  # a log that stays alone would be deleted
        if _companion(path, end).exists():
            _companion(path, end).replace(_companion(aside, end))
    return aside


def _companion(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)
