# SPDX-License-Identifier: Apache-2.0
"""The offsets of a consumer group, stored by the broker or in a local file.

Both stores keep offsets in memory and write them at intervals, so recording progress is cheap.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from cometmq.client.admin.broker_consumers import BrokerConsumers
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.consume.queues.offset_file import FileClaim, OffsetFile
from cometmq.client.errors import (
    BrokerMissing,
    InvalidArgument,
    OffsetsUnreadable,
    OffsetsUnwritable,
)
from cometmq.client.log import PROGRAM_LOG
from cometmq.client.turns import for_each
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.offsets import (
    UpdateConsumerOffset,
)
from cometmq.remoting.errors import (
    CometError,
    TransportError,
)
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe

COMMIT_TIMEOUT_MS: Final = 5_000
SENT_PER_TURN: Final = 128
"""Offsets that are sent oneway in one turn of the loop; a consumer may own 16,384 queues."""
COMMITTED_AT_ONCE: Final = 128
"""How many offsets a broker is asked to confirm at the same time."""


class OffsetStore(Protocol):
    """Stores the offsets of one group."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the stored offset or None; raise CometError if the store is unavailable."""

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory."""

    def unsaved(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory if it is not stored yet."""

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        """Record an offset; one lower than the current one is ignored unless `is_reset`."""

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store the recorded offsets of these queues; failures are logged, and retried."""

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Store the recorded offsets of these queues and wait; raise CometError on failure."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop the offset in memory, because another member owns the queue now."""


