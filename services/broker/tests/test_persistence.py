# SPDX-License-Identifier: Apache-2.0
"""Tables are written off the loop; the newest content wins and failures are tried again."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.broker.tables.persistence import ConfigSaver
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.worker import Worker
from cometmq.store.json_config import JsonTable, OsFiles


class GatedFiles(OsFiles):
    """Writes wait for a gate, and may fail."""

    __slots__ = ("error", "gate", "written")

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: OSError | None = None
        self.written: list[bytes] = []

    def write(self, path: Path, data: bytes) -> None:
        self.gate.wait(10)
        if self.error is not None:
            raise self.error
        if path.suffix == ".tmp" and ".bak" not in path.name:
            self.written.append(data)
        super().write(path, data)


@pytest.fixture
def files() -> GatedFiles:
    return GatedFiles()


@pytest.fixture
def table(tmp_path: Path, files: GatedFiles) -> JsonTable[str]:
    return JsonTable(tmp_path / "x.json", decode=bytes.decode, encode=str.encode, files=files)


@pytest.fixture
def saver() -> Iterator[ConfigSaver]:
    worker = Worker("test-config")
    yield ConfigSaver(worker, log=NO_LOG)
    worker.close()


async def test_awaiting_a_save_means_it_is_on_disk(
    saver: ConfigSaver, table: JsonTable[str]
) -> None:
    await saver.save(table, "one")
    assert table.path.read_bytes() == b"one"


async def test_contents_that_wait_are_replaced_by_newer_ones(
    saver: ConfigSaver, table: JsonTable[str], files: GatedFiles
) -> None:
    files.gate.clear()
    first = saver.save(table, "one")
    second = saver.save(table, "two")
    third = saver.save(table, "three")
    files.gate.set()
    await first
    await second
    await third

    assert files.written == [b"one", b"three"]
    assert table.path.read_bytes() == b"three"


async def test_a_failure_is_told_and_tried_again(
    saver: ConfigSaver, table: JsonTable[str], files: GatedFiles
) -> None:
    files.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        await saver.save(table, "one")
    assert not saver.is_healthy
    assert saver.failed_count == 1

    files.error = None
    saver.retry()
    await saver.drain()

    assert saver.is_healthy
    assert table.path.read_bytes() == b"one"


async def test_nobody_needs_to_await(saver: ConfigSaver, table: JsonTable[str]) -> None:
    saver.save(table, "one")
    saver.save(table, "two")
    await saver.drain()
    assert table.path.read_bytes() == b"two"
