# SPDX-License-Identifier: Apache-2.0
"""The slots of the growing index file, kept in memory and written to the file page by page.

A sweep writes the pages that were dirty when it began, a few at each checkpoint, so the loop never
copies 20 MB at once. When its last page is written, the file's header may count all entries that
existed when the sweep began. Pages may then hold the numbers of newer entries, which the header
does not count. These entries are already in the file, so recovery can relink them.
"""

import mmap
import sys
from array import array
from collections.abc import Iterator
from itertools import compress, count
from typing import Final, Generic, TypeVar

from cometmq.store.disk import DiskFile

SLOT_BYTES: Final = 4
PAGE_SLOTS: Final = 1024
PAGE_BYTES: Final = PAGE_SLOTS * SLOT_BYTES
WRITE_BYTES: Final = 256 << 10
"""Number of bytes that a thread converts at a time before it writes them. The loop waits while the
thread converts, which takes 0.05 ms; for all 2 MiB of a step at once, it took 0.3 to 3 ms.
"""
STEP_PAGES: Final = 512  # 2 MiB: copied in 0.3 ms; a sweep of 20 MB takes ten checkpoints

Mark = TypeVar("Mark")


def zero_slots(count: int) -> memoryview:
    """Return slots of zeros, which take no memory until they are changed.

    A bytearray would take all of it at once, because it writes its zeros.
    """
    data = mmap.mmap(-1, max(1, count) * SLOT_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memoryview(data).cast("i")[:count]


class SlotPages:
    """A copy of adjacent pages, to be written by another thread."""

    __slots__ = ("_first_page", "_values")

    def __init__(self, first_page: int, values: bytes | memoryview) -> None:
        self._first_page = first_page
        self._values = values

    @property
    def pages(self) -> range:
        """The numbers of the pages."""
        count = -(-len(self._values) // PAGE_BYTES)
        return range(self._first_page, self._first_page + count)

    def write(self, file: DiskFile, position: int) -> None:
        """Write the pages to the file, whose slots begin at `position`."""
        position += self._first_page * PAGE_BYTES
        for start in range(0, len(self._values), WRITE_BYTES):
            values = array("i")
            values.frombytes(self._values[start : start + WRITE_BYTES])
            if sys.byteorder == "little":
                values.byteswap()
            file.write(position + start, [values.tobytes()])


class SlotTable(Generic[Mark]):
    """The number of the newest entry of each slot.

    A sweep is started with a `Mark`, usually the header to write after it; its last step returns
    the mark.
    """

    __slots__ = ("_mark", "_sweep", "dirty", "values", "was_read")

    def __init__(self, slot_count: int, data: bytes | None = None) -> None:
        """Start with a file's bytes, or with zeros that take no memory until changed."""
        if data is None:
            self.values = zero_slots(slot_count)
        else:
            values = array("i", data)
            if sys.byteorder == "little":
                values.byteswap()
            self.values = memoryview(values)
        self.was_read = data is not None
        """Whether the slots come from a disk, which may have changed them."""
        self.dirty = bytearray(-(-slot_count // PAGE_SLOTS))
        """One byte for each page, set to 1 when a slot of the page changes."""
        self._sweep: list[int] = []
        self._mark: Mark | None = None

    @property
    def is_sweeping(self) -> bool:
        """Whether a sweep is in progress."""
        return self._mark is not None

    @property
    def is_clean(self) -> bool:
        """Whether all changes have been written."""
        return not self.is_sweeping and 1 not in self.dirty

    def begin_sweep(self, mark: Mark) -> None:
        """Start a sweep over the pages that are dirty now."""
        self._sweep = sorted(self._take_dirty().union(self._sweep), reverse=True)
        self._mark = mark

    def step(self, page_count: int = STEP_PAGES) -> tuple[list[SlotPages], Mark | None]:
        """Copy the next pages of the sweep; with the last pages, also return its mark."""
        taken = self._sweep[-page_count:]
        del self._sweep[-page_count:]
        mark = None
        if not self._sweep:
            mark, self._mark = self._mark, None
        return self._copies(taken[::-1]), mark

    def take_all(self) -> list[SlotPages]:
        """Return all dirty pages without a copy; this ends a sweep.

        No slot may change before the pages are written. Copying 20 MB would take 5 to 40 ms.
        """
        pages = sorted(self._take_dirty().union(self._sweep))
        self._sweep.clear()
        self._mark = None
        values = self.values.cast("B")
        return [
            SlotPages(first, values[first * PAGE_BYTES : end * PAGE_BYTES])
            for first, end in _spans(pages)
        ]

    def give_back(self, copies: list[SlotPages]) -> None:
        """Mark the pages of a failed write as dirty again, and abandon the sweep in progress."""
        for pages in (*(copy.pages for copy in copies), self._sweep):
            for page in pages:
                self.dirty[page] = 1
        self._sweep.clear()
        self._mark = None

    def _take_dirty(self) -> set[int]:
        dirty = set(compress(count(), self.dirty))
        self.dirty[:] = bytes(len(self.dirty))
        return dirty

    def _copies(self, pages: list[int]) -> list[SlotPages]:
        return [
            SlotPages(first, self.values[first * PAGE_SLOTS : end * PAGE_SLOTS].tobytes())
            for first, end in _spans(pages)
        ]


def _spans(pages: list[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of each run of adjacent pages."""
    start = 0
    for index, page in enumerate(pages, 1):
        if index == len(pages) or pages[index] != page + 1:
            yield pages[start], page + 1
            start = index
