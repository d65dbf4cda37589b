# SPDX-License-Identifier: Apache-2.0
"""Adds the keys of visible messages to the index, and keeps them queued while the disk is full."""

from collections.abc import Callable

from cometmq.store.errors import DiskError
from cometmq.store.index.index import ROWS_MAX, Index
from cometmq.store.writing.append import Batch


class Indexing:
    """Writes the index of a running store."""

    __slots__ = ("_index", "_on_failure", "has_failed")

    def __init__(self, index: Index, on_failure: Callable[[Exception], None]) -> None:
        """Call `on_failure` when the disk refuses keys; it makes the store refuse further puts."""
        self._index = index
        self._on_failure = on_failure
        self.has_failed = False
        """Whether the disk has refused keys, so that no checkpoint may count them."""

    def add(self, batch: Batch) -> None:
        """Add the keys of a batch, or only queue them if they are many."""
        try:
            self._index.remember(batch.keys, is_large=batch.is_large)
        except DiskError as error:
            self._fail(error)

    def add_more(self) -> bool:
        """Add some of the queued keys; return whether more can be added."""
        return self._catch_up() is False

    def retry(self) -> bool:
        """Add some of the queued keys; return whether none is left."""
        if not self._catch_up():
            return False
        self.has_failed = False
        return True

    def _catch_up(self) -> bool | None:
        try:
            return self._index.catch_up(ROWS_MAX)
        except DiskError as error:
            self._fail(error)
            return None

    def _fail(self, error: DiskError) -> None:
        self.has_failed = True
        self._on_failure(error)
