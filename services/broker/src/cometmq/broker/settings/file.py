# SPDX-License-Identifier: Apache-2.0
"""Writes changed settings back to the properties file with which the broker was started.

Compatibility: RocketMQ rewrites the whole file with all keys and loses its comments. Here only the
changed keys are rewritten. The file is replaced atomically, so a crash leaves either the old or the
new version.
"""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from cometmq.runtime import properties
from cometmq.runtime.files import link_target
from cometmq.runtime.worker import Worker
from cometmq.store.json_config import TEMPORARY_SUFFIX, OsFiles


def merge(text: str, changes: Mapping[str, str]) -> str:
    """Return the text with changed values, each in the line of its key or appended."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    standing = {it.key: it.line - 1 for it in properties.parse_lines(text)}
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
    """The file, written on a worker thread."""

    def __init__(self, path: Path, worker: Worker, *, files: OsFiles | None = None) -> None:
        """`files` lets tests inject disk failures."""
        self.path = path
        self._worker = worker
        self._files = files or OsFiles()

    async def save(self, changes: Mapping[str, str]) -> None:
        """Write the values to the file; raise OSError if the write fails."""
        await self._worker.submit(partial(self._rewrite, dict(changes)))

    def _rewrite(self, changes: Mapping[str, str]) -> None:
        data = self._files.read(self.path) or b""
        try:
            text, encoding = data.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:
            text, encoding = data.decode("latin-1"), "latin-1"
        path = link_target(self.path)
        new = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._files.write(new, merge(text, changes).encode(encoding, "backslashreplace"))
        if path.exists():
            shutil.copymode(path, new)
        self._files.replace(new, path)


def _continues(line: str) -> bool:
    r"""Return whether the value continues on the next line: it ends in an odd number of `\`."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _line(key: str, value: str) -> str:
    return properties.render({key: value}).rstrip("\n")
