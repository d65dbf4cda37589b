# SPDX-License-Identifier: Apache-2.0
"""How far a consumer group is in each queue: kept by the broker, or in a local file.

Both keep offsets in memory and store them when told to, so committing a message costs nothing.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.log import PROGRAM_LOG
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.offsets import QueueOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.offsets import (
    QueryConsumerOffset,
    QueryConsumerOffsetReply,
    UpdateConsumerOffset,
)
from cometmq.remoting.errors import CometError, QueryNotFound, RemoteProtocolError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import describe

COMMIT_TIMEOUT_MS: Final = 5_000


class OffsetStore(Protocol):
    """Where the offsets of one group are."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the stored offset; None if there is none, CometError if nobody can say."""

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory."""

    def unsaved(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory if it is not stored yet."""

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        """Note an offset; one that is behind counts only as a reset."""

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Store what was noted for these queues; a failure is logged and made good later."""

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Store what was noted for these queues, and return when it is; CometError if not."""

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is in memory: another member has the queue now."""


class Positions:
    """Offsets in memory, and which of them are not stored yet.

    What was read from the store and has not moved is never stored again: the member that had
    the queue before may have stored more in the meantime.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.offsets: dict[MessageQueue, int] = {}
        self.unsaved: set[MessageQueue] = set()
        self._told: dict[MessageQueue, int] = {}
        """How often the present offset was sent without an answer."""
        self._read: dict[MessageQueue, int] = {}

    def note_read(self, queue: MessageQueue, offset: int) -> None:
        """Note what the store says; 0 may also mean that it has nothing."""
        if offset > 0:
            self._read[queue] = offset

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool) -> None:
        """Note an offset."""
        known = self.offsets.get(queue)
        if known == offset or (known is not None and offset < known and not is_reset):
            return
        self.offsets[queue] = offset
        if known is not None or self._read.pop(queue, None) != offset:
            self.unsaved.add(queue)
            self._told.pop(queue, None)

    def to_tell(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return those of the queues whose offset is to be sent without waiting for an answer.

        Each is sent twice. A Java broker handles pulls and commits on different threads, so a
        pull that was sent before may undo a commit.
        """
        return [one for one in queues if one in self.unsaved or self._told.get(one) == 1]

    def to_commit(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return those of the queues of whose offset nobody has said that it is stored."""
        return [one for one in queues if one in self.unsaved or one in self._told]

    def note_sent(self, queue: MessageQueue, *, is_answered: bool) -> None:
        """Note that an offset was sent."""
        self.unsaved.discard(queue)
        if is_answered:
            self._told.pop(queue, None)
        else:
            self._told[queue] = self._told.get(queue, 0) + 1

    def note_saved(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Note that these are stored; what has moved since is not."""
        self.unsaved -= {queue for queue, at in offsets.items() if self.offsets.get(queue) == at}

    def forget(self, queue: MessageQueue) -> None:
        """Drop an offset."""
        self.offsets.pop(queue, None)
        self.unsaved.discard(queue)
        self._told.pop(queue, None)
        self._read.pop(queue, None)

    def unsaved_offset(self, queue: MessageQueue) -> int | None:
        """Return an offset that is not stored yet."""
        return self.offsets.get(queue) if queue in self.unsaved else None


class RemoteOffsets:
    """Offsets at the brokers, shared by the members of a group."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        """Commit for one group."""
        self._instance = instance
        self._group = group
        self._positions = Positions()
        self._tables: set[tuple[str, str]] = set()
        """Brokers and topics of which an offset is stored."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset that the broker knows.

        Compatibility: Java takes any refusal for "no offset", and a busy broker sends the group
        to the end of the queue; here the caller asks again.
        """
        offset = await self._stored(queue)
        if offset is not None:
            self._positions.note_read(queue, offset)
        return offset

    async def _stored(self, queue: MessageQueue) -> int | None:
        _, address = self._instance.routes.any_of(queue.broker_name)
        header = QueryConsumerOffset(self._group, queue.topic, queue.queue_id)
        try:
            response = await self._instance.remoting.invoke(
                self._instance.channel(address),
                RequestCode.QUERY_CONSUMER_OFFSET,
                header,
                timeout_ms=COMMIT_TIMEOUT_MS,
            )
        except QueryNotFound:
            return None
        if not isinstance(response.header, QueryConsumerOffsetReply):
            raise RemoteProtocolError("an answer about an offset lacks it")
        return response.header.offset

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory."""
        return self._positions.offsets.get(queue)

    def unsaved(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory if the broker may not know it."""
        return self._positions.unsaved_offset(queue)

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        """Note an offset."""
        self._positions.update(queue, offset, is_reset=is_reset)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Tell the brokers, without waiting for answers."""
        for queue in self._positions.to_tell(queues):
            try:
                await self._save(queue, is_awaited=False)
            except CometError as error:
                self._instance.log.warning(
                    "offset.unsaved", group=self._group, error=describe(error)
                )

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Tell the brokers, and wait until they know; CometError if one of them refuses.

        Of a group's first offsets of a topic a Java broker may forget those that it gets side by
        side: they are looked at once.
        """
        waiting = self._positions.to_commit(queues)
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
        """Do something for each queue, whatever becomes of the others; raise the first failure."""

        async def failure(queue: MessageQueue) -> CometError | None:
            try:
                await action(queue)
            except CometError as error:
                return error
            return None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(failure(queue)) for queue in queues]
        for task in tasks:
            if (error := task.result()) is not None:
                raise error

    async def _save_and_wait(self, queue: MessageQueue) -> None:
        await self._save(queue, is_awaited=True)

    async def _save_if_forgotten(self, queue: MessageQueue) -> None:
        position, stored = self._positions.offsets.get(queue), await self._stored(queue)
        if position is not None and (stored is None or stored < position):
            await self._save(queue, is_awaited=True)

    async def _save(self, queue: MessageQueue, *, is_awaited: bool) -> None:
        offset = self._positions.offsets.get(queue)
        if offset is None:
            return  # lost while the queues before it were stored
        header = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
        _, address = self._instance.routes.any_of(queue.broker_name)
        remoting = self._instance.remoting
        send = remoting.invoke if is_awaited else remoting.invoke_oneway
        await send(
            self._instance.channel(address),
            RequestCode.UPDATE_CONSUMER_OFFSET,
            header,
            timeout_ms=COMMIT_TIMEOUT_MS,
        )
        if self._positions.offsets.get(queue) == offset:
            self._positions.note_sent(queue, is_answered=is_awaited)

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is in memory."""
        self._positions.forget(queue)


def _table(queue: MessageQueue) -> tuple[str, str]:
    """Name the table that a broker has for a topic's offsets."""
    return queue.broker_name, queue.topic


def local_offsets_path(folder: str, client_id: str, group: str) -> Path:
    """Return where a broadcasting consumer keeps its offsets, as the Java client does."""
    root = Path(folder) if folder else Path.home() / ".rocketmq_offsets"
    return root / client_id / group / "offsets.json"


class LocalOffsets:
    """Offsets in one file of this machine, in the Java client's format."""

    def __init__(self, path: Path, *, log: Log = PROGRAM_LOG) -> None:
        """Use this file; its folder is made when needed."""
        self._path = path
        self._log = log
        self._writing = asyncio.Lock()
        self._backup = path.with_name(path.name + ".bak")
        self._positions = Positions()
        self._stored: Mapping[MessageQueue, int] | None = None

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset in the file, or in its last good copy."""
        if self._stored is None:
            self._stored = await asyncio.to_thread(self._load)
        return self._stored.get(queue)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory."""
        return self._positions.offsets.get(queue)

    def unsaved(self, queue: MessageQueue) -> int | None:
        """Return the offset in memory if the file does not have it."""
        return self._positions.unsaved_offset(queue)

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        """Note an offset."""
        self._positions.update(queue, offset, is_reset=is_reset)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Write the file if one of these queues has moved."""
        try:
            await self.commit(queues)
        except OSError as error:
            self._log.warning("offset.unsaved", file=str(self._path), error=describe(error))

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Write the file if one of these queues has moved; raise OSError if that fails."""
        async with self._writing:
            if not self._positions.unsaved.intersection(queues):
                return
            if self._stored is None:
                self._stored = await asyncio.to_thread(self._load)
            noted = dict(self._positions.offsets)
            table = {**self._stored, **noted}
            await asyncio.to_thread(self._save, encode_json(QueueOffsetTable(table)))
            self._stored = table
            self._positions.note_saved(noted)

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is in memory; the file keeps it."""
        self._positions.forget(queue)

    def _load(self) -> Mapping[MessageQueue, int]:
        for path in (self._path, self._backup):
            try:
                return decode_json(QueueOffsetTable, path.read_bytes()).offset_table
            except (OSError, RemoteProtocolError):
                continue  # missing or torn: the copy has the word, else we begin anew
        return {}

    def _save(self, data: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(self._path.name + ".tmp")
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if self._path.exists():
            self._path.replace(self._backup)
        fresh.replace(self._path)
