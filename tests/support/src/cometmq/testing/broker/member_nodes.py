# SPDX-License-Identifier: Apache-2.0
"""Members of a broker group in one process, with real streams between them and no elector."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from cometmq.broker.copies.streams.follower import Follower
from cometmq.broker.copies.streams.follower_stream import Heard
from cometmq.broker.copies.streams.handshake import Identity
from cometmq.broker.copies.streams.proving import Proving
from cometmq.broker.copies.streams.replica import EpochLog, MemberReplica, keep_tail
from cometmq.broker.copies.streams.sending import LogSender
from cometmq.broker.copies.tables.feed import Replicated, TableFeed
from cometmq.broker.tables.journal import Journal
from cometmq.broker.tables.offsets import Offsets, offset_file
from cometmq.broker.tables.topics import Topics, topic_file
from cometmq.ha import in_sync
from cometmq.ha.epochs import EpochFile, begun, truncated
from cometmq.ha.in_sync import Leadership
from cometmq.ha.proof import Keys
from cometmq.ha.record import Copy, Record, Versioned
from cometmq.store.disk import Disk
from cometmq.testing.broker.replicas import Node
from cometmq.testing.store.builders import make_message
from cometmq.testing.store.memory_disk import MemoryDisk

CLUSTER: Final = "PeersCluster"
KEY: Final = b"the key of all groups in tests, not secret"


class MemoryFiles:
    """Small files in memory; writes raise `error` if it is set."""

    def __init__(self) -> None:
        self.contents: dict[Path, bytes] = {}
        self.error: OSError | None = None

    def read(self, path: Path) -> bytes | None:
        return self.contents.get(path)

    def replace(self, path: Path, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.contents[path] = data


class MemberNode(Node):
    """A node that leads or follows in an epoch; as master it applies the rules of `in_sync`."""

    def __init__(
        self,
        folder: Path,
        ordinal: int,
        disk: Disk | None = None,
        *,
        files: MemoryFiles | None = None,
        group: str = "broker-a",
        keys: Keys = (KEY,),
        is_key_required: bool = True,
        **changes: Any,
    ) -> None:
        """`folder` holds the files that are not on the store's disk; `keys` are those of the broker
        group, and `changes` override settings.
        """
        super().__init__(disk, **changes)
        self.folder = folder / str(ordinal)
        self.folder.mkdir(exist_ok=True)
        self.copy = Copy(ordinal, f"i{ordinal}")
        self.files = files or MemoryFiles()
        epoch_file = EpochFile(Path("/store"), self.files)
        history = truncated(epoch_file.load(), self.end)
        self.epochs = EpochLog(
            epoch_file, history, commit_log=self.store.commit_log, worker=self.workers.config
        )
        self.keys = keys
        self.proving = Proving(
            identity=Identity(CLUSTER, group, self.copy),
            keys=lambda: self.keys,
            is_required=is_key_required,
        )
        self._open_tables()
        self._open_streams()
        self.driver.turn.grew.connect(self._log_grew)
        self.driver.turn.counted.connect(self._tables_changed)
        self.leading: Leadership | None = None
        self.reports: list[Heard] = []
        self.epochs_seen: list[int] = []
        self.copies_left: list[Copy] = []
        self.errors: list[Exception] = []

    def _open_tables(self) -> None:
        self.journal_disk = MemoryDisk()
        self.journal = Journal(
            self.journal_disk, "/journal", worker=self.workers.config, keeps_position=True,
            turn=self.driver.turn, file_bytes=1 << 20,
        )  # fmt: skip
        self.topics = Topics(topic_file(self.folder / "topics.json"), clock_ms=self.clock.now_ms)
        self.offsets = Offsets(offset_file(str(self.folder / "offsets.json")))
        tables: dict[str, Replicated] = {"topics.json": self.topics, "offsets.json": self.offsets}
        for table in tables.values():
            self.journal.attach(table)
        self.journal.begin()
        self.tables = TableFeed(self.journal, tables)

    def _open_streams(self) -> None:
        self.replica = MemberReplica(
            self.driver,
            self.epochs,
            self.tables,
            self,
            keep_tail=partial(keep_tail, self.folder / "cut"),
            worker=self.workers.config,
            settings=lambda: self.settings,
            now_ms=self.clock.monotonic_ms,
            log=self.log,
            status=self.state.following,
        )
        self.sender = LogSender(
            self.replica, port=self.server, worker=self.workers.replicate, proving=self.proving
        )
        self.server.serve_members(self.sender)
        self.member_follower = Follower(self.replica, self.proving)

    async def __aexit__(self, *_: object) -> None:
        await self.member_follower.stop()
        await super().__aexit__()

    # Roles

    async def lead(self, epoch: int, members: Iterable["MemberNode"] = ()) -> None:
        """Become the master of an epoch whose in-sync set also contains these members."""
        await self.member_follower.stop()
        self.store.publisher.confirm(None)
        await self.epochs.save(begun(self.epochs.history, epoch, self.end))
        copies = tuple(sorted([self.copy, *(member.copy for member in members)]))
        record = Record("u", "broker-a", epoch, self.copy, copies, copies=max(2, len(copies)))
        confirmed = self.replica.confirmed
        self.leading = in_sync.lead(
            self.copy, Versioned(record, "1"), start=self.end, confirmed=confirmed
        )
        self.store.write_state.role_writable = True
        self.store.writer.needs_replicas = True
        self.store.writer.may_replicate = lambda _end: True
        self.tables.begin(epoch)
        self.sender.lead(epoch, confirmed=self.leading.confirmed, reports=self)
        self._advanced()

    async def follow_member(self, master: "MemberNode", epoch: int) -> None:
        """Follow another node as master of an epoch."""
        await self.depose()
        address = master.address
        self.member_follower.follow(epoch, master.copy.ordinal, lambda: address)

    async def depose(self) -> None:
        """Stop leading or following."""
        self.leading = None
        self.sender.stop()
        self.tables.stop()
        self.store.write_state.role_writable = False
        await self.member_follower.stop()

    async def fill(self, count: int, body: bytes = b"Hello") -> None:
        """Store messages, in one commit."""
        for number in range(count):
            self.put(make_message(queue_id=number % 2, body=body, keys=f"k{number}"))
        await asyncio.sleep(0)

    @property
    def history(self) -> list[tuple[int, int]]:
        return [(epoch, start) for epoch, start in self.epochs.history]

    @property
    def visible_count(self) -> int:
        """The number of messages that consumers can read."""
        return sum(self.store.reader.max_offset("T", queue_id) for queue_id in range(2))

    def _log_grew(self) -> None:
        if self.leading is not None:
            self.leading = in_sync.appended(self.leading, self.end)
            self._advanced()

    def _tables_changed(self) -> None:
        if self.leading is not None:
            changes = self.tables.position.changes
            self.leading = in_sync.tables_changed(self.leading, changes)
        self.sender.wake_later()

    def _advanced(self) -> None:
        assert self.leading is not None
        self.driver.confirm(self.leading.confirmed)
        self.sender.confirm(self.leading.confirmed)

    # Reports of the streams

    def heard(self, reports: Sequence[Heard]) -> None:
        self.reports += reports
        if self.leading is not None:
            for heard in reports:
                self.leading = in_sync.acked(self.leading, heard.ack)
            self._advanced()

    def left(self, copy: Copy) -> None:
        self.copies_left.append(copy)

    def epoch_seen(self, epoch: int) -> None:
        self.epochs_seen.append(epoch)

    def store_failed(self, error: Exception) -> None:
        self.errors.append(error)


def is_equal(slave: MemberNode, master: MemberNode) -> bool:
    """Return whether a slave has the same messages, log, history and tables as its master, and
    all messages are visible at both.
    """
    return (
        slave.store.commit_log.confirm_offset == slave.end == master.end
        and master.store.commit_log.confirm_offset == master.end
        and slave.visible_count == master.visible_count
        and slave.history == master.history
        and slave.tables.position == master.tables.position
    )
