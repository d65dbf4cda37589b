# SPDX-License-Identifier: Apache-2.0
"""Reassembles the files from lines that arrive in any order, some of them twice.

Delivery is at least once, so only the first copy of a line is kept. Its queue offset is the lowest
among the copies, because a retried send is stored later.
"""

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from cometmq.peers.demo.consumer import Line


class SourceFile(msgspec.Struct, frozen=True):
    """One module of the library: its name in message keys, its package, and its expected
    content.
    """

    path: Path
    name: str
    """Path under the library's folder; spaces, which keys cannot contain, are escaped."""
    package: str
    line_count: int
    byte_count: int
    sha256: str

    def lines(self) -> list[bytes]:
        """Return the lines, including their line endings."""
        return self.path.read_bytes().splitlines(keepends=True)


def library_files(root: Path | None = None) -> list[SourceFile]:
    """Return all modules, longest first."""
    root = root or Path(sysconfig.get_path("stdlib"))
    files = [_source_file(root, path) for path in _module_paths(root)]
    return sorted(files, key=lambda file: (-file.line_count, file.name))


def _module_paths(root: Path) -> Iterator[Path]:
    """Yield the library's own modules, excluding installed packages."""
    for path in root.rglob("*.py"):
        first = path.relative_to(root).parts[0]
        if first.removesuffix(".py") in sys.stdlib_module_names and path.is_file():
            yield path


def _source_file(root: Path, path: Path) -> SourceFile:
    data = path.read_bytes()
    relative = path.relative_to(root)
    return SourceFile(
        path=path,
        name=relative.as_posix().replace(" ", "%20"),
        package=relative.parts[0].removesuffix(".py"),
        line_count=len(data.splitlines()),
        byte_count=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


class _Place(msgspec.Struct, gc=False):
    queue_id: int
    queue_offset: int
    text: bytes


class Rebuilder:
    """Collects lines and compares the resulting files with the originals."""

    def __init__(self, files: Iterable[SourceFile]) -> None:
        self._files = {file.name: file for file in files}
        self._places: dict[str, dict[int, _Place]] = {name: {} for name in self._files}
        self.line_count = 0
        self.repeated_count = 0

    def add(self, line: Line) -> None:
        """Add one received line."""
        name, _, number = line.key.rpartition(":")
        places = self._places.get(name)
        if places is None:
            return  # not a line of the demo
        known = places.get(int(number))
        if known is None:
            places[int(number)] = _Place(line.queue_id, line.queue_offset, line.text)
            self.line_count += 1
            return
        self.repeated_count += 1
        known.queue_offset = min(known.queue_offset, line.queue_offset)

    def faults(self) -> list[str]:
        """Return one line for each file that differs from its original."""
        found = (self._fault(file) for file in self._files.values())
        return [fault for fault in found if fault is not None]

    def _fault(self, file: SourceFile) -> str | None:
        places = self._places[file.name]
        ordered = [places[number] for number in sorted(places)]
        if len(places) != file.line_count:
            return f"{file.name}: {len(places):,} of {file.line_count:,} lines arrived"
        if hashlib.sha256(b"".join(place.text for place in ordered)).hexdigest() != file.sha256:
            return f"{file.name}: SHA-256 differs from the original"
        if len({place.queue_id for place in ordered}) > 1:
            return f"{file.name}: its lines are in several queues"
        offsets = [place.queue_offset for place in ordered]
        if offsets != sorted(offsets):
            return f"{file.name}: its lines are not in order in their queue"
        return None
