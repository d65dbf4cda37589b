# SPDX-License-Identifier: Apache-2.0
"""Ranges of the log whose entries and keys a reader outside the store computes all at once.

A native message path is such a reader. It reads the plain records at the beginning of a range and
stops where no plain record begins: at the end of the data, a blank, damage, or a record that only
Python can interpret. The store examines that position itself, so all decisions are made in Python.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from cometmq.store.index.keys import Keys

Delayed: TypeAlias = tuple[str, Sequence[int], int]
"""The topic of delayed messages, the delays of its queues in ms, and the delay of unknown
queues."""

QueueRun: TypeAlias = tuple[str, int, int, int, bytes]
"""Records of one queue with consecutive queue offsets: topic, queue id, first queue offset, number
of records, and their entries.
"""


class RecordRange(NamedTuple):
    """The content of consecutive whole records, none of which looks torn."""

    size: int
    record_count: int
    store_timestamp: int
    """The store time of the last record."""
    runs: Sequence[QueueRun]
    keys: Keys


class ReadRange(Protocol):
    """Reads the plain records of a range."""

    def __call__(  # flat arguments: one native call per read of the log
        self,
        data: bytes,
        position: int,
        base: int,
        *,
        check_crc: bool,
        is_indexing: bool,
        delayed: Delayed,
    ) -> tuple[int, int, int, Sequence[QueueRun], Keys] | None:
        """Return the fields of a `RecordRange`, which begins at a position of `data`.

        The first byte of `data` lies at offset `base` of the log. None leaves all records to
        Python.
        """
