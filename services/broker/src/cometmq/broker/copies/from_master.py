# SPDX-License-Identifier: Apache-2.0
"""A slave's copies of its master's tables, and its queries about the master's log.

Compatibility: the requests are RocketMQ's, sent 3 s after startup and then every 10 s. Topics and
groups are replaced if their version differs. Committed offsets overwrite the slave's own, even if
they go backwards. The positions of delay levels are saved for use once the slave is a master.
Filters, locks and connected clients are not copied, and a slave sends no tables to its master.

Each request may fail independently of the others; a failure is logged once, until a round succeeds.
Tables may have hundreds of thousands of entries, so they are decoded and adopted in steps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Final, TypeVar

import msgspec

from cometmq.broker.broker import Broker
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.delays.level import DelayFile
from cometmq.broker.handlers.deferred_answers import found
from cometmq.broker.registration.identity import Invoker
from cometmq.broker.role import MASTER_ID
from cometmq.broker.tables.offsets import OffsetFile, OffsetTable
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.kept import kept_members
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.large import decode_around, table_parts
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.queries import ViewMessageById
from cometmq.remoting.errors import (
    CometError,
    CommandError,
    ConnectionLost,
    CorruptRecord,
    TransportError,
)
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime import properties
from cometmq.runtime.incremental import Steps

T = TypeVar("T")

REQUEST_TIMEOUT_MS: Final = 3_000
STEP_KEYS: Final = 500
"""Number of offset tables, each of one group and topic, that one step adopts in 3 ms."""


class MasterCopies:
    """Asks the master: `step` copies its tables, `inspect` compares the two logs."""

    def __init__(
        self,
        broker: Broker,
        client: Invoker,
        *,
        is_slave: Callable[[], bool],
        note_unfit: Callable[[UnfitLog], None],
    ) -> None:
        """`note_unfit` is called when a comparison shows that the logs do not match."""
        self._broker = broker
        self._client = client
        self._is_slave = is_slave
        self._note_unfit = note_unfit
        self._status = broker.replication.following
        self._tables = broker.tables
        self._delay = broker.deferred.delays.positions
        self._saver = broker.tables.saver
        self._commit_log = broker.store.commit_log
        self._registration = broker.registration
        self._log = broker.log
        self._known_address = ""  # of the master whose name was checked
        self._failed: set[str] = set()

    async def step(self) -> None:
        if not self._is_slave() or not self._master_address():
            return
        steps: Mapping[str, Callable[[], Awaitable[None]]] = {
            "topics": self._copy_topics,
            "offsets": self._copy_offsets,
            "delay": self._copy_delay,
            "groups": self._copy_groups,
            "log": self._measure,
        }
        for name, copy in steps.items():
            try:
                await copy()
            except UnfitLog as error:
                self._note_unfit(error)
            except CometError as error:
                self._status.table_failed_count += 1
                if name not in self._failed:
                    self._failed.add(name)
                    self._log.warning(
                        "replica.copy_failed",
                        table=name,
                        master=self._master_address(),
                        error=describe(error),
                    )
            else:
                self._failed.discard(name)
        if not self._failed:
            self._status.tables_copied_ms = self._broker.clock.monotonic_ms()

    async def inspect(self) -> None:
        """Raise UnfitLog if the master is another broker, or its log cannot continue this one.

        Without an answer, return: the stream detects problems, too.
        """
        address = self._master_address()
        if not address:
            return
        try:
            if address != self._known_address:
                self._check_name(address, await self._ask(RequestCode.GET_BROKER_CONFIG))
                self._known_address = address
            await self._measure()
            self._judge()
            await self._compare()
        except (TransportError, CommandError, CorruptRecord) as error:
            self._log.debug("replica.unchecked", master=address, error=describe(error))

    def _judge(self) -> None:
        """Raise UnfitLog if the bounds of the master's log cannot continue this one."""
        end, status = self._commit_log.end, self._status
        if status.unfit is Unfit.AHEAD:
            # The master's log may have grown beyond ours since, but it is not the same log.
            raise UnfitLog(Unfit.AHEAD, status.unfit_detail)
        if 0 < end < status.master_min_offset:
            raise UnfitLog(
                Unfit.EXPIRED,
                f"this log ends at {end}, the master's begins at {status.master_min_offset}",
            )

    async def _compare(self) -> None:
        """Raise UnfitLog if the master has another message at the offset of this log's last one.

        This recognizes a former master whose last messages were never copied. Without a message,
        the logs may still match. RocketMQ compares nothing.
        """
        ours = await self._newest_record()
        if ours is None:
            return
        offset = ours.physical_offset
        body = await self._ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageById(offset))
        if _identity(decode_record(body)) != _identity(ours):
            raise UnfitLog(
                Unfit.DIVERGED,
                f"the last message of this log, at offset {offset}, is not the message that"
                f" {self._master_address()} has there",
            )

    async def _measure(self) -> None:
        # Our own end is read first, because the master's log only grows while it answers.
        end, status = self._commit_log.end, self._status
        body = await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        figures = decode_json(KVTable, body).table
        try:
            status.master_min_offset = int(figures["commitLogMinOffset"])
            status.master_max_offset = int(figures["commitLogMaxOffset"])
        except (KeyError, ValueError) as error:
            raise CommandError(0, f"no bounds of the master's log: {error}") from error
        if end > status.master_max_offset:
            raise UnfitLog(
                Unfit.AHEAD,
                f"this log ends at {end}, the log of {self._master_address()} at"
                f" {status.master_max_offset}",
            )

    async def _newest_record(self) -> MessageRecord | None:
        return await found(self._broker, self._broker.store.reader.newest_record())

    def _check_name(self, address: str, body: bytes) -> None:
        theirs = properties.parse(str(body, "utf-8", "replace"))
        settings = self._broker.settings
        for key, ours, reason in (
            ("brokerName", settings.broker_name, Unfit.FOREIGN),
            ("brokerClusterName", settings.broker_cluster_name, Unfit.FOREIGN),
            ("brokerId", str(MASTER_ID), Unfit.FOREIGN),
            (
                "mappedFileSizeCommitLog",
                str(settings.mapped_file_size_commit_log),
                Unfit.FILE_SIZE,
            ),
        ):
            if key in theirs and theirs[key] != ours:
                raise UnfitLog(reason, f"{address} has {key}={theirs[key]}; {ours} is needed")

    async def _copy_topics(self) -> None:
        body = await self._ask(RequestCode.GET_ALL_TOPIC_CONFIG)
        table, text = decode_around(TopicConfigTable, "topicConfigTable", body)
        topics = self._tables.topics
        if table.data_version != topics.version:
            parts = await self._take_turns(table_parts(text, dict[str, TopicConfig]))
            await self._take_turns(topics.becoming(parts, table.data_version, kept_members(table)))
            self._registration.register_again()

    async def _copy_groups(self) -> None:
        body = await self._ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        table, text = decode_around(SubscriptionGroupTable, "subscriptionGroupTable", body)
        groups = self._tables.groups
        if table.data_version != groups.version:
            parts = await self._take_turns(table_parts(text, dict[str, SubscriptionGroupConfig]))
            await self._take_turns(groups.becoming(parts, table.data_version, kept_members(table)))

    async def _copy_offsets(self) -> None:
        body = await self._ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        _, text = decode_around(OffsetFile, "offsetTable", body)
        parts = await self._take_turns(table_parts(text, OffsetTable))
        await self._take_turns(self._overwriting(parts))
        self._saver.request_if_dirty(self._tables.offsets)

    def _overwriting(self, parts: list[OffsetTable]) -> Steps[None]:
        parts.reverse()
        while parts:
            part = parts.pop()  # to free all of them at once, at the end, takes up to 60 ms
            keys = iter(part)
            while some := {key: part[key] for key in islice(keys, STEP_KEYS)}:
                self._tables.offsets.overwrite(some)
                yield

    async def _take_turns(self, work: Steps[T]) -> T:
        """Run work in steps; raise TransportError if this broker is no longer a slave."""
        try:
            while True:
                next(work)
                await asyncio.sleep(0)
                if not self._is_slave():
                    raise ConnectionLost("this broker is no slave any more")
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            work.close()

    async def _copy_delay(self) -> None:
        body = await self._ask(RequestCode.GET_ALL_DELAY_OFFSET)
        self._delay.adopt(decode_json(DelayFile, body))
        self._saver.request_if_dirty(self._delay)

    async def _ask(self, code: RequestCode, header: msgspec.Struct | None = None) -> bytes:
        response = await self._client.invoke(
            self._master_address(), code, header, timeout_ms=REQUEST_TIMEOUT_MS
        )
        return bytes(response.body)

    def _master_address(self) -> str:
        """Return the master's address; empty if it is still this, just demoted, broker's."""
        address = self._registration.registrant.master_address
        return "" if address == self._registration.registrant.identity.broker_addr else address


def _identity(record: MessageRecord) -> tuple[object, ...]:
    return record.topic, record.queue_id, record.queue_offset, record.store_timestamp, record.body
