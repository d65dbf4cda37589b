# SPDX-License-Identifier: Apache-2.0
"""Native pulls: connects `cometmq.accel.PullLane` to the broker's state.

The native code serves pulls that have the same group, topic and subscription as a pull that the
handler has just answered with messages. It reads recent messages only, from a bounded cache of
blocks that it fills through the store. Once per chunk, this module checks whether anything has
changed that the admission of a pull depends on. After any change, the lane serves pulls of a kind
only when a handler has admitted one of them again.

`services/broker/tests/lanes/test_pull_lane.py` tests that the lane and the handlers give the same
results.
"""

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.broker import Broker
from cometmq.broker.filters.records import RecordFilter
from cometmq.broker.filters.tags import CODES_MAX, TagFilter, codes_of
from cometmq.broker.native import accel
from cometmq.broker.role import MASTER_ID
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.header_plan import pulled_pieces
from cometmq.remoting.transport.lane import Answered
from cometmq.remoting.transport.tasks import describe
from cometmq.store.queues.pulls import read_entries, read_log
from cometmq.store.results import GetStatus

if TYPE_CHECKING:
    from cometmq.accel import PullLane

TURN_EXAMINED_MAX: Final = 4_096
"""Entries that the filters of all pulls may examine in one turn of the loop: about 1 ms for SQL.
Above this limit, pulls with filters are left to the handler, which spreads searches over several
turns.
"""

TIMED_MASK: Final = 7
"""One chunk in eight is timed and stands for all chunks since the last timed one; timing every
chunk would add 5 % to the cost of a pull (bench/micro/bench_pull_lane.py).
"""


class BrokerPulls:
    """Serves plain pulls natively."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._native = _build(broker)
        self._settings = broker.settings
        self._note_versions()
        self._log = broker.store.commit_log
        self._store = broker.store.pulls
        self._store_version = self._store.version
        self._has_failed = False
        self._budget = TURN_EXAMINED_MAX
        self._chunk_count = 0
        self._untimed_count = 0  # pulls answered since a chunk was timed
        self.request_count = 0  # answered since startup

    def staging(self) -> "PullLane | None":
        """Adopt changes; return the native lane, or None if handlers must serve all pulls."""
        broker = self._broker
        if self._has_failed or not broker.settings.native_cache_bytes:
            return None
        if self._settings is not broker.settings:
            self._native = _build(broker)
            self._settings = broker.settings
            self._note_versions()
        elif self._has_changed():
            self._native.forget()
            self._note_versions()
        self._follow_store()
        return self._native

    def learn(
        self,
        call: Call[PullMessage],
        group: SubscriptionGroupConfig,
        accept: TagFilter | RecordFilter | None,
    ) -> None:
        """Serve pulls like this call from now on; the handler has just admitted it."""
        broker, header = self._broker, call.header
        topic = broker.topics.get(header.topic)
        if self._has_failed or topic is None or self._settings is not broker.settings:
            return
        if self._has_changed():
            self._native.forget()
            self._note_versions()
        options: dict[str, Any] = {}
        if isinstance(accept, RecordFilter):
            if accept.program is None:
                return
            options = accept.program._asdict()
        elif accept is not None:
            options["codes"] = list(codes_of(accept))
            if len(options["codes"]) > CODES_MAX:
                return
        reads_slaves = self._settings.slave_read_enable
        self._native.learn(
            call.serialization,
            call.head,
            header.consumer_group,
            header.topic,
            queue_count=topic.read_queue_nums,
            suggested_id=group.broker_id if reads_slaves else MASTER_ID,
            **options,
        )

    def answer(self, first: int, count: int, room: int) -> Answered:
        """Answer staged pulls; see `cometmq.remoting.transport.lane`."""
        broker, native = self._broker, self._native
        if (
            self._has_failed
            or self._settings is not broker.settings
            or self._has_changed()
            or not broker.offsets.has_room(count)
        ):
            return b"", 0, *native.frame(first), True
        self._follow_store()
        is_timed = self._chunk_count & TIMED_MASK == 0
        self._chunk_count += 1
        started_s = perf_counter() if is_timed else 0.0
        try:
            data, done, start, end, is_odd, totals, commits, left = native.answer(
                first, count, room, self._log.view(), self._budget
            )
        except accel.PanicException as error:
            self.fail(error)
            return b"", 0, *native.frame(first), True
        if left <= 0 < self._budget:
            asyncio.get_running_loop().call_soon(self._refill)
        self._budget = left
        if commits and broker.is_master:
            for commit in commits:
                broker.offsets.commit(*commit)
        message_count = 0
        for topic, group, pull_count, messages, size in totals:
            message_count += messages
            broker.stats.count_get(topic, group, messages, size, pull_count)
        self._untimed_count += done
        if is_timed:
            broker.stats.pull_seconds.observe(perf_counter() - started_s, self._untimed_count)
            self._untimed_count = 0
        self._store.count(done, message_count)
        self.request_count += done
        return data, done, start, end, is_odd

    def _refill(self) -> None:
        self._budget = TURN_EXAMINED_MAX

    def fail(self, error: BaseException) -> None:
        """Leave all pulls to the handlers from now on, so that a bug in native code leaves no pull
        unanswered.
        """
        self._has_failed = True
        self._broker.log.error("lane.failed", error=describe(error), action="report this bug")

    def _has_changed(self) -> bool:
        broker = self._broker
        return (
            self._topics_version is not broker.topics.version
            or self._groups_version is not broker.groups.version
            or self._consumers_version != broker.consumers.version
            or self._filters_version != broker.filters.version
        )

    def _note_versions(self) -> None:
        broker = self._broker
        self._topics_version = broker.topics.version
        self._groups_version = broker.groups.version
        self._consumers_version = broker.consumers.version
        self._filters_version = broker.filters.version

    def _follow_store(self) -> None:
        """Drop the cached blocks after the log was truncated or found damaged."""
        if self._store_version != self._store.version:
            self._native.clear()
            self._store_version = self._store.version


def _build(broker: Broker) -> "PullLane":
    pulls = broker.store.pulls
    limits = pulls.limits
    pieces = pulled_pieces(ResponseCode.SUCCESS, GetStatus.FOUND.name)
    return accel.PullLane(
        cache_bytes=broker.settings.native_cache_bytes,
        count_max=limits.count_max,
        bytes_max=limits.bytes_max,
        memory_bytes=limits.memory_bytes,
        json=list(pieces.json),
        binary_head=pieces.binary_head,
        flag=pieces.flag,
        remark=pieces.remark,
        names=list(pieces.names),
        queues=pulls.table.queues,
        read_log=read_log,
        read_entries=read_entries,
    )