class Positions:
    """Offsets in memory, and the queues whose offsets are not stored yet.

    An offset that was read from the store and has not moved is never written back, because the
    previous owner of the queue may have committed a higher one since.
    """

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}
        self.unsaved_queues: set[MessageQueue] = set()
        self._told: dict[MessageQueue, int] = {}
        """How many times the current offset was sent oneway."""
        self._read: dict[MessageQueue, int] = {}

    def note_read(self, queue: MessageQueue, offset: int) -> None:
        """Record the stored offset; brokers also return 0 for queues without an offset."""
        if offset > 0:
            self._read[queue] = offset

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        """Record an offset; one lower than the current one is ignored unless `is_reset`."""
        known = self.offsets.get(queue)
        if known == offset or (known is not None and offset < known and not is_reset):
            return
        self.offsets[queue] = offset
        if known is not None or self._read.pop(queue, None) != offset:
            self.unsaved_queues.add(queue)
            self._told.pop(queue, None)

    def must_tell(self, queue: MessageQueue) -> bool:
        """Return whether the offset of a queue must be sent oneway.

        Each offset is sent twice: a Java broker handles pulls and commits on different threads, so
        an earlier pull that carries an older offset may undo a commit.
        """
        return queue in self.unsaved_queues or self._told.get(queue) == 1

    def to_commit(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return the queues whose committed offset no broker has confirmed yet."""
        return [one for one in queues if one in self.unsaved_queues or one in self._told]

    def note_sent(self, queue: MessageQueue, *, is_answered: bool) -> None:
        """Record that an offset was sent; `is_answered` means that the broker has confirmed it."""
        self.unsaved_queues.discard(queue)
        if is_answered:
            self._told.pop(queue, None)
        else:
            self._told[queue] = self._told.get(queue, 0) + 1

    def tell_again(self, queue: MessageQueue) -> None:
        """Treat an offset that was only sent oneway as unsaved."""
        if self._told.pop(queue, None) is not None:
            self.unsaved_queues.add(queue)

    def note_saved(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Mark these offsets as stored; offsets that have moved since remain unsaved."""
        self.unsaved_queues -= {
            queue for queue, at in offsets.items() if self.offsets.get(queue) == at
        }

    def forget(self, queue: MessageQueue) -> None:
        """Drop the offset in memory; the broker or the file keeps it."""
        self.offsets.pop(queue, None)
        self.unsaved_queues.discard(queue)
        self._told.pop(queue, None)
        self._read.pop(queue, None)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory."""
        return self.offsets.get(queue)

    def unsaved(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory if it is neither confirmed by the broker nor in the file."""
        return self.offsets.get(queue) if queue in self.unsaved_queues else None


class HeldOffsets:
    """Withholds progress from an offset store until `release`: only explicit commits store it.

    First offsets and resets reach the store, because they are not the application's progress. A
    seek is withheld: until it is committed, a restart resumes from the previously committed offset.
    """

    def __init__(self, store: OffsetStore) -> None:
        self._store = store
        self._progress: dict[MessageQueue, int] = {}
        self._sought: set[MessageQueue] = set()
        """The queues whose withheld offset may be lower than the stored one."""
        self.read = store.read
        self.position = store.position
        self.unsaved = store.unsaved
        self.persist = store.persist
        self.commit = store.commit

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        """Withhold an offset if it is progress; pass first offsets and resets to the store."""
        if is_reset or self._store.position(queue) is None:
            self._drop(queue)
            self._store.update(queue, offset, is_reset=is_reset)
        else:
            self._progress[queue] = offset

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Withhold an offset chosen by the application; it may be lower than the stored one."""
        self._progress[queue] = offset
        self._sought.add(queue)

    def release(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            offset = self._progress.get(queue)
            if offset is not None:
                self._store.update(queue, offset, is_reset=queue in self._sought)
            self._drop(queue)

    def forget(self, queue: MessageQueue) -> None:
        self._drop(queue)
        self._store.forget(queue)

    def _drop(self, queue: MessageQueue) -> None:
        self._progress.pop(queue, None)
        self._sought.discard(queue)


class RemoteOffsets(Positions):
    """Offsets on the brokers, shared by the members of a group."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self._told_to: dict[MessageQueue, str] = {}
        """The broker to which each offset was sent oneway; a former master may have refused it."""
        self._tables: set[tuple[str, str]] = set()
        """Broker and topic pairs that have at least one stored offset."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset stored on the broker, or None if there is none.

        Compatibility: Java treats any refusal as "no offset", so a busy broker sends the group to
        the end of the queue; here the caller retries instead.
        """
        offset = await self._stored(queue)
        if offset is not None:
            self.note_read(queue, offset)
        return offset

    async def _stored(self, queue: MessageQueue) -> int | None:
        broker = BrokerConsumers.of(self._instance, queue.broker_name, timeout_ms=COMMIT_TIMEOUT_MS)
        return await broker.committed_offset(self._group, queue.topic, queue.queue_id)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Send the offsets oneway; resend them after another broker has become master."""
        for number, queue in enumerate(list(queues), 1):
            if not number % SENT_PER_TURN:
                await asyncio.sleep(0)
            if self._is_told_elsewhere(queue):
                self.tell_again(queue)
            if not self.must_tell(queue):
                continue
            try:
                await self._save(queue, is_awaited=False)
            except CometError as error:
                self._instance.outages.failed("offset.unsaved", error, group=self._group)

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Send the offsets and wait until the brokers confirm them; raise CometError if one
        refuses.

        A Java broker may lose concurrent first offsets of a group in a topic, so these are sent one
        at a time.
        """
        waiting = self.to_commit(queues)
        fresh = {queue for queue in waiting if _table(queue) not in self._tables}
        await self._all(self._save_and_wait, waiting)
        if len(fresh) > 1:
            await self._all(self._save_if_forgotten, fresh)
        self._tables.update(map(_table, fresh))

    async def _all(
        self,
        action: Callable[[MessageQueue], Awaitable[None]],
        queues: Iterable[MessageQueue],
    ) -> None:
        """Apply `action` to every queue, even after refusals; then raise the first failure.

        After a broker has not answered, its other queues are left to the next attempt: a hung
        broker must not be waited for again and again.
        """
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        failures: list[CometError] = []

        async def apply(mine: list[MessageQueue]) -> None:
            is_silent = False

            async def apply_one(queue: MessageQueue) -> None:
                nonlocal is_silent
                if is_silent:
                    return
                try:
                    await action(queue)
                except CometError as error:
                    is_silent |= isinstance(error, TransportError)
                    failures.append(error)

            await for_each(mine, apply_one, running_max=COMMITTED_AT_ONCE)

        # All brokers at once: otherwise a hung broker would delay the offsets of all others.
        await for_each(by_broker.values(), apply, running_max=len(by_broker))
        if failures:
            raise failures[0]

    async def _save_and_wait(self, queue: MessageQueue) -> None:
        await self._save(queue, is_awaited=True)

    async def _save_if_forgotten(self, queue: MessageQueue) -> None:
        position, stored = self.offsets.get(queue), await self._stored(queue)
        if position is not None and (stored is None or stored < position):
            await self._save(queue, is_awaited=True)

    async def _save(self, queue: MessageQueue, *, is_awaited: bool) -> None:
        offset = self.offsets.get(queue)
        if offset is None:
            return  # the lock was lost while earlier queues were stored
        header = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        _, address = self._instance.routes.brokers.any_of(queue.broker_name)
        remoting = self._instance.remoting
        send = remoting.invoke if is_awaited else remoting.invoke_oneway
        await send(
            self._instance.channel(address),
            RequestCode.UPDATE_CONSUMER_OFFSET,
            header,
            timeout_ms=COMMIT_TIMEOUT_MS,
        )
        if self.offsets.get(queue) == offset:
            self.note_sent(queue, is_answered=is_awaited)
            self._told_to[queue] = address

    def _is_told_elsewhere(self, queue: MessageQueue) -> bool:
        """Return whether the last offset was sent to a broker that is no longer the master."""
        told_to = self._told_to.get(queue)
        if told_to is None:
            return False
        try:
            return self._instance.routes.brokers.any_of(queue.broker_name)[1] != told_to
        except BrokerMissing:
            return False

    def forget(self, queue: MessageQueue) -> None:
        """Drop the offset in memory; the broker keeps it."""
        self._told_to.pop(queue, None)
        super().forget(queue)


def _table(queue: MessageQueue) -> tuple[str, str]:
    """Return the key of the broker's offset table for a topic."""
    return queue.broker_name, queue.topic


def local_offsets_path(folder: str, client_id: str, group: str) -> Path:
    """Return the offset file of a broadcasting consumer, at the path that the Java client uses.

    Raise InvalidArgument if the path begins with the home folder and there is none.
    """
    try:
        root = Path(folder or "~/.rocketmq_offsets").expanduser()
    except RuntimeError as error:
        raise InvalidArgument(
            f"invalid option offsets_dir={folder!r}: {error}; give the path of a folder"
        ) from error
    return root / client_id / group / "offsets.json"


class LocalOffsets(Positions):
    """Offsets in a local file, in the Java client's format."""

    def __init__(self, path: Path, *, group: str = "", log: Log = PROGRAM_LOG) -> None:
        """The folder is created when it is first needed; `group` is for log entries."""
        super().__init__()
        self._path = path
        self._group = group
        self._log = log
        self._writing = asyncio.Lock()
        self._file = OffsetFile(path)
        self._claim = FileClaim(path)
        self._stored: Mapping[MessageQueue, int] | None = None

    async def claim(self) -> None:
        """Warn if another process uses the file; call `release` when done.

        Raise OffsetsUnwritable if no file can be created beside it. Compatibility: Java starts, and
        logs each failed save; at the next start its consumer skips the waiting messages.
        """
        try:
            owner = await asyncio.to_thread(self._claim.take)
        except OSError as error:
            raise OffsetsUnwritable(
                f"the offsets of this broadcasting consumer cannot be written to {self._path} "
                f"({describe(error)}): set offsets_dir to a folder in which this user may create "
                "files"
            ) from error
        if owner:
            self._log.warning(
                "offsets.shared",
                group=self._group,
                file=str(self._path),
                process_id=owner,
                advice="messages are lost or repeated at the next start: give each process an "
                "instance_name of its own",
            )

    def release(self) -> None:
        self._claim.release()

    async def load(self) -> Mapping[MessageQueue, int]:
        """Read the file, or its backup, once; raise OffsetsUnreadable if both are damaged."""
        if self._stored is None:
            self._stored = await asyncio.to_thread(self._file.load)
            if self._file.damage:
                self._log.warning(
                    "offsets.restored",
                    group=self._group,
                    file=str(self._path),
                    error=self._file.damage,
                    advice="the consumer continues at the offsets of the backup, so it receives "
                    "some messages again",
                )
        return self._stored

    async def read(self, queue: MessageQueue) -> int | None:
        return (await self.load()).get(queue)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Write the file if one of these offsets has moved."""
        try:
            await self.commit(queues)
        except (OSError, OffsetsUnreadable) as error:
            self._log.warning("offset.unsaved", file=str(self._path), error=describe(error))

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Write the file if one of these offsets has moved; raise OSError on failure.

        A cancelled call does not stop its thread, which must end before the next write begins:
        both use the same temporary file, and the older table could replace the newer one.
        """
        await asyncio.shield(self._write(queues))

    async def _write(self, queues: Iterable[MessageQueue]) -> None:
        async with self._writing:
            if not self.unsaved_queues.intersection(queues):
                return
            noted = dict(self.offsets)
            table = {**await self.load(), **noted}
            await asyncio.to_thread(self._file.save, table)
            self._stored = table
            self.note_saved(noted)
