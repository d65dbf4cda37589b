# SPDX-License-Identifier: Apache-2.0
"""Replace small files atomically: a crash leaves either the old or the new content."""

import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Replace the file durably and keep the previous one as `.bak`. Blocks on fsync."""
    path = link_target(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(path.with_name(path.name + ".bak"))
    fresh.replace(path)
    sync_folder(path.parent)


def link_target(path: Path) -> Path:
    """Return the file to replace: a rename over a symbolic link would leave its target as it was,
    and the programs that read the target would not see the change.
    """
    return Path(os.path.realpath(path))


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
