# SPDX-License-Identifier: Apache-2.0
"""Replace small files atomically: a crash leaves either the old or the new content."""

import os
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Replace the file durably and keep the previous one as `.bak`. Blocks on fsync."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        path.replace(path.with_name(path.name + ".bak"))
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
