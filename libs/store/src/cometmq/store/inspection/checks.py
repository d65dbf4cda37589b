# SPDX-License-Identifier: Apache-2.0
"""Checks of an inspected store beside its records: checksums of the log, and tables.

Tables are read as a starting broker reads them: each file, or else its backup.
"""

import errno
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.remoting.bodies.dialect import decode_file
from cometmq.remoting.bodies.topic_config import SubscriptionGroupTable, TopicConfigTable
from cometmq.remoting.errors import CometError
from cometmq.store.disk import Disk, read_whole
from cometmq.store.errors import DiskError
from cometmq.store.inspection.inspect import StoreView
from cometmq.store.json_config import BACKUP_SUFFIX
from cometmq.store.log.checksums import Checksums, spans
from cometmq.store.log.damage import DamagedRange, clipped, merged
from cometmq.store.recovery.trust import trusted_end
from cometmq.store.upkeep.withheld import Examiner, Found, load_state, named

PART_BYTES: Final = 64 << 20


class DamagedPart(NamedTuple):
    """The path of a damaged log file, and a description of the damage in it."""

    path: str
    text: str


def damaged_parts(
    view: StoreView, end: int, on_part: Callable[[int], None] = lambda _end: None
) -> list[DamagedPart]:
    """Return the damage before `end` in the log: blocks that fail their checksums, and ranges that
    a broker has found damaged.

    `measure_queues` must have been called. `on_part` gets the end of each part that was compared.
    """
    files, layout = view.files, view.parts.layout
    checksums = Checksums(view.disk, layout, files.file_size)
    checksums.load()
    end = min(end, trusted_end(files, view.checkpoint, view.progress))
    found: list[DamagedRange] = []
    for span in spans(files, files.first, end):
        for begin in range(span.begin, span.end, PART_BYTES):
            part = span._replace(begin=begin, end=min(begin + PART_BYTES, span.end))
            try:
                found += checksums.check(part).damaged
            except DiskError as error:
                if not view.is_deletion(error):
                    raise
            on_part(span.start + part.end)
    known = clipped(load_state(view.disk, layout).damage, files.first, end)
    found += [left for it in known for left in checksums.still_damaged(files, it)]
    examiner = Examiner(files, list(view.parts.queues.queues.values()))
    return [_part(view, it) for it in examiner.findings(merged(found))]


def lost_head(view: StoreView) -> DamagedPart | None:
    """Return the loss of the log's oldest files: they are missing although no retention deleted
    them, and the broker has not reported it at a start. None if there is no such loss.
    """
    files = view.files
    if not files.files or view.progress is None or not view.progress.is_newest(view.checkpoint):
        return None
    lost = Checksums(view.disk, view.parts.layout, files.file_size).without_log_file(files.first)
    if not lost:
        return None
    last = f" to {files.path(lost[-1])}" if len(lost) > 1 else ""
    return DamagedPart(
        files.path(lost[0]),
        f"{len(lost)} of the oldest files, from this one{last}, are missing, and no retention"
        " deleted them; put them back, or restore them from a backup, before a broker starts",
    )


def _part(view: StoreView, found: Found) -> DamagedPart:
    damage = found.damage
    position = (damage.start - view.files.first) % view.files.file_size
    return DamagedPart(
        view.files.file_at(damage.start).path,
        f"{damage.end - damage.start} bytes from byte {position} (physical offset {damage.start})"
        f" differ from their checksum; messages: {named(found.messages, found.keys)};"
        f" intact messages beside them: {found.spared_count}",
    )


class _Offsets(msgspec.Struct, rename="camel"):
    offset_table: dict[str, dict[int, int]] = {}


class _Delays(msgspec.Struct, rename="camel"):
    offset_table: dict[int, int] = {}


class _Filters(msgspec.Struct, rename="camel"):
    filter_data_by_topic: dict[str, dict[str, Any]] = {}


_TOPICS: Final = "topics.json"
_SHAPES: Final[dict[str, Any]] = {
    _TOPICS: TopicConfigTable,
    "subscriptionGroup.json": SubscriptionGroupTable,
    "consumerOffset.json": _Offsets,
    "delayOffset.json": _Delays,
    "consumerFilter.json": _Filters,
}
_UNREADABLE: Final = (CometError, ValueError)
"""Errors that mean a damaged table for `JsonTable`, and errors of the disk."""


class TableFault(NamedTuple):
    """A file of a table that cannot be read."""

    path: str
    text: str
    is_lost: bool
    """Whether no copy of the table can be read, so a broker refuses to start."""


def table_faults(disk: Disk, folder: str) -> list[TableFault]:
    """Return the unreadable files of the tables in a store's config folder."""
    found: list[TableFault] = []
    for name in _SHAPES:
        faults, has_copy = dict[str, str](), False
        for file in (name, f"{name}{BACKUP_SUFFIX}"):
            try:
                has_copy |= _table(disk, folder, file) is not None
            except _UNREADABLE as error:
                if isinstance(error, DiskError) and error.errno != errno.EIO:
                    raise
                faults[file] = str(error)
        advice = (
            "a broker reads the other copy, and writes both again"
            if has_copy
            else "no copy can be read, so a broker does not start: restore the file, or remove it"
            f" and its {BACKUP_SUFFIX}"
        )
        found += [
            TableFault(f"{folder}/{file}", f"{text}; {advice}", not has_copy)
            for file, text in faults.items()
        ]
    return found


def configured_topics(disk: Disk, folder: str) -> set[str] | None:
    """Return the topics in the broker's topic table; None if the file is missing or unreadable."""
    try:
        table = _table(disk, folder, _TOPICS)
    except _UNREADABLE:
        return None
    return None if table is None else set(table.topic_config_table)


def _table(disk: Disk, folder: str, name: str) -> Any:
    """Return the content of a file; None if it is missing or blank, as in a new store."""
    data = read_whole(disk, f"{folder}/{name}") or b""
    return decode_file(_SHAPES[name.removesuffix(BACKUP_SUFFIX)], data) if data.strip() else None
