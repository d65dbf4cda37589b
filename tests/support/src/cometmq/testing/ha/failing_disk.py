# SPDX-License-Identifier: Apache-2.0
"""An in-memory disk: a process can stop, die or fail before any call, and power can be lost."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random


class Crash(BaseException):
    """The process ended; like SIGKILL, this is never caught."""


class Disk:
    """Folders in memory, of which only `root` exists at first."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folders: dict[Path, dict[str, bytes]] = {root: {}}
        self.changes: list[tuple[Path, str, bytes | None]] = []
        """Changes to names that no sync has made durable yet."""
        self.durable: dict[Path, dict[str, bytes]] = {root: {}}

    def set(self, path: Path, data: bytes | None) -> None:
        """Bind a name to data, or remove the name (None); not durable before a sync."""
        names = self.folder(path.parent)
        if data is None:
            names.pop(path.name, None)
        else:
            names[path.name] = data
        self.changes.append((path.parent, path.name, data))

    def folder(self, path: Path) -> dict[str, bytes]:
        """Return the names and contents of the files in a folder, or raise FileNotFoundError."""
        if path not in self.folders:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return self.folders[path]

    def sync(self, folder: Path) -> None:
        """Make all changes to the folder durable."""
        for parent, name, data in self.changes:
            if parent == folder:
                self._make_durable(parent, name, data)
        self.changes = [change for change in self.changes if change[0] != folder]

    def _make_durable(self, parent: Path, name: str, data: bytes | None) -> None:
        names = self.durable.setdefault(parent, {})
        if data is None:
            names.pop(name, None)
        else:
            names[name] = data

    def lose_power(self, random: Random) -> None:
        """Revert changes that no sync has made durable, each with a probability of one half."""
        for change in self.changes:
            if random.random() < 0.5:
                self._make_durable(*change)
        kept = self.durable
        self.changes = []
        # A folder that has lost its own name is out of reach, with everything in it.
        self.folders = {
            path: dict(names)
            for path, names in kept.items()
            if path == self.root or path.name in kept.get(path.parent, {})
        }
        self.durable = {path: dict(names) for path, names in self.folders.items()}


class Process:
    """One process's view of the files; `before` is called with each call's number."""

    def __init__(self, disk: Disk, before: Callable[[int], None] = lambda step: None) -> None:
        self.disk = disk
        self._before = before
        self._steps = count()
        self._is_dead = False

    def _step(self) -> None:
        if self._is_dead:  # nothing runs after a SIGKILL, not even a `finally` block
            raise Crash
        try:
            self._before(next(self._steps))
        except Crash:
            self._is_dead = True
            raise

    def read(self, path: Path) -> bytes | None:
        """Read a file; None if it does not exist."""
        self._step()
        return self.disk.folders.get(path.parent, {}).get(path.name)

    def names(self, folder: Path) -> list[str]:
        """List a folder."""
        self._step()
        return list(self.disk.folder(folder))

    def create(self, path: Path, data: bytes) -> None:
        """Create a file, which is torn if the process dies midway."""
        self._step()
        self.disk.set(path, data[: len(data) // 2])  # torn, if the process ends here
        self._step()
        self.disk.folder(path.parent)[path.name] = data
        # A proposal that was removed meanwhile can no longer be linked.
        self.disk.changes.append((path.parent, path.name, data))

    def link(self, path: Path, name: Path) -> None:
        """Give a file a second name; raise FileExistsError if the name is in use."""
        self._step()
        data = self.disk.folder(path.parent).get(path.name)
        if data is None:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        if name.name in self.disk.folder(name.parent):
            raise FileExistsError(17, "File exists", str(name))
        self.disk.set(name, data)

    def remove(self, path: Path) -> None:
        """Remove a name, whether it exists or not."""
        self._step()
        self.disk.set(path, None)

    def replace(self, path: Path, data: bytes) -> None:
        """Replace a file, and sync its folder."""
        self._step()
        self.disk.set(path, data)
        self._step()
        self.disk.sync(path.parent)

    def make_folder(self, path: Path) -> None:
        """Make a folder if it does not exist."""
        self._step()
        if path not in self.disk.folders:
            self.disk.folders[path] = {}
            self.disk.set(path, b"")

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        self._step()
        assert not self.disk.folder(path)
        del self.disk.folders[path]
        self.disk.set(path, None)

    def sync(self, folder: Path) -> None:
        """Sync a folder."""
        self._step()
        self.disk.sync(folder)
