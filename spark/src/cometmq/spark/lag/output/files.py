# SPDX-License-Identifier: Apache-2.0
"""Files that readers see either whole or not at all."""

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write beside the path and rename: a crash leaves what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Raise OSError unless files can be written there; it is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f".cometmq-lag.{os.getpid()}"
    try:
        probe.write_bytes(b"")
    finally:
        probe.unlink(missing_ok=True)
