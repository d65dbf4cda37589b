# SPDX-License-Identifier: Apache-2.0
"""Reads the tables beside the log as a starting broker does: each file, or else its backup."""

import errno
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.remoting.bodies.dialect import decode_file
from cometmq.remoting.bodies.topic_config import SubscriptionGroupTable, TopicConfigTable
from cometmq.remoting.errors import CometError
from cometmq.store.disk import Disk
from cometmq.store.errors import DiskError
from cometmq.store.json_config import BACKUP_SUFFIX


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
    path = f"{folder}/{name}"
    if not disk.exists(path):
        return None
    file = disk.open(path)
    data = file.read(0, file.size())
    return decode_file(_SHAPES[name.removesuffix(BACKUP_SUFFIX)], data) if data.strip() else None
