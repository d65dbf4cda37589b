# SPDX-License-Identifier: Apache-2.0
"""Copies queues into the files of a backup, a few queues at a time."""

import asyncio
from contextlib import suppress
from time import monotonic
from typing import Final

from cometmq.cli.archives.form import Folder, QueueKey, QueueSpan, writing
from cometmq.cli.archives.segments import SegmentWriter
from cometmq.cli.verbs.patience import BUSY
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import ClientError, NoRoute, SendFailed, broker_missing, no_route
from cometmq.client.transfer.pulled import EmptyAnswers, Pulled, PullStatus
from cometmq.insight.changes.replays import Pace
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError, CommandError, Outage

PAUSE_S: Final = 0.5
FIRST_PAUSE_S: Final = 0.01


def may_pass(error: CometError) -> bool:
    """Return whether waiting may help: servers are down, busy, or electing a master."""
    cause = (error.__cause__ or error) if isinstance(error, SendFailed) else error
    if isinstance(cause, CommandError):
        return cause.code in BUSY
    return isinstance(error, Outage | NoRoute)


async def broker_of(
    admin: AdminClient, topic: str, name: str, *, is_master: bool = False
) -> BrokerAdmin:
    """Return the master of a broker that has a topic now, or a slave if it has none.

    Brokers without a master are not reported as missing, because an election may soon end.
    """
    route = await admin.namesrv.route(topic)
    if route is None:
        raise no_route(topic)
    found = {it.broker_name: it.broker_addrs for it in route.broker_datas}.get(name, {})
    if not found or (is_master and MASTER_ID not in found):
        raise broker_missing(name)
    return admin.broker(found[min(found)], name=name)


class _Behind(ClientError, Outage):
    """A broker lacks messages that existed when the backup began."""


class Reader:
    """Reads queues; waits while brokers are down, busy, or electing a master."""

    def __init__(self, admin: AdminClient, patience_s: float, *, is_master: bool = False) -> None:
        """Wait `patience_s` for a broker; with `is_master`, read from masters only."""
        self._admin = admin
        self._patience_s = patience_s
        self._is_master = is_master
        self._brokers: dict[tuple[str, str], BrokerAdmin] = {}

    async def broker(self, topic: str, name: str) -> BrokerAdmin:
        """Return the broker to read from."""
        if (topic, name) not in self._brokers:
            self._brokers[topic, name] = await broker_of(
                self._admin, topic, name, is_master=self._is_master
            )
        return self._brokers[topic, name]

    async def pull(self, key: QueueKey, at: int) -> Pulled:
        """Retry until a broker has the message at `at`.

        After a failover, the messages come from another broker, which may be behind the old master.
        RocketMQ's brokers show a message a little after they have confirmed it.
        """
        topic, name, queue = key
        deadline, pause_s = monotonic() + self._patience_s, FIRST_PAUSE_S
        while True:
            try:
                broker = await self.broker(topic, name)
                found = await broker.pull(topic, queue, at)
                if found.next_offset > at:
                    return found
                raise _Behind(
                    f"{broker.address} does not have offset {at} of {topic}, queue {queue}; a slave"
                    " may be behind its master"
                )
            except CometError as error:
                self._brokers.pop((topic, name), None)
                if not may_pass(error):
                    raise
                if monotonic() >= deadline:
                    raise ClientError(
                        f"broker {name} was not read to the end: {error}; gave up after"
                        f" {self._patience_s:g} s (--timeout); repeat the command to go on"
                    ) from error
            await asyncio.sleep(min(pause_s, PAUSE_S))
            pause_s *= 2


QUEUES_MAX: Final = 4
"""Queues that are read at the same time: each holds one answer of at most 32 messages."""


class Copy:
    """Copies the queues of a backup, from where earlier runs ended."""

    def __init__(
        self, admin: AdminClient, folder: Folder, *, rate: float | None, patience_s: float
    ) -> None:
        """Wait `patience_s` for a broker that does not answer; copy `rate` messages per second."""
        self._reader = Reader(admin, patience_s)
        self._folder = folder
        self._pace = Pace(rate) if rate is not None else None
        self._room = asyncio.Semaphore(QUEUES_MAX)
        self._number = folder.next_number()
        self.message_count = folder.message_count
        """Messages copied by this run and earlier ones."""
        self.done_offsets = sum(it.next - it.first for it in folder.segments)
        """Offsets read by this run and earlier ones, with or without a message."""

    async def run(self) -> None:
        """Copy what is missing; complete files are kept after an error."""
        async with asyncio.TaskGroup() as tasks:
            for key, span in self._folder.plan.spans.items():
                tasks.create_task(self._queue(key, span))

    async def _queue(self, key: QueueKey, span: QueueSpan) -> None:
        at = self._folder.next_offset(key)
        while at < span.end:
            async with self._room:
                at = await self._segment(key, at, span.end)

    async def _segment(self, key: QueueKey, at: int, end: int) -> int:
        """Write one file of a queue; return the offset at which the next file begins."""
        name = f"{self._number:06}.jsonl.gz"
        self._number += 1
        with writing(self._folder.path):
            writer = SegmentWriter(self._folder.path / name, key, at)
            empty = EmptyAnswers(MessageQueue(*key))
            try:
                while writer.next < end and not writer.is_full:
                    await self._answer(writer, key, end, empty)
            except OSError:
                writer.drop()
                raise
            except BaseException:
                with suppress(OSError):  # the first error is reported
                    self._keep(writer)
                raise
            self._keep(writer)
        return writer.next

    def _keep(self, writer: SegmentWriter) -> None:
        segment = writer.finish()
        if segment.next > segment.first:
            self._folder.add(segment)
        else:
            writer.drop()

    async def _answer(
        self, writer: SegmentWriter, key: QueueKey, end: int, empty: EmptyAnswers
    ) -> None:
        """Pull once, and write the messages that the plan includes."""
        plan, at = self._folder.plan, writer.next
        found = await self._reader.pull(key, at)
        empty.check(found)
        for message in found.messages:
            stored_ms = message.store_timestamp
            if message.queue_offset >= end or (plan.since_ms or 0) > stored_ms:
                continue
            if plan.until_ms is not None and stored_ms >= plan.until_ms:
                continue
            if self._pace is not None:
                await self._pace.wait()
            writer.add(message)
            self.message_count += 1
        after = min(found.next_offset, end)
        if found.status is not PullStatus.FOUND:
            writer.missing_count += after - at
        self.done_offsets += after - at
        writer.next = after
