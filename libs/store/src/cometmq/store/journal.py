# SPDX-License-Identifier: Apache-2.0
"""The entries of a broker's journal: changes to its tables since their files were last saved.

Entries are numbered without gaps. An entry sets or removes values and never depends on earlier
values, so it may be applied twice. To restore the state after the last entry, take a copy of the
files from any moment and apply all entries written after that moment.

A mark holds the digest of a file's content and the number of the last entry that this content is
known to include. The mark is written before the file. A file without a mark was written by another
program, restored from a backup, or saved while the journal could not be written. Such a file is
newer than the journal or unrelated to it, so the entries of its table are not applied.

A record may also hold the end of the log at the time when it was written. All changes that messages
before this offset depend on, such as the creation of their topics, are in the journal then. Changes
that later messages depend on may be missing from it.

In a broker group, an entry also holds the position of the tables: their epoch and the number of
changes that they contain (`TablesPosition` of the broker). Marks repeat the last position. A broker
outside a group writes marks without a position, because its changes make the position unknown.

The format is in docs/protocol/store.md#journal.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.store.disk import Disk
from cometmq.store.redo_log import Cut, Record, RedoLog

VERSION: Final = 1
FILE_BYTES: Final = 16 << 20

Marks = dict[str, dict[str, int]]
"""Table -> digest of content -> number of the last entry that the content is known to include."""

Position = tuple[int, int]
"""An epoch, and the number of changes made by its master."""

_NUMBER: Final = Struct(">Q")
_POSITION: Final = "position"  # beside the tables' names, which are names of files
_LOG_END: Final = "logEnd"


class Kind(IntEnum):
    """The kinds of records, named after the payload that follows the record's number."""

    MARKS = 1
    """The marks of all tables, which replace earlier marks; the number is the last entry's."""
    CHANGES = 2
    """An entry: all changes made in one turn of the event loop, as table -> change."""


class Entry(NamedTuple):
    """The changes made in one turn of the loop, by table; tables are named after their files."""

    number: int
    changes: dict[str, msgspec.Raw]


class JournalContent(msgspec.Struct):
    """The usable part of a journal."""

    entries: list[Entry] = []
    marks: Marks = {}
    number: int = 0
    """The number of the last usable entry."""
    position: Position | None = None
    """The position of the tables after the last usable record; None if it is unknown."""
    log_end: int | None = None
    """The end of the log in the last usable record that has one."""
    size_bytes: int = 0
    cut: Cut | None = None
    """The place where reading stopped before the last byte; None if everything is readable."""
    fault: str = ""
    """The reason why some intact records are unusable; empty if all are usable."""

    @property
    def damage(self) -> str:
        """A description of the damage; empty if at most one torn entry is missing."""
        if self.fault:
            return self.fault
        if self.cut is not None and self.cut.is_damage:
            return (
                f"{self.cut.path} is damaged at byte {self.cut.position}: the entry there was"
                " complete, there are entries after it, or the file is too short"
            )
        return ""

    def base(self, table: str, digest: str) -> int | None:
        """Return the number of the last journal entry that a table's file already contains.

        Return None if no mark has this digest.
        """
        return self.marks.get(table, {}).get(digest)

    def entries_of(self, table: str) -> list[Entry]:
        """Return the entries that change a table."""
        return [entry for entry in self.entries if table in entry.changes]


class _MarksBody(msgspec.Struct, omit_defaults=True):
    version: int
    marks: Marks
    position: Position | None = None
    log_end: int | None = None


class _Changes(NamedTuple):
    tables: dict[str, msgspec.Raw]
    position: Position | None
    log_end: int | None


def encode_changes(
    number: int,
    changes: Sequence[tuple[str, bytes]],
    position: Position | None = None,
    log_end: int | None = None,
) -> bytes:
    """Return the payload of an entry; the changes are JSON."""
    members: list[bytes] = []
    for table, change in changes:  # a comprehension would cost a call
        members.append(b'"%b":%b' % (table.encode(), change))
    if log_end is not None:
        members.append(b'"%b":%d' % (_LOG_END.encode(), log_end))
    if position is not None:
        members.append(b'"%b":[%d,%d]' % (_POSITION.encode(), *position))
    return b"%b{%b}" % (_NUMBER.pack(number), b",".join(members))


def encode_marks(
    number: int,
    marks: Marks,
    position: Position | None = None,
    log_end: int | None = None,
) -> bytes:
    """Return the payload of a record with the marks of all tables."""
    body = _MarksBody(VERSION, marks, position, log_end)
    return _NUMBER.pack(number) + msgspec.json.encode(body)


def read_journal(disk: Disk, folder: str) -> JournalContent:
    """Read the journal of a folder without changing it."""
    log = RedoLog(disk, folder, file_bytes=FILE_BYTES)
    return collect(log, log.records())


def collect(log: RedoLog, records: Iterable[Record]) -> JournalContent:
    """Collect the records of a log up to the first unusable one."""
    found = JournalContent()
    number: int | None = None
    for record in records:
        try:
            number, content = _parse(record, number)
        except (ValueError, *UNREADABLE_JSON) as error:
            found.fault = str(error)
            break
        found.number = number
        if isinstance(content, _MarksBody):
            found.marks, found.position = content.marks, content.position
        else:
            found.entries.append(Entry(number, content.tables))
            found.position = content.position or found.position
        if content.log_end is not None:
            found.log_end = content.log_end
    found.cut = log.cut
    found.size_bytes = log.size_bytes
    return found


def _parse(record: Record, last: int | None) -> tuple[int, _MarksBody | _Changes]:
    """Return the number and content of a record; raise ValueError, or one of UNREADABLE_JSON, for a
    malformed record.
    """
    kind = Kind(record.kind)
    if len(record.payload) < _NUMBER.size:
        raise ValueError(f"a record of {len(record.payload)} bytes")
    (number,) = _NUMBER.unpack_from(record.payload)
    body = memoryview(record.payload)[_NUMBER.size :]
    if last is not None and number != last + (kind is Kind.CHANGES):
        raise ValueError(f"entry {number} follows entry {last}")
    if kind is Kind.CHANGES:
        tables = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        position, log_end = tables.pop(_POSITION, None), tables.pop(_LOG_END, None)
        return number, _Changes(
            tables,
            None if position is None else msgspec.json.decode(position, type=Position),
            None if log_end is None else msgspec.json.decode(log_end, type=int),
        )
    marks = msgspec.json.decode(body, type=_MarksBody)
    if marks.version != VERSION:
        raise ValueError(f"the journal has version {marks.version}, not {VERSION}")
    included = max((max(one.values(), default=0) for one in marks.marks.values()), default=0)
    if included > number:  # the next entries would count as included
        raise ValueError(f"a mark names entry {included}, but the last one is {number}")
    return number, marks
