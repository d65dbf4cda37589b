# SPDX-License-Identifier: Apache-2.0
"""Paths below a home folder, and small files that are replaced atomically: a crash leaves either
the old or the new content.
"""

import os
from pathlib import Path

from cometmq.remoting.errors import SettingsError


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


def at_home(path: str, shown: str) -> str:
    """Return a path without `~` or `~user` at its beginning.

    Raise SettingsError, whose text begins with `shown`, if there is no such home folder: the path
    would name a folder in the current one.
    """
    found = os.path.expanduser(path)  # noqa: PTH111  # Path raises a RuntimeError
    if not found.startswith("~"):
        return found
    user = found[1:].partition("/")[0]
    reason = f"this machine has no user {user}" if user else "this user has no home folder"
    raise SettingsError(f"{shown}: {reason}; give the whole path")
