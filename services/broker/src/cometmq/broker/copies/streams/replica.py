# SPDX-License-Identifier: Apache-2.0
"""This broker's copy of the log and the tables, in a broker group: what follower and master share.

After a handshake, the end of the follower's log that the master lacks is saved to a file and cut
off, and the remaining history is saved. Readers see only what the master has confirmed.

The bytes that are cut off were never confirmed, but they may contain a message whose send timed
out. Each file of them has the format of a commit log, and is named after the physical offset of its
first byte and the last epoch in it.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from cometmq.broker.copies.state import FollowProgress
from cometmq.broker.copies.streams.block_exchange import BlockTurn
from cometmq.broker.copies.streams.frames import Confirm
from cometmq.broker.copies.streams.handshake import (
    Hello,
    LogExtent,
    Welcome,
    check_digest,
    check_welcome,
)
from cometmq.broker.copies.streams.records import FollowHeaders
from cometmq.broker.copies.streams.session import RECORD_OVERHEAD_BYTES, MasterConnection
from cometmq.broker.copies.tables.feed import TableFeed
from cometmq.broker.native import header_follower, reason_without
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.ha.durable import DISK_FULL
from cometmq.ha.epochs import (
    EpochFile,
    History,
    HistoryUnsaved,
    last_epoch,
    pruned,
    reached,
    start_of,
)
from cometmq.remoting.errors import CometError, ConnectionLost
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.remoting.types import Buffer
from cometmq.runtime.worker import Worker
from cometmq.store.errors import StoreError
from cometmq.store.log.commit_log import CommitLog, LogView

FINISH_TIMEOUT_S: Final = 600.0
"""How long a stop waits for a truncation in progress."""


SUFFIX: Final = ".tail"
TAIL_COUNT_MAX: Final = 8

TAIL_BYTES_MAX: Final = 512 << 20
"""Later bytes are not kept; a master has at most half as many unconfirmed ones."""

_TAIL_CHUNK_BYTES: Final = 1 << 20

KeepTail = Callable[[LogView, int, int], Path]
"""Keeps the end of a log from an offset on, given the last epoch in it; returns the file."""


def tail_path(folder: Path, offset: int, epoch: int) -> Path:
    return folder / f"{offset:020d}-{epoch}{SUFFIX}"


def keep_tail(folder: Path, view: LogView, offset: int, epoch: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = tail_path(folder, offset, epoch)
    with path.open("wb") as file:
        end = min(view.end, offset + TAIL_BYTES_MAX)
        while offset < end:
            left = view.file_size - offset % view.file_size
            data = view.read(offset, min(_TAIL_CHUNK_BYTES, left, end - offset), may_block=True)
            if not data:
                break
            file.write(data)
            offset += len(data)
    _delete_oldest_tails(folder)
    return path


def _delete_oldest_tails(folder: Path) -> None:
    tails = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in tails[:-TAIL_COUNT_MAX]:
        path.unlink()


class EpochLog:
    """The history of the log; `save` makes a new one durable before it becomes current."""

    def __init__(
        self, file: EpochFile, history: History, *, commit_log: CommitLog, worker: Worker
    ) -> None:
        self._file = file
        self._commit_log = commit_log
        self._worker = worker
        self.history = history

    def extent(self) -> LogExtent:
        """Return the bounds of the log, and the part of its history that a handshake needs."""
        log = self._commit_log
        history = pruned(self.history, log.min_offset)
        return LogExtent(log.min_offset, log.end, log.files.file_size, history)

    async def save(self, history: History) -> None:
        """Save a history and make it current; raise OSError, HistoryUnsaved if the disk is full."""
        history = pruned(history, self._commit_log.min_offset)
        if history == self.history:
            return
        try:
            await self._worker.submit(partial(self._file.save, history))
        except OSError as error:
            if error.errno in DISK_FULL:
                raise HistoryUnsaved(error.errno, f"{error.strerror}: epoch file") from error
            raise
        self.history = history


def epoch_at(history: History, offset: int) -> int:
    """Return the epoch in which the byte at an offset was written; 0 before the first entry."""
    count = bisect_right(history, offset, key=start_of)
    return history[count - 1].epoch if count else 0


def next_start(history: History, offset: int) -> int:
    count = bisect_right(history, offset, key=start_of)
    return history[count].start if count < len(history) else 1 << 63


class MasterEvents(Protocol):
    """The events that a follower reports; implemented by the broker's member."""

    def epoch_seen(self, epoch: int) -> None:
        """Handle a later epoch that a master or former master has named."""

    def store_failed(self, error: Exception) -> None:
        """Handle a failure to write the store or a file of the broker group."""


class LogUnreadable(CometError):
    """This log cannot be read in a handshake; it is unchanged, so a retry is safe."""


