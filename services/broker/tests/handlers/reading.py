# SPDX-License-Identifier: Apache-2.0
"""Cold reads of the store for tests: a disk whose data is not in memory, a file whose reads wait,
and waits with a deadline.
"""

import asyncio
import errno
import threading
from collections.abc import Callable
from typing import Any

import pytest

from cometmq.broker.broker import Broker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call
from cometmq.store.errors import DiskError
from cometmq.store.os_disk import OsFile
from cometmq.testing.broker import FakePeer

DEADLINE_S = 30.0


async def until(is_over: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_over():  # noqa: ASYNC110  # the code under test knows no event
            await asyncio.sleep(0)


async def drained(broker: Broker) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await broker.driver.drain()


def query(peer: FakePeer) -> Call[Any]:
    return peer.call(RequestCode.QUERY_MESSAGE)


class Disk:
    """Records which threads read the disk; while `is_cold` is set, no data is in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_cold = False
        self.is_broken = False
        self.readers: list[threading.Thread] = []
        read = OsFile.read

        def note_read(file: OsFile, offset: int, count: int) -> bytes:
            self.readers.append(threading.current_thread())
            if self.is_broken:
                raise DiskError("read", file.path, errno.EIO)
            return read(file, offset, count)

        def cold(file: OsFile, offset: int, count: int) -> Any:
            return None if self.is_cold else read(file, offset, count)

        monkeypatch.setattr(OsFile, "read", note_read)
        monkeypatch.setattr(OsFile, "read_cached", cold)


class SlowFile:
    """A file that is never in memory; its reads wait until they are allowed."""

    def __init__(self) -> None:
        self._may_read = threading.Semaphore(0)
        self._is_open = False

    def allow(self, count: int) -> None:
        """End this number of reads."""
        self._may_read.release(count)

    def open(self) -> None:
        """End all reads, also later ones: a failed test would wait for each of them."""
        self._is_open = True
        self._may_read.release()

    def read_cached(self, *_: int) -> None:
        return None

    def read(self, *_: int) -> bytes:
        if not self._is_open:
            assert self._may_read.acquire(timeout=2 * DEADLINE_S), "the test has not ended"
        return b"x"
