# SPDX-License-Identifier: Apache-2.0
"""`faulty_broker FILE`: the broker on a disk whose faults are set by `faults.json` next to FILE.

The file holds `[operation, part of the path, errno]` and may be created and removed while the
broker is running.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from cometmq.broker import app
from cometmq.cli.main import main
from cometmq.remoting.types import Buffer
from cometmq.store import disk, json_config
from cometmq.store.errors import DiskError

FAULTS = Path(sys.argv[1]).parent / "faults.json"


def fault(operation: str, path: str) -> int:
    """Return the errno with which the operation fails, or 0 if it succeeds."""
    try:
        wanted, part, number = json.loads(FAULTS.read_bytes())
    except FileNotFoundError:
        return 0
    return int(number) if wanted == operation and part in path else 0


class FaultyFile(disk.OsFile):
    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        number = fault("write", self.path)
        if number:
            data = b"".join(buffers)
            super().write(offset, [data[: len(data) // 2]])
            raise DiskError("write", self.path, number)
        super().write(offset, buffers)

    def sync(self) -> None:
        number = fault("sync", self.path)
        if number:
            raise DiskError("sync", self.path, number)
        super().sync()


class FaultyDisk(disk.OsDisk):
    def open(self, path: str) -> FaultyFile:
        return FaultyFile(self, path)

    def create(self, path: str, size: int, *, temporary: str) -> FaultyFile:
        number = fault("create", path)
        if number:
            raise DiskError("create", path, number)
        super().create(path, size, temporary=temporary)
        return FaultyFile(self, path)

    def write_each(self, pieces: Sequence[disk.Piece]) -> None:
        for index, (file, offset, data) in enumerate(pieces):
            if fault("write", file.path):
                super().write_each(pieces[:index])
                file.write(offset, [data])
        super().write_each(pieces)

    def sync_each(self, files: Sequence[disk.DiskFile]) -> None:
        for file in files:
            if fault("sync", file.path):
                file.sync()
        super().sync_each(files)


class FaultyFiles(json_config.OsFiles):
    def write(self, path: Path, data: bytes) -> None:
        number = fault("write", str(path))
        if number:
            raise OSError(number, os.strerror(number), str(path))
        super().write(path, data)


if __name__ == "__main__":
    app.OsDisk = FaultyDisk  # type: ignore[attr-defined]
    json_config.OsFiles = FaultyFiles  # type: ignore[misc]
    sys.argv[1:] = ["broker", "-c", sys.argv[1]]
    main()
