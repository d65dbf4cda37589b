# SPDX-License-Identifier: Apache-2.0
"""Keeps the bytes that a follower cuts off its log, for inspection.

The bytes were never confirmed, but they may contain a message whose send timed out. Each file has
the format of a commit log, and is named after the physical offset of its first byte and the last
epoch in it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.store.log.commit_log import LogView

SUFFIX: Final = ".tail"
COUNT_MAX: Final = 8
"""Maximum number of files; the oldest ones are deleted."""

BYTES_MAX: Final = 512 << 20
"""Maximum size of a file; bytes after it are not kept. A master has at most half as
many unconfirmed bytes.
"""

_CHUNK_BYTES: Final = 1 << 20

KeepTail = Callable[[LogView, int, int], Path]
"""Keeps the end of a log from an offset on, given the last epoch in it; returns the file."""


def tail_path(folder: Path, offset: int, epoch: int) -> Path:
    return folder / f"{offset:020d}-{epoch}{SUFFIX}"


def keep_tail(folder: Path, view: LogView, offset: int, epoch: int) -> Path:
    """Copy the log from an offset to its end; raise OSError or StoreError. Blocks."""
    folder.mkdir(parents=True, exist_ok=True)
    path = tail_path(folder, offset, epoch)
    with path.open("wb") as file:
        end = min(view.end, offset + BYTES_MAX)
        while offset < end:
            left = view.file_size - offset % view.file_size
            data = view.read(offset, min(_CHUNK_BYTES, left, end - offset), may_block=True)
            if not data:
                break
            file.write(data)
            offset += len(data)
    _delete_oldest(folder)
    return path


def _delete_oldest(folder: Path) -> None:
    tails = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in tails[:-COUNT_MAX]:
        path.unlink()
