# SPDX-License-Identifier: Apache-2.0
"""Archives whose bytes depend only on the names and contents of their files."""

import gzip
import tarfile
from collections.abc import Iterable
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path


def pack(target: Path, files: Iterable[tuple[str, Path]], *, epoch: int) -> Path:
    """Write a .tar.gz of (name, file) pairs, in the given order, with the time `epoch`.

    Owners are root; modes are 0644, or 0755 if the file is executable, whatever the umask of the
    checkout.
    """
    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, path in files:
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), epoch
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            entry.uname = entry.gname = "root"
            archive.addfile(entry, BytesIO(data))
    return target


def chart(folder: Path, out: Path, version: str, *, epoch: int) -> Path:
    """Write a chart as `helm package` does: Chart.yaml first, without what .helmignore names."""
    ignored = [
        line.strip().rstrip("/")
        for line in (folder / ".helmignore").read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]

    def is_kept(path: Path) -> bool:
        parts = path.relative_to(folder).parts
        return not any(fnmatch(part, rule) for part in parts for rule in [*ignored, ".helmignore"])

    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and is_kept(path)]
    found.sort(key=lambda path: path != folder / "Chart.yaml")
    names = [(f"{folder.name}/{path.relative_to(folder).as_posix()}", path) for path in found]
    return pack(out / f"{folder.name}-{version}.tgz", names, epoch=epoch)
