# SPDX-License-Identifier: Apache-2.0
"""The input of the demo: every line of every module of the running Python's standard library."""

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import msgspec


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
