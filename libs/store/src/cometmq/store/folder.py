# SPDX-License-Identifier: Apache-2.0
"""The folder of an open store: its lock, and the abort file that reveals an unclean stop.

Compatibility: both files have RocketMQ's names, so its brokers and ours respect each other's locks.
"""

from cometmq.store.disk import Disk, DiskLock
from cometmq.store.errors import DiskError
from cometmq.store.layout import Layout


class StoreFolder:
    """One process's claim on a store's folder."""

    __slots__ = ("_disk", "_layout", "_lock")

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout
        self._lock: DiskLock | None = None

    @property
    def is_claimed(self) -> bool:
        """Whether this process holds the lock."""
        return self._lock is not None

    def claim(self) -> None:
        """Lock the folder, creating it if necessary. Raise LockHeld or DiskError."""
        self._disk.make_folder(self._layout.root)
        self._lock = self._disk.lock(self._layout.lock)

    def release(self) -> None:
        """Release the lock."""
        assert self._lock is not None
        self._lock.release()
        self._lock = None

    def prepare(self) -> bool:
        """Create missing folders and remove temporary files.

        Return whether the last stop was clean.
        """
        disk, layout = self._disk, self._layout
        folders = layout.commit_log, layout.consume_queue, layout.index, layout.config
        for path in (*folders, layout.checksums):
            disk.make_folder(path)
        for path in layout.left_behind(disk.names):
            disk.remove(path)
        return not disk.exists(layout.abort)

    def has_rebooted(self, boot_id: str) -> bool:
        """Return whether the host may have crashed while a program had the store open.

        A crash of the host loses the page cache. RocketMQ leaves an empty abort file without a boot
        id, so the result is True after any unclean stop of RocketMQ.
        """
        disk, path = self._disk, self._layout.abort
        if not disk.exists(path):
            return False
        return not boot_id or disk.open(path).read(0, len(boot_id) + 1) != boot_id.encode()

    def mark_open(self, boot_id: str) -> None:
        """Create and sync the abort file, which reveals an unclean stop to the next startup."""
        disk, layout = self._disk, self._layout
        temporary = layout.temporary(layout.abort)
        file = disk.create(layout.abort, len(boot_id), temporary=temporary)
        try:
            file.write(0, [boot_id.encode()])
            file.sync()
        except DiskError as error:
            # A full disk must not prevent a start, because consumers can still read. Without the
            # boot id, the next start assumes that the host has crashed and verifies more checksums.
            if not error.is_space_missing:
                raise
        file.close()
        disk.sync_folder(layout.root)

    def mark_clean(self) -> None:
        """Remove the abort file, so that the next start skips most checks."""
        self._disk.remove(self._layout.abort)
