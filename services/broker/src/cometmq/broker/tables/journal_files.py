# SPDX-License-Identifier: Apache-2.0
"""The files of the journal. The loop appends to them; a worker thread syncs and deletes them."""

import asyncio
import errno
from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.worker import Worker
from cometmq.store.disk import Disk, DiskFile
from cometmq.store.errors import DiskError
from cometmq.store.journal import Kind, collect
from cometmq.store.redo_log import RedoLog

FILES_MAX: Final = 16
"""Maximum number of files while tables cannot be saved; usually there are one or two."""


class JournalFiles:
    """The files, each of which begins with the marks of all tables."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        *,
        worker: Worker,
        log: Log,
        file_bytes: int,
        marks: Callable[[], bytes],
        filled: Callable[[], None],
    ) -> None:
        """Read the journal of the last run. `filled` is called when the tables should be saved."""
        self._disk = disk
        self._folder = folder
        self._log = log
        self._marks = marks
        self._filled = filled
        self.worker = worker
        self.redo = RedoLog(disk, folder, file_bytes=file_bytes)
        self.found = collect(self.redo, self.redo.replay())
        if self.found.fault:  # the entries before it are in no other file yet
            self.redo.drop_rest()
        self._ends = dict.fromkeys(self.redo.starts[:-1], self.found.number)
        """Start of each full file -> number of its last entry, or a higher number."""
        self._doomed: list[str] = []  # files that are no longer used
        self._is_deleting, self._is_synced = False, True
        self._unsynced: list[DiskFile] = []  # full ones
        self._syncing: asyncio.Future[None] | None = None
        self.byte_count = 0
        self.failed_count = 0
        """The number of writes and syncs that have failed."""

    def append(self, kind: Kind, payload: bytes, number: int) -> None:
        """Append a record after the entry with this number; raise DiskError."""
        if not self.redo.has_room(len(payload)):
            self._begin_file(number)
        self.redo.append(kind, payload)
        self.byte_count += len(payload)
        self._is_synced = False

    def _begin_file(self, number: int) -> None:
        # Saves have failed for so long that no file could be deleted. Fail here, as on a full disk,
        # rather than fill the disk.
        if len(self._ends) + 1 >= FILES_MAX:
            raise DiskError("write", self._folder, errno.EFBIG)
        starts, file = self.redo.starts, self.redo.file
        self.redo.begin_file(Kind.MARKS, self._marks())
        if starts and file is not None:
            self._ends[starts[-1]] = number
            self._unsynced.append(file)
            self._filled()

    def drop(self, needed: int) -> None:
        """Stop using full files that have only entries up to number `needed`."""
        for start in sorted(self._ends):
            if self._ends[start] > needed:
                break
            later = self.redo.starts[self.redo.starts.index(start) + 1]
            self._doomed += self.redo.forget_below(later)
            del self._ends[start]

    def delete(self) -> None:
        """Delete unneeded files on the worker, because freeing the blocks of one may take 30 ms.

        The oldest file is deleted first, so that the remaining entries have no gap.
        """
        paths = list(self._doomed)
        if not paths or self._is_deleting:
            return
        future = self.worker.submit(partial(_remove, self._disk, paths))
        self._is_deleting = True
        future.add_done_callback(partial(self._deleted, len(paths)))

    def _deleted(self, count: int, future: asyncio.Future[None]) -> None:
        self._is_deleting = False
        error = None if future.cancelled() else future.exception()
        if error is None:
            del self._doomed[:count]
        else:
            self._log.warning("journal.not_deleted", error=describe(error))

    def sync(self) -> None:
        """On the worker, sync the writes since the last sync, unless a sync is already running."""
        file = self.redo.file
        if self._syncing is not None or self._is_synced or file is None:
            return
        files, self._unsynced = [*self._unsynced, file], []
        self._is_synced = True
        self._syncing = self.worker.submit(partial(_sync, self._disk, self._folder, files))
        self._syncing.add_done_callback(self._synced)

    def _synced(self, future: asyncio.Future[None]) -> None:
        self._syncing = None
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self.failed_count += 1
            self._log.error("journal.sync_failed", folder=self._folder, error=describe(error))
            self._filled()  # the kernel may have dropped the changes: the tables have them

    async def drain(self) -> None:
        """Wait until no sync and no deletion is running."""
        await self.worker.submit(lambda: None)
        self.delete()  # files that became obsolete during the last deletion
        await self.worker.submit(lambda: None)

    def condense(self) -> None:
        """Replace the files with one that has only the marks and the position; blocks.

        The file is synced, so that a crash of the host after a clean stop does not
        make the store a new copy.
        """
        redo = self.redo
        try:
            file = redo.begin_file(Kind.MARKS, self._marks())
            _sync(self._disk, self._folder, [file])
        except DiskError:  # after a crash of the host, the files could hold an earlier position
            redo.clear()
            raise
        if not self._doomed:  # otherwise the entries would have a gap
            redo.drop_below(redo.file_start)


def _remove(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        disk.remove(path)


def _sync(disk: Disk, folder: str, files: list[DiskFile]) -> None:
    for file in files:
        file.sync()
    disk.sync_folder(folder)
