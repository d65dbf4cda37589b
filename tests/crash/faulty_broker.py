# SPDX-License-Identifier: Apache-2.0
"""`faulty_broker FILE`: the broker on a disk whose faults are set by `faults.json` next to FILE.

The file holds `[operation, part of the path, errno]` and may be created and removed while the
broker is running. For the operation `slow-sync`, the number is the duration of a sync in ms.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cometmq.broker import app, opening
from cometmq.broker.native import open_native_syncer
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.log_syncs import Ended, NativeSyncer
from cometmq.cli.main import main
from cometmq.remoting.types import Buffer
from cometmq.store import disk, json_config, os_disk
from cometmq.store.errors import DiskError

if TYPE_CHECKING:
    from cometmq.accel import LentAnswers

FAULTS = Path(sys.argv[1]).parent / "faults.json"


def fault(operation: str, path: str) -> int:
    """Return the errno with which the operation fails, or 0 if it succeeds."""
    try:
        wanted, part, number = json.loads(FAULTS.read_bytes())
    except FileNotFoundError:
        return 0
    return int(number) if wanted == operation and part in path else 0


class FaultyFile(os_disk.OsFile):
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
        time.sleep(fault("slow-sync", self.path) / 1_000)
        super().sync()


class FaultyDisk(os_disk.OsDisk):
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


class FaultySyncer:
    """The native thread that syncs the log; it fails a sync by an invalid descriptor."""

    def __init__(self, syncer: NativeSyncer) -> None:
        self._syncer = syncer
        self._faults: dict[int, int] = {}

    def fileno(self) -> int:
        return self._syncer.fileno()

    def start(self, number: int, files: Sequence[int], folder: int | None) -> bool:
        paths = (str(Path(f"/proc/self/fd/{descriptor}").readlink()) for descriptor in files)
        found = [errno for path in paths if (errno := fault("sync", path))]
        if found:
            self._faults[number] = found[0]
            return self._syncer.start(number, [-1], None)
        return self._syncer.start(number, files, folder)

    def lend(self, number: int, answers: "LentAnswers", is_all: bool) -> None:
        self._syncer.lend(number, answers, is_all)

    def take(self) -> list[Ended]:
        return [
            (number, seconds, failure and (failure[0], self._faults.pop(number)), late_s)
            for number, seconds, failure, late_s in self._syncer.take()
        ]


def open_syncer(settings: BrokerSettings) -> FaultySyncer | None:
    syncer = open_native_syncer(settings)
    return None if syncer is None else FaultySyncer(syncer)


class FaultyFiles(json_config.OsFiles):
    def write(self, path: Path, data: bytes) -> None:
        number = fault("write", str(path))
        if number:
            raise OSError(number, os.strerror(number), str(path))
        super().write(path, data)


if __name__ == "__main__":
    opening.OsDisk = FaultyDisk  # type: ignore[attr-defined]
    app.open_native_syncer = open_syncer  # type: ignore[attr-defined]
    json_config.OsFiles = FaultyFiles  # type: ignore[misc]
    sys.argv[1:] = ["broker", "-c", sys.argv[1]]
    main()
