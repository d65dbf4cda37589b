# SPDX-License-Identifier: Apache-2.0
"""Native pulls and renewals of queue locks: connects `cometmq.accel.PullLane` to the broker.

The native code serves pulls that have the same group, topic and subscription as a pull that the
handler has just answered with messages. It reads recent messages only, from a bounded cache of
blocks that it fills through the store. Once per chunk, this module checks whether anything has
changed that the admission of a pull depends on.

A handler serves a pull instead if
- the broker has no lane (`lane.open_lane`), the lane has failed or has no cache
  (`nativeCacheBytes=0`), or the port refuses some codes;
- in a broker group, consumers currently may not see the ends of queues (`Permission.may_read`);
- no handler has admitted a pull of this kind since the last change of settings, accounts, topics,
  groups, consumers or filters;
- its filter has more than CODES_MAX tags, or an SQL expression without a native program (`learn`);
- with access control, it is not signed by an account that has the rights (`access.py`);
- its header is unusual, or the topic does not have its queue (`pull/request.rs`, `pull/stage.rs`);
- it would find nothing, or needs data that is damaged, not recent or not in memory, or its SQL
  condition meets a value that the native code leaves to Python (`pull/select.rs`, `pull/sql.rs`);
- the filters have taken TURN_STEPS_MAX steps in this turn of the loop, or commits could
  exceed the bound of the offset table.

The requests with which an orderly consumer renews its locks differ only in the `opaque` field. The
lane serves them like pulls once a handler has granted all queues of such a request, until a lock is
taken or released. In a broker group, whose masters may be replaced, and with access control,
handlers serve all of them.

`services/broker/tests/lanes/test_pull_lane.py` tests that the lane and the handlers give the same
results.
"""

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.broker import Broker
from cometmq.broker.clients.queue_locks import QueueLock
from cometmq.broker.filters.records import RecordFilter
from cometmq.broker.filters.tags import CODES_MAX, TagFilter, codes_of
from cometmq.broker.lanes.access import LaneAccess
from cometmq.broker.native import Breaker, accel
from cometmq.broker.role import MASTER_ID
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.frame import FRAME_BYTES_MAX
from cometmq.remoting.transport.lane import Answered
from cometmq.remoting.typed_encode import lane_pieces
from cometmq.store.log.commit_log import LogView
from cometmq.store.queues.pulls import read_entries, read_log
from cometmq.store.results import GetStatus

if TYPE_CHECKING:
    from cometmq.accel import PullLane
    from cometmq.accel._native import PullEffects

TURN_STEPS_MAX: Final = 1 << 20
"""Steps that the filters of all pulls may take in one turn of the loop, about 1 ms. Each queue
entry takes 256 steps, and further ones for an SQL condition (`pull/sql.rs`).

At the limit, a pull is answered with what it has found so far. If it has found nothing, the handler
serves it, and spreads the search over several turns.
"""

TIMED_MASK: Final = 7
"""Only one call in eight is timed; its time counts for all calls since the last timed one."""


