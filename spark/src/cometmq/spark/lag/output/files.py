# SPDX-License-Identifier: Apache-2.0
"""Files that readers see either whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write to a temporary file and rename it: after a crash the old file is still intact."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Create the folder if needed; raise OSError unless files can be written there."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".cometmq-lag.{os.getpid()}"
    try:
        probe.write_bytes(b"")
    finally:
        probe.unlink(missing_ok=True)
