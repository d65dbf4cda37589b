# SPDX-License-Identifier: Apache-2.0
"""The history in SQLite: figures that change, in steps, with fewer points the older they are.

A point is valid until the next one of its series, so unchanged figures take no space. The table
`runs` has the periods in which snapshots were taken, and `state` the groups that read nothing in
the last snapshot.

Of points older than a day, the highest and the last of each ten minutes are kept; of those older
than a week, the highest and the last of each hour. If the file exceeds its limit, the oldest tenth
of the time is deleted.

All calls of SQLite run on one thread. The state in memory changes only after a transaction has
succeeded.
"""

import errno
import math
import os
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.console.history.source import Points
from cometmq.insight.history import Progress
from cometmq.insight.model import Since
from cometmq.remoting.errors import StoreError
from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock
from cometmq.runtime.worker import Worker

POINTS_MAX: Final = 400
"""The most points of a line in a plot."""
GAP_INTERVALS: Final = 4
"""Number of intervals without a snapshot after which lines are interrupted."""
COMPACT_S: Final = 3_600
DAY_S: Final = 86_400


class _Level(NamedTuple):
    older_than_s: int
    bucket_s: int


LEVELS: Final = (_Level(DAY_S, 600), _Level(7 * DAY_S, 3_600))
_SCHEMA: Final = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS series (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS points (
    series INTEGER NOT NULL, at_s INTEGER NOT NULL, value REAL, PRIMARY KEY (series, at_s)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS runs (begin_s INTEGER PRIMARY KEY, end_s INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS marks (bucket_s INTEGER PRIMARY KEY, until_s INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""


_STATE: Final = "SELECT value FROM state WHERE name = 'pauses'"
_DAMAGES: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_FULL: Final = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}  # the second: no space for the log
_COMPANIONS: Final = ("-wal", "-shm")


class DiskFull(StoreError):
    """The disk has no space to open a database; the file is left unchanged."""


class HistoryStore:
    """Writes and reads the history."""

    def __init__(  # all but the folder by keyword
        self,
        folder: Path,
        *,
        days: int,
        mib_max: int,
        interval_ms: int,
        clock: Clock,
        log: Log,
    ) -> None:
        self._path = folder / "history.db"
        self._days = days
        self._bytes_max = mib_max << 20
        self._interval_s = max(1, interval_ms // 1_000)
        self._clock = clock
        self._log = log
        self._worker = Worker("history", pending_count_max=1_000)
        self._database: sqlite3.Connection | None = None
        self._last: dict[str, float] = {}
        self._pauses = b"{}"
        """The groups that read nothing, as they are in the file."""
        self._run_s: int | None = None
        self._seen_s = 0
        self._compacted_s = 0

    async def open(self) -> None:
        """Open or create the file; a damaged one is renamed and replaced.

        If the disk is full, each `record` tries again, and there is no history until then.
        """
        try:
            await self._worker.submit(self._open)
        except DiskFull as error:
            self._log.warning("history.missing", error=str(error))

    async def record(
        self, figures: Mapping[str, float], pauses: Mapping[str, Progress] = MappingProxyType({})
    ) -> None:
        """Store the present figures, and the groups that read nothing; a series that is missing is
        unknown from now on.
        """
        now_s = self._clock.now_ms() // 1_000
        kept = {
            name: (it.committed, it.still_since, it.lag_at_first) for name, it in pauses.items()
        }
        coded = msgspec.json.encode(kept)
        await self._worker.submit(lambda: self._record(now_s, dict(figures), coded))

    async def pauses(self) -> Mapping[str, Progress]:
        """Return the groups that read nothing when `record` was last called; their lag is that at
        the beginning.
        """
        coded = await self._worker.submit(lambda: self._pauses)
        found = msgspec.json.decode(coded, type=dict[str, tuple[int, Since, int]])
        return {
            name: Progress(committed, since, lag, None, lag)
            for name, (committed, since, lag) in found.items()
        }

    async def lines(self, keys: Sequence[str], begin_ms: int, end_ms: int) -> Mapping[str, Points]:
        """Return the points of each key, at most POINTS_MAX."""
        begin_s, end_s = begin_ms // 1_000, -(-end_ms // 1_000)
        return await self._worker.submit(
            lambda: {key: self._line(key, begin_s, end_s) for key in keys}
        )

    async def close(self) -> None:
        await self._worker.submit(self._close)
        self._worker.close()

    # -- on the thread ------------------------------------------------------------------------

    def _open(self) -> None:
        self._database, rows = opened(self._path, self._log)
        self._pauses = rows[0][0] if rows else b"{}"

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _record(self, now_s: int, figures: dict[str, float], pauses: bytes) -> None:
        if self._database is None:
            self._open()
        database = self._database
        assert database is not None
        if now_s <= self._seen_s:
            return  # the clock was set back: the points of that time exist
        run_s, last = self._run_s, self._last
        if run_s is None or now_s - self._seen_s > GAP_INTERVALS * self._interval_s:
            run_s, last = now_s, {}  # what went on meanwhile is unknown
        values = {key: _rounded(value) for key, value in figures.items()}
        changes = [
            (key, value) for key, value in values.items() if last.get(key, math.nan) != value
        ]
        ended = [(key, None) for key in last if key not in values]
        with database:
            database.execute("BEGIN")
            self._add(database, now_s, [*changes, *ended])
            if pauses != self._pauses:
                database.execute("INSERT OR REPLACE INTO state VALUES ('pauses', ?)", (pauses,))
            database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (run_s, now_s))
        self._run_s, self._last, self._seen_s, self._pauses = run_s, values, now_s, pauses
        if now_s - self._compacted_s >= COMPACT_S:
            self._compacted_s = now_s
            self._compact(now_s)

    def _add(
        self,
        database: sqlite3.Connection,
        at_s: int,
        points: Sequence[tuple[str, float | None]],
    ) -> None:
        database.executemany(
            "INSERT OR IGNORE INTO series (name) VALUES (?)", [(key,) for key, _ in points]
        )
        database.executemany(
            "INSERT OR REPLACE INTO points SELECT id, ?, ? FROM series WHERE name = ?",
            [(at_s, value, key) for key, value in points],
        )

    def _line(self, key: str, begin_s: int, end_s: int) -> Points:
        if self._database is None:
            return []
        found = self._database.execute("SELECT id FROM series WHERE name = ?", (key,)).fetchone()
        if found is None:
            return []
        number = found[0]
        runs = self._database.execute(
            "SELECT begin_s, end_s FROM runs WHERE end_s >= ? AND begin_s <= ? ORDER BY begin_s",
            (begin_s, end_s),
        ).fetchall()
        points: Points = []
        for run_begin_s, run_end_s in runs:
            from_s = max(run_begin_s, begin_s)
            rows = self._database.execute(
                "SELECT at_s, value FROM points WHERE series = ? AND at_s BETWEEN"
                " coalesce((SELECT max(at_s) FROM points WHERE series = ? AND at_s BETWEEN ? AND"
                " ?), ?) AND ? ORDER BY at_s",
                (number, number, run_begin_s, from_s, from_s, min(run_end_s, end_s)),
            ).fetchall()
            points += _steps(rows, from_s, min(run_end_s, end_s), self._interval_s)
        return _thinned(points)

    def _compact(self, now_s: int) -> None:
        database = self._database
        assert database is not None
        with database:
            database.execute("BEGIN")
            for level in LEVELS:
                self._reduce(database, level, now_s)
        self._forget(database, now_s - self._days * DAY_S)
        for _ in range(20):
            if self._size(database) <= self._bytes_max:
                break
            first_s = database.execute("SELECT min(begin_s) FROM runs").fetchone()[0]
            self._forget(database, first_s + max(1, (now_s - first_s) // 10))
            database.execute("PRAGMA incremental_vacuum").fetchall()
        database.execute("PRAGMA incremental_vacuum").fetchall()

    def _reduce(self, database: sqlite3.Connection, level: _Level, now_s: int) -> None:
        """Keep the highest and the last point of each bucket."""
        until_s = (now_s - level.older_than_s) // level.bucket_s * level.bucket_s
        row = database.execute(
            "SELECT until_s FROM marks WHERE bucket_s = ?", (level.bucket_s,)
        ).fetchone()
        begin_s = row[0] if row else 0
        span = (level.bucket_s, begin_s, until_s)
        groups = (
            "SELECT series, at_s / ? AS bucket, min(at_s) AS first_s, max(at_s) AS last_s,"
            " max(value) AS highest FROM points WHERE at_s >= ? AND at_s < ?"
            " GROUP BY series, bucket HAVING count(*) > 2"
        )
        found = database.execute(groups, span).fetchall()
        for series, _, first_s, last_s, highest in found:
            database.execute(
                "DELETE FROM points WHERE series = ? AND at_s >= ? AND at_s < ?",
                (series, first_s, last_s),
            )
            database.execute("INSERT INTO points VALUES (?, ?, ?)", (series, first_s, highest))
        database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (level.bucket_s, until_s))

    def _forget(self, database: sqlite3.Connection, before_s: int) -> None:
        """Delete older points, except the newest older point of each series that is still valid."""
        with database:
            database.execute("BEGIN")
            database.execute("DELETE FROM runs WHERE end_s < ?", (before_s,))
            database.execute(  # runs overlap if the clock was set back
                "UPDATE OR REPLACE runs SET begin_s = ?, end_s = (SELECT max(end_s) FROM runs"
                " WHERE begin_s <= ?) WHERE begin_s <= ?",
                (before_s, before_s, before_s),
            )
            database.execute(
                "INSERT OR IGNORE INTO points SELECT series, ?, value FROM points AS old"
                " WHERE at_s < ? AND at_s = (SELECT max(at_s) FROM points"
                " WHERE series = old.series AND at_s < ?)",
                (before_s, before_s, before_s),
            )
            database.execute("DELETE FROM points WHERE at_s < ?", (before_s,))
            database.execute("DELETE FROM series WHERE id NOT IN (SELECT series FROM points)")
        if self._run_s is not None:
            self._run_s = max(self._run_s, before_s)

    def _size(self, database: sqlite3.Connection) -> int:
        used = [
            database.execute(f"PRAGMA {it}").fetchone()[0] for it in ("page_count", "page_size")
        ]
        return int(used[0]) * int(used[1])


def _rounded(value: float) -> float:
    """Round a figure to three digits, so that a small change of a rate needs no new point."""
    return float(f"{value:.3g}") if abs(value) < 1e15 else value


def _steps(
    rows: Sequence[tuple[int, float | None]], begin_s: int, end_s: int, interval_s: int
) -> Points:
    """Return the points of one run; a value is drawn until shortly before the next."""
    found: Points = []
    for index, (at_s, value) in enumerate(rows):
        from_s = max(at_s, begin_s)
        found.append((from_s * 1_000, value))
        is_last = index + 1 == len(rows)
        until_s = end_s if is_last else rows[index + 1][0] - interval_s
        if until_s > from_s and value is not None:
            found.append((until_s * 1_000, value))
    if found and found[-1][1] is not None:
        found.append((end_s * 1_000 + 1, None))
    return found


def _thinned(points: Points) -> Points:
    """Keep the highest point of each of POINTS_MAX / 2 parts, and interruptions."""
    if len(points) <= POINTS_MAX:
        return points
    size = -(-len(points) * 2 // POINTS_MAX)
    found: Points = []
    for begin in range(0, len(points), size):
        part = points[begin : begin + size]
        known = [point for point in part if point[1] is not None]
        if known:
            found.append(max(known, key=lambda point: point[1] or 0.0))
        if len(known) < len(part):
            found.append((part[-1][0], None))
    return found


def opened(
    path: Path, log: Log, *, schema: str = _SCHEMA, query: str = _STATE
) -> tuple[sqlite3.Connection, list[Any]]:
    """Open or create a database; return it and the rows of the query. A damaged file is renamed and
    replaced.

    Raise DiskFull or StoreError if the file cannot be used for another reason; it is then left
    unchanged.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return _opened(path, schema, query)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in _DAMAGES:
                raise
            log.warning("history.damaged", error=str(error), kept=str(put_aside(path)))
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
