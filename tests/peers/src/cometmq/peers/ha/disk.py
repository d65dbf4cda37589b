# SPDX-License-Identifier: Apache-2.0
"""A file system in a file, which a test can fill and stall; needs root."""

import errno
import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

from cometmq.peers.errors import PeerError
from cometmq.peers.processes import run_to_end

SIZE_BYTES: Final = 32 << 30
"""The image is sparse: only what is stored in it takes space."""
COMMAND_TIMEOUT_S: Final = 60
_FIFREEZE: Final = 0xC0045877
_FITHAW: Final = 0xC0045878
_BLOCK_BYTES: Final = 4096


class Disk:
    """An ext4 file system; its folder is `store`."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "image"
        self._mount = folder / "mount"
        self._ballast = self._mount / "ballast"

    @property
    def store(self) -> Path:
        return self._mount / "store"

    def mount(self) -> None:
        """Create the file system, and mount it."""
        if shutil.which("mkfs.ext4") is None:
            raise PeerError("mkfs.ext4 is missing: install e2fsprogs")
        self._mount.mkdir(parents=True)
        with self._image.open("wb") as image:
            image.truncate(SIZE_BYTES)
        # No blocks are reserved for root, because brokers run as root and could still write to
        # them.
        options = ["-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"]
        _run("mkfs.ext4", "-q", "-F", *options, str(self._image))
        _run("mount", "-o", "loop", str(self._image), str(self._mount))

    def unmount(self) -> None:
        """Unmount the file system, which stays in its image; do nothing if it is not mounted."""
        if self._mount.is_mount():
            # Lazily, because files that this process has not closed yet must not block the unmount.
            _run("umount", "--lazy", str(self._mount))

    def fill(self) -> None:
        """Allocate all free blocks to one file."""
        descriptor = os.open(self._ballast, os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            size, step = 0, SIZE_BYTES
            while step >= _BLOCK_BYTES:
                try:
                    os.posix_fallocate(descriptor, size, step)
                    size += step
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Free the blocks that `fill` took."""
        self._ballast.unlink(missing_ok=True)

    def freeze(self) -> None:
        """Make every write to the file system wait until `thaw`."""
        self._control(_FIFREEZE)

    def thaw(self) -> None:
        self._control(_FITHAW)

    def _control(self, request: int) -> None:
        descriptor = os.open(self._mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, request, 0)
        finally:
            os.close(descriptor)


def _run(*words: str) -> None:
    run_to_end(words, timeout_s=COMMAND_TIMEOUT_S)
