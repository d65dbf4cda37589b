# SPDX-License-Identifier: Apache-2.0
"""Runs: messages held by a source outside the store, which places and encodes them in one step; and
ranges of the log whose entries and keys a reader outside the store computes all at once.

A native message path is such a source and such a reader. The store still decides where the records
go, writes them, publishes their queue entries and decides when their requests are answered. A run
keeps its position among the other puts, so the log keeps the order of the requests, regardless of
which path encodes them.

A reader of a range stops where no plain record begins: at the end of the data, a blank, damage, or
a record that only Python can interpret, which the store examines itself.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias

from cometmq.store.index.index_format import Keys
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.results import PutDone, PutResult

RUN_BYTES: Final = 1 << 20

Queues: TypeAlias = dict[tuple[str, int], ConsumeQueue]
"""The known queues, by topic and queue id."""

CreateQueue: TypeAlias = Callable[[str, int], ConsumeQueue]
"""Creates the queue of a topic and id in memory, and adds it to the known ones."""

PlacedRun: TypeAlias = tuple[
    int,
    int,
    bytes,
    Sequence[tuple[ConsumeQueue, bytes, int]],
    Keys,
    Sequence[tuple[bool, PutDone, int]],
]
"""A placed part of a run:

- the number of requests, and of messages
- the records
- the entries of each queue, with their number
- the keys
- groups of answers: whether they wait for the disk, their callback, and their number
"""


class RunSource(Protocol):
    """Holds the requests of runs from arrival to commit."""

    def place(  # flat arguments: one native call per commit
        self,
        first: int,
        count: int,
        offset: int,
        file_end: int,
        store_timestamp: int,
        queues: Queues,
        create: CreateQueue,
    ) -> PlacedRun:
        """Encode up to `count` requests from number `first` on, as many as fit into the file.

        The source's state does not change, because a commit that cannot be encoded places its runs
        again.
        """

    def refuse(self, first: int, count: int, result: PutResult) -> None:
        """Answer requests that were not placed."""

    def release(self) -> None:
        """Forget all requests; their records and answers are now in the commit."""


class Run:
    """Consecutive requests of a source."""

    __slots__ = ("count", "first", "source", "staged_bytes")

    def __init__(self, source: RunSource, first: int, count: int, staged_bytes: int) -> None:
        """Take `count` requests, starting with number `first`."""
        self.source = source
        self.first = first
        self.count = count
        self.staged_bytes = staged_bytes

    def is_continued_by(self, source: RunSource, first: int) -> bool:
        """Return whether requests of this source from number `first` on can be added to this run. A
        long run is not continued, because a commit takes whole runs.
        """
        is_next = self.source is source and self.first + self.count == first
        return is_next and self.staged_bytes < RUN_BYTES

    def refuse(self, result: PutResult) -> None:
        """Answer all requests with a refusal."""
        self.source.refuse(self.first, self.count, result)


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