class MemberReplica:
    """The copy and its progress; call `begin` to follow the master of a new epoch."""

    def __init__(  # noqa: PLR0913  # the collaborators, each by name
        self,
        driver: StoreDriver,
        epochs: EpochLog,
        tables: TableFeed,
        events: MasterEvents,
        *,
        keep_tail: KeepTail,
        worker: Worker,
        settings: Callable[[], BrokerSettings],
        now_ms: Callable[[], int],
        log: Log,
        status: FollowProgress,
    ) -> None:
        self.driver = driver
        self.epochs = epochs
        self.tables = tables
        self.events = events
        self.worker = worker
        self.now_ms = now_ms
        self.log = log
        self.status = status
        self.turn = BlockTurn()
        self.confirmed = 0
        """The confirm offset that the master last reported in this epoch; 0 before that."""
        self.heard_ms = 0
        """When the master was last heard from, by `now_ms`."""
        self._keeps_tail = keep_tail
        self.settings = settings
        self._finishing = TaskSet(log)  # work that is not cancelled
        self._is_preparing = False
        self._has_heard = False  # of a confirm offset in this epoch

    @property
    def commit_log(self) -> CommitLog:
        return self.driver.store.commit_log

    def may_read(self) -> bool:
        """Return whether a slave may serve reads: all that readers see is confirmed."""
        is_bounded = self._has_heard and self.commit_log.confirm_offset <= self.confirmed
        return is_bounded and not self._is_preparing

    def begin(self) -> None:
        self.confirmed = 0
        self._has_heard = False
        self.driver.store.publisher.confirm(0)

    def record_bytes_max(self) -> int:
        return self.settings().max_message_size + RECORD_OVERHEAD_BYTES

    def follow_headers(self) -> FollowHeaders | None:
        return header_follower(self.log) if reason_without(self.settings()) is None else None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._finishing.spawn(work, name="save-epoch")

    async def finish(self) -> None:
        await self._finishing.drain(FINISH_TIMEOUT_S)

    def heard(self, confirm: Confirm, received_bytes: int) -> None:
        """Note the master's progress, with epoch 0 before the first confirm offset."""
        self.heard_ms = self.now_ms()
        self._has_heard = confirm.epoch > 0
        self.confirmed = max(self.confirmed, confirm.confirmed)
        self.status.master_max_offset = confirm.end
        self.status.received_bytes += received_bytes
        self.driver.store.upkeep.catch_up.note_distance(
            self.status.behind_bytes(self.commit_log.end)
        )

    def failed(self, error: Exception) -> None:
        self.events.store_failed(error)

    async def prepare(self, stream: MasterConnection, hello: Hello, welcome: Welcome) -> None:
        """Truncate the log to the common point, save its history; not cancelled with the caller."""
        prepared = asyncio.get_running_loop().create_future()
        self.spawn(self._prepare(stream, hello, welcome, prepared))
        await prepared

    async def _prepare(
        self,
        stream: MasterConnection,
        hello: Hello,
        welcome: Welcome,
        prepared: "asyncio.Future[None]",
    ) -> None:
        self._is_preparing = True
        try:
            await self._cut(hello, welcome, stream)
        except Exception as error:  # noqa: BLE001  # the task that waits raises it
            if isinstance(error, StoreError | OSError):
                self.events.store_failed(error)
            if not prepared.done():
                prepared.set_exception(error)
        else:
            if not prepared.done():
                prepared.set_result(None)
        finally:
            self._is_preparing = False

    async def _cut(self, hello: Hello, welcome: Welcome, stream: MasterConnection) -> None:
        point = check_welcome(welcome, hello)
        log = self.commit_log
        start = welcome.digest.start
        if hello.log.end and start < point.offset:
            read = partial(_read, log.view_to_end(), start, point.offset - start)
            try:
                data = await self.worker.submit(read)
            except (StoreError, OSError) as error:
                raise LogUnreadable(f"this log cannot be read: {describe(error)}") from error
            check_digest(welcome, hello, data)
        if stream.ended.done():
            raise ConnectionLost("the master closed the connection in the handshake")
        if log.end > point.offset:
            await self._keep_tail(point.offset)
            await self.driver.truncate(point.offset)
        history = reached(point.history, welcome.log.history, point.offset)
        await self.epochs.save(history)

    async def _keep_tail(self, offset: int) -> None:
        view, epoch = self.commit_log.raw_view(), last_epoch(self.epochs.history)
        facts = {"offset": offset, "end": view.end, "last_epoch": epoch}
        try:
            path = await self.worker.submit(partial(self._keeps_tail, view, offset, epoch))
        except (OSError, CometError) as error:
            self.log.warning("tail.not_kept", **facts, error=describe(error))
        else:
            self.log.warning("tail.cut", **facts, file=str(path))


def _read(view: LogView, offset: int, count: int) -> Buffer:
    data = view.read(offset, count, may_block=True) or b""
    if len(data) < count:
        raise LogUnreadable(f"this log is damaged between {offset} and {offset + count}")
    return data