class BrokerPulls:
    """Serves plain pulls natively."""

    def __init__(self, broker: Broker, access: LaneAccess, breaker: Breaker) -> None:
        self._broker = broker
        self._access = access
        self._breaker = breaker
        self._native = _build(broker, access)
        self._settings = broker.settings
        self._note_versions()
        self._locks_version = broker.clients.locks.version
        self._log = broker.store.commit_log
        self._store = broker.store.pulls
        self._store_version = self._store.version
        self._budget = TURN_STEPS_MAX
        self._chunk_count = 0  # chunks with answered pulls
        self._untimed_count = 0  # pulls answered since a chunk was timed
        self.request_count = 0  # answered since startup

    @property
    def cached_bytes(self) -> int:
        """The size of the blocks of records that are kept for pulls."""
        return self._native.cached_bytes

    def staging(self) -> "PullLane | None":
        """Forget what has changed; return the native lane, None if handlers serve all pulls."""
        # One function without calls, if nothing has changed that the native lane depends on: it
        # runs twice in each turn (bench/micro/bench_pull_lane.py).
        broker, control = self._broker, self._access.control
        if self._breaker.is_open or not broker.settings.native_cache_bytes:
            return None
        if broker.role.may_read is not None and not broker.role.may_read():
            return None
        if not (
            self._settings is broker.settings
            and self._topics_version is broker.tables.topics.version
            and self._groups_version is broker.tables.groups.version
            and self._consumers_version == broker.clients.consumers.version
            and self._filters_version == broker.tables.filters.version
            and self._locks_version == broker.clients.locks.version
            and self._store_version == self._store.version
            and (control is None or self._accounts is control.accounts)
        ):
            self._adopt()
        return self._native

    def learn(
        self,
        call: Call[PullMessage],
        group: SubscriptionGroupConfig,
        accept: TagFilter | RecordFilter | None,
    ) -> bool:
        """From now on, serve pulls like this one, which the handler has just admitted; return
        whether the lane did not serve them before.
        """
        broker, header = self._broker, call.header
        topic = broker.tables.topics.get(header.topic)
        if self._breaker.is_open or topic is None or self._is_outdated():
            return False
        if self._has_changed():
            self._native.forget()
            self._note_versions()
        options: dict[str, Any] = {}
        if isinstance(accept, RecordFilter):
            if accept.program is None:
                return False
            options = accept.program._asdict()
        elif accept is not None:
            options["codes"] = list(codes_of(accept))
            if len(options["codes"]) > CODES_MAX:
                return False
        reads_slaves = self._settings.slave_read_enable
        return self._native.learn(
            call.serialization,
            call.head,
            header.consumer_group,
            header.topic,
            queue_count=topic.read_queue_nums,
            suggested_id=group.broker_id if reads_slaves else MASTER_ID,
            **options,
        )

    def learn_renewal(self, call: Call[NoHeader], locks: list[QueueLock], answer: bytes) -> bool:
        """From now on, serve requests equal to this one, which has locked all its queues; return
        whether the lane did not serve them before.
        """
        if self._breaker.is_open or self._settings.group_record:
            return False
        self._follow_locks()
        return self._native.learn_renewal(call.serialization, call.head, call.body, answer, locks)

    def answer(self, first: int, count: int, room: int) -> Answered:
        """Answer staged requests; see `cometmq.remoting.transport.lane`."""
        broker, native = self._broker, self._native
        if (
            self._breaker.is_open
            or self._is_outdated()
            or self._has_changed()
            or not broker.tables.offsets.has_room(count)
        ):
            return b"", 0, *native.frame(first), True
        self._follow_locks()
        self._follow_store()
        try:
            data, done, start, end, is_odd, effects = native.answer(
                first, count, room, self._log.view(), self._budget
            )
        except accel.PanicException as error:
            self._breaker.trip(error)
            return b"", 0, *native.frame(first), True
        self.pulled(effects, None)
        return data, done, start, end, is_odd

    def frame(self, index: int) -> tuple[int, int]:
        """Return the place of a staged request; see `cometmq.remoting.transport.lane`."""
        return self._native.frame(index)

    def pulls(self, count_max: int) -> "tuple[PullLane, LogView, int] | None":
        """Return the native lane, the log and the filters' budget; None to leave pulls."""
        native = self.staging()
        offsets = self._broker.tables.offsets  # `has_room`, without a call
        if native is None or offsets.index.count + count_max > offsets.count_max:
            return None
        return native, self._log.view(), self._budget

    def pulled(self, effects: "PullEffects | None", fault: BaseException | None) -> None:
        """Store and count the effects of answered requests; fail after a bug in native code."""
        if fault is not None:
            self._breaker.trip(fault)
        if effects is None:
            return
        broker = self._broker
        totals, commits, renewed, left, spent_s = effects
        if left < self._budget == TURN_STEPS_MAX:
            asyncio.get_running_loop().call_soon(self._refill)
        self._budget = left
        if commits and broker.role.is_master and not broker.role.is_diverting:
            journal, most = broker.tables.journal, self._settings.journal_bytes_max
            # `limits.is_full`, without calls
            if journal is None or journal.fault or journal.files.redo.size_bytes < most:
                broker.tables.offsets.commit_pulled(commits)
        if renewed:
            broker.clients.locks.renew(
                chain.from_iterable(renewed), now_ms=broker.clock.monotonic_ms()
            )
        if totals:
            count, message_count = broker.stats.count_gets(totals)
            self._untimed_count += count
            if not self._chunk_count & TIMED_MASK:
                broker.stats.pull_seconds.observe(spent_s, self._untimed_count)
                self._untimed_count = 0
            self._chunk_count += 1
            self._store.count(count, message_count)
            self.request_count += count

    def _refill(self) -> None:
        self._budget = TURN_STEPS_MAX

    def _adopt(self) -> None:
        """Make the native lane forget everything that depends on what has changed."""
        if self._is_outdated():
            self._native = _build(self._broker, self._access)
            self._settings = self._broker.settings
            self._note_versions()
        elif self._has_changed():
            self._native.forget()
            self._note_versions()
        self._follow_locks()
        self._follow_store()

    def _is_outdated(self) -> bool:
        """Return whether the settings or the accounts have changed."""
        is_same = self._accounts is self._access.accounts
        return not is_same or self._settings is not self._broker.settings

    def _has_changed(self) -> bool:
        broker = self._broker
        return (
            self._topics_version is not broker.tables.topics.version
            or self._groups_version is not broker.tables.groups.version
            or self._consumers_version != broker.clients.consumers.version
            or self._filters_version != broker.tables.filters.version
        )

    def _note_versions(self) -> None:
        broker = self._broker
        self._accounts = self._access.accounts
        self._topics_version = broker.tables.topics.version
        self._groups_version = broker.tables.groups.version
        self._consumers_version = broker.clients.consumers.version
        self._filters_version = broker.tables.filters.version

    def _follow_locks(self) -> None:
        """Make handlers serve renewals again after any lock was taken or released."""
        if self._locks_version != self._broker.clients.locks.version:
            self._native.forget_renewals()
            self._locks_version = self._broker.clients.locks.version

    def _follow_store(self) -> None:
        """Drop the cached blocks after the log was truncated or found damaged."""
        if self._store_version != self._store.version:
            self._native.clear()
            self._store_version = self._store.version


def _build(broker: Broker, access: LaneAccess) -> "PullLane":
    pulls = broker.store.pulls
    limits = pulls.limits
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    return accel.PullLane(
        frame_bytes_max=FRAME_BYTES_MAX,
        cache_bytes=broker.settings.native_cache_bytes,
        count_max=limits.count_max,
        bytes_max=limits.bytes_max,
        memory_bytes=limits.memory_bytes,
        **lane_pieces(ResponseCode.SUCCESS, names, remark=GetStatus.FOUND.name),
        remark=GetStatus.FOUND.name.encode(),
        names=[name.encode() for name in names],
        queues=pulls.table.queues,
        read_log=read_log,
        read_entries=read_entries,
        accounts=access.native(),
    )
