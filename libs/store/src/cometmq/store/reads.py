# SPDX-License-Identifier: Apache-2.0
"""Searches that never wait for the disk themselves: they ask for bytes, the caller gets them.

A `Lookup` is a generator: it yields a `Read`, is sent the bytes, and returns what it found. Who
runs it decides how: a service takes bytes that are in memory at once and has a worker thread run
`Read.load` for the others, a tool waits for each (`finish`).

Invariants: a lookup itself runs on the thread that owns the store; between two reads the store may
change, so it looks again instead of remembering. A `Read` never changes.
"""

from collections.abc import Generator
from typing import NamedTuple, TypeAlias, TypeVar

from cometmq.remoting.types import Buffer
from cometmq.store.consume_queue import QueuePlan
from cometmq.store.disk import DiskFile
from cometmq.store.settings import CQ_ENTRY_BYTES

T = TypeVar("T")


class Read(NamedTuple):
    """Bytes of one file."""

    file: DiskFile
    position: int
    size: int

    def cached(self) -> Buffer | None:
        """Return the bytes if they are in memory, else None; never blocks."""
        return self.file.read_cached(self.position, self.size)

    def load(self) -> Buffer:
        """Return the bytes, fewer at the end of the file; may block."""
        return self.file.read(self.position, self.size)


Lookup: TypeAlias = Generator[Read, Buffer, T]
"""A search on its way to a T; nothing happens until somebody runs it."""


def finish(lookup: Lookup[T]) -> T:
    """Return what a lookup finds; blocks."""
    try:
        read = next(lookup)
        while True:
            read = lookup.send(read.load())
    except StopIteration as end:
        found: T = end.value
        return found


def read_entries(plan: QueuePlan) -> Lookup[bytes]:
    """Find the bytes of some entries of a queue, whole ones only."""
    parts: list[Buffer] = []
    for file, position, count in plan.pieces:
        part = yield Read(file, position, count)
        parts.append(part)
    data = b"".join((*parts, plan.tail))
    return data[: len(data) - len(data) % CQ_ENTRY_BYTES]
