# SPDX-License-Identifier: Apache-2.0
"""Changed settings go back into the properties file that the broker was started with.

Compatibility: RocketMQ rewrites the whole file with all keys and loses its comments; here only
the changed keys change, and the file is replaced in one step, so a crash leaves one or the other.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

from cometmq.runtime import properties
from cometmq.runtime.saves import Job, Saver
from cometmq.runtime.worker import Worker
from cometmq.store.json_config import TEMPORARY_SUFFIX, ConfigFiles, OsFiles


def merge(text: str, changes: Mapping[str, str]) -> str:
    """Return the text with these values: where the key stands, else at the end."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    standing = {key: number - 1 for key, _value, number in properties.parse_lines(text)}
    for key in sorted(standing.keys() & changes.keys(), key=standing.__getitem__, reverse=True):
        first = standing[key]
        last = first
        while _continues(lines[last]) and last + 1 < len(lines):
            last += 1
        lines[first : last + 1] = [_line(key, changes[key])]
    if lines[-1] == "":
        lines.pop()
    lines += [_line(key, value) for key, value in changes.items() if key not in standing]
    return "".join(f"{line}\n" for line in lines)


class SettingsFile:
    """The file, written on a worker thread; changes that come during a write share the next."""

    def __init__(self, path: Path, worker: Worker, *, files: ConfigFiles | None = None) -> None:
        """Name the file; `files` lets tests put a failing disk behind it."""
        self.path = path
        self._saver = Saver(worker)
        self._changes: dict[str, str] = {}
        self._files = files or OsFiles()

    async def save(self, changes: Mapping[str, str]) -> None:
        """Put the values into the file; raise OSError when the disk refuses."""
        self._changes |= changes
        await self._saver.save(self.path, self._begin)

    def _begin(self) -> Job:
        changes, self._changes = self._changes, {}
        return lambda: self._rewrite(changes)

    def _rewrite(self, changes: Mapping[str, str]) -> None:
        data = self._files.read(self.path) or b""
        try:
            text, encoding = data.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:
            text, encoding = data.decode("latin-1"), "latin-1"
        new = self.path.with_name(self.path.name + TEMPORARY_SUFFIX)
        self._files.write(new, merge(text, changes).encode(encoding, "backslashreplace"))
        if self.path.exists():
            shutil.copymode(self.path, new)
        self._files.replace(new, self.path)


def _continues(line: str) -> bool:
    """Tell whether the value goes on in the next line: an odd number of backslashes at the end."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _line(key: str, value: str) -> str:
    return properties.render({key: value}).rstrip("\n")
