# SPDX-License-Identifier: Apache-2.0
"""Searches that do not block: a search requests bytes, and its caller reads them.

A `Lookup` is a generator that yields `Read`s, receives their bytes, and returns the result of the
search. The caller chooses how to run it. A service passes in bytes that are already in memory, and
runs `Read.load` on a worker thread for the rest; a tool blocks on each read (`finish`).

Invariants: the lookup itself runs on the thread that owns the store. The store may change between
two reads, so a lookup checks again instead of relying on earlier results. A `Read` is immutable.
"""

from collections.abc import Generator
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from cometmq.remoting.types import Buffer
from cometmq.store.disk import DiskFile

T = TypeVar("T")


class SomeRead(Protocol):
    """A range of bytes that a search needs."""

    @property
    def size(self) -> int:
        """The number of bytes."""

    def cached(self) -> Buffer | None:
        """Return the bytes if they are in memory, otherwise None; never block."""

    def load(self) -> Buffer:
        """Return the bytes, or fewer if the store does not have all of them; may block."""


class Read(NamedTuple):
    """A range of bytes in one file."""

    file: DiskFile
    position: int
    size: int

    def cached(self) -> Buffer | None:
        """Return the bytes if they are in memory, otherwise None; never block."""
        return self.file.read_cached(self.position, self.size)

    def load(self) -> Buffer:
        """Return the bytes, fewer at the end of the file; may block."""
        return self.file.read(self.position, self.size)


class Pause(NamedTuple):
    """Requested by a search between two parts of a long computation; it has no bytes."""

    held_bytes: int = 0
    """Memory of the result so far; a caller that runs many searches bounds the total."""

    @property
    def size(self) -> int:
        """Return 0."""
        return 0

    def cached(self) -> bytes:
        """Return nothing."""
        return b""

    def load(self) -> bytes:
        """Return nothing."""
        return b""


PAUSE: Final = Pause()
"""For searches whose results are small."""


class Exhausted(Exception):  # not an error: it ends a search early
    """Thrown into a search that has used up its time.

    The search then ends with the result so far, or goes on until it has a result from which its
    caller can continue.
    """


Lookup: TypeAlias = Generator[SomeRead, Buffer, T]
"""A search that returns a T; it runs only while its caller drives it."""


def finish(lookup: Lookup[T]) -> T:
    """Run a lookup to completion and return its result; blocks."""
    try:
        read = next(lookup)
        while True:
            read = lookup.send(read.load())
    except StopIteration as end:
        found: T = end.value
        return found


def cached(lookup: Lookup[T]) -> T | None:
    """Run a lookup and return its result, or None as soon as it needs bytes that are not in
    memory.
    """
    try:
        read = next(lookup)
        while (data := read.cached()) is not None:
            read = lookup.send(data)
    except StopIteration as end:
        found: T = end.value
        return found
    lookup.close()
    return None
