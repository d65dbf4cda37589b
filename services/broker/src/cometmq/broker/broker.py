# SPDX-License-Identifier: Apache-2.0
"""The parts of a broker that handlers may use.

Only the event loop uses these parts, so there are no locks. `assembly.py` builds the broker, and
handlers receive it as their first argument; the parts themselves hold no reference to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.clients.consumers import Consumers
from cometmq.broker.clients.producers import Producers
from cometmq.broker.clients.queue_locks import QueueLock, QueueLocks
from cometmq.broker.clients.registered import Registered
from cometmq.broker.clients.told import Told
from cometmq.broker.copies.keys import MemberKeys
from cometmq.broker.copies.state import Replication
from cometmq.broker.copies.tables.feed import Replicated
from cometmq.broker.delays.delays import Delays
from cometmq.broker.delays.parking import Destinations, Parking
from cometmq.broker.detours import Detours
from cometmq.broker.filters.records import RecordFilter
from cometmq.broker.filters.subscriptions import FilterSubscriptions
from cometmq.broker.filters.tags import TagFilter
from cometmq.broker.hold import HoldTable
from cometmq.broker.limits import (
    BATCH_BYTES,
    FILTER_CHARS,
    FILTERS,
    GROUPS,
    HELD_PULLS,
    JOURNAL_BYTES,
    LIMITS,
    OFFSETS,
    QUEUE_LOCKS,
    QUEUES,
    REGISTRATIONS,
    STATISTICS,
    SUBSCRIPTION_BYTES,
    TOPICS,
    UNKNOWN_OFFSETS,
    Room,
    add_entry,
    address_of,
)
from cometmq.broker.messages import cluster_pair
from cometmq.broker.registration.registration import Registration
from cometmq.broker.role import MASTER_ID, Role, RoleState, id_of
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.settings_file import SettingsFile
from cometmq.broker.statistics.counters import BrokerStats
from cometmq.broker.statistics.daily_totals import History
from cometmq.broker.statistics.lag_times import LagTimes
from cometmq.broker.statistics.refused import RecentRefusals
from cometmq.broker.statistics.sampler import StatSampler
from cometmq.broker.storing.disk_figures import DiskWatch
from cometmq.broker.storing.large_batches import LargeBatches
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.tables.journal import Journal
from cometmq.broker.tables.offsets import Offsets
from cometmq.broker.tables.persistence import TableSaver
from cometmq.broker.tables.subscription_groups import Groups
from cometmq.broker.tables.topics import Topics
from cometmq.broker.transactions.transactions import Transactions
from cometmq.remoting.bodies.topic_config import DataVersion, SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.command import Call, ConstantExt
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.log import Log
from cometmq.remoting.message.flags import Perm
from cometmq.remoting.names import is_system_group
from cometmq.runtime.clock import Clock
from cometmq.runtime.incremental import IncrementalRunner
from cometmq.runtime.limits import Limits
from cometmq.runtime.settings import Loaded
from cometmq.runtime.turn_lock import TurnLock
from cometmq.store.message_store import MessageStore
from cometmq.store.settings import BrokerRole


class LearningLane(Protocol):
    """A native message path (lane), which serves requests of the kinds that it has learned."""

    request_count: int  # sends taken since startup

    @property
    def pull_count(self) -> int:
        """The number of pulls answered since startup."""

    def learn(self, config: TopicConfig) -> bool:
        """Let the lane serve later sends to this topic, now that a handler has admitted a send;
        return whether it did not know the topic.
        """

    def learn_pull(
        self,
        call: Call[PullMessage],
        group: SubscriptionGroupConfig,
        accept: TagFilter | RecordFilter | None,
    ) -> bool:
        """Let the lane serve later pulls that match `call`, which a handler has just admitted;
        return whether it did not know them.
        """

    def learn_back(self, group: SubscriptionGroupConfig, topic: TopicConfig) -> bool:
        """Let the lane store later messages that consumers of a group send back, now that a handler
        has admitted one; return whether it did not know the group. `topic` is its retry topic.
        """

    def learn_renewal(self, call: Call[NoHeader], locks: list[QueueLock], answer: bytes) -> bool:
        """Let the lane serve later requests like `call`, which has just locked all its queues;
        return whether it did not know them. `answer` is the body of the answer.
        """


@dataclass(slots=True)
class Broker:
    loaded: Loaded[BrokerSettings]  # with the source of each value, for codes 25 and 26
    settings: BrokerSettings  # loaded.value; both are replaced when settings change
    settings_version: DataVersion  # counts the changes by code 25
    clock: Clock
    log: Log
    store: MessageStore
    driver: StoreDriver
    saver: TableSaver
    topics: Topics
    groups: Groups
    offsets: Offsets
    delay: Delays
    consumers: Consumers
    filters: FilterSubscriptions
    registration: Registration
    stats: BrokerStats
    sampler: StatSampler
    history: History
    address: str  # "ip:port" for clients and name servers
    host: str  # the ip alone, as remarks name the broker
    store_host: bytes  # ip and port, packed as in every record
    parking: Parking
    destinations: Destinations
    limits: Limits = field(init=False)
    registered: Registered = field(init=False)
    role: RoleState = field(init=False)
    started_monotonic_ms: int = field(init=False)
    is_master: bool = field(init=False)  # cached from `role` for the message path
    producers: Producers = field(default_factory=Producers)
    told: Told = field(default_factory=Told)
    locks: QueueLocks = field(default_factory=QueueLocks)
    hold: HoldTable = field(default_factory=HoldTable)
    cluster_pair: str = ""  # the property that every message gets
    checks_sends: bool = False  # whether a setting makes every send pass all checks; set by `apply`
    send_ext: ConstantExt = field(default_factory=lambda: ConstantExt({}))  # set by `apply`
    settings_file: SettingsFile | None = None  # None: changes by code 25 are not saved
    acl: AclKeeper | None = None  # None: no access control
    member_keys: MemberKeys = field(default_factory=MemberKeys)
    journal: Journal | None = None  # None: the tables are in memory only
    memory_bytes: int = 8 << 30  # for the process; bounds the window of hot messages
    replication: Replication = field(default_factory=Replication)
    transactions: Transactions = field(default_factory=Transactions)
    incremental: IncrementalRunner = field(default_factory=IncrementalRunner)  # for long answers
    reports: TurnLock = field(default_factory=TurnLock)  # for long answers that read the log
    large_batches: LargeBatches = field(default_factory=LargeBatches)
    is_observed: bool = False  # an HTTP port shows metrics, so their figures are measured
    lag_times: LagTimes = field(default_factory=LagTimes)
    disk_watch: DiskWatch = field(default_factory=DiskWatch)
    started_ms: int = 0
    is_stopping: bool = False
    is_diverting: bool = False  # requests that change state wait or are forwarded
    expiries_s: Callable[[], dict[str, float]] = (
        dict  # of the certificates in TLS files, by setting
    )
    role_changed: Callable[[RoleState], None] = lambda _state: None
    elector_count: Callable[[], int | None] = lambda: None  # None: not known, or in no group
    may_read: Callable[[], bool] | None = None  # in a group: whether pulls may be answered now
    lane: LearningLane | None = None  # None: handlers serve every request
    detours: Detours = field(default_factory=Detours)
    refused: RecentRefusals = field(default_factory=RecentRefusals)
    send_path: str = "python"  # for operators: `native`, or `python` and why

    def __post_init__(self) -> None:
        self.limits = Limits(
            LIMITS, lambda: self.settings, clock_ms=self.clock.monotonic_ms, log=self.log
        )
        self.registered = Registered(self.limits)
        self._bound_tables()
        self.apply(self.loaded)
        self.started_monotonic_ms = self.clock.monotonic_ms()
        settings = self.settings
        is_slave = settings.broker_role is BrokerRole.SLAVE
        role = Role.SLAVE if is_slave else Role.MASTER
        if settings.group_record:
            self._take(RoleState(Role.FENCED, broker_id=id_of(Role.FENCED, settings.broker_id)))
            return
        self.store.may_replicate = self._may_replicate
        self._take(RoleState(role, broker_id=settings.broker_id if is_slave else MASTER_ID))

    def take_role(self, role: Role, epoch: int) -> None:
        """Adopt a role in a broker group, and register with name servers under the role's id."""
        state = RoleState(role, epoch, id_of(role, self.settings.broker_id))
        if state != self.role:
            self._take(state)
            self.registration.use_role(state.broker_id, epoch)
            self.role_changed(state)

    def _take(self, state: RoleState) -> None:
        self.role = state
        self.is_master = state.role is Role.MASTER
        self.store.role_writable = self.is_master
        waits = self.settings.group_record or self.settings.broker_role is BrokerRole.SYNC_MASTER
        self.store.needs_replicas = self.is_master and bool(waits)

    def _may_replicate(self, end: int) -> bool:
        behind_bytes_max = self.settings.ha_slave_fallbehind_max
        return self.replication.slaves.may_replicate(end, behind_bytes_max)

    @property
    def tables(self) -> tuple[Replicated, ...]:
        """The journaled tables, which a master of a broker group copies to its followers."""
        return (self.topics, self.groups, self.offsets, self.filters, self.delay)

    @property
    def is_slave(self) -> bool:
        return self.role.role is Role.SLAVE

    def group(self, name: str, room: Room | None = None) -> SubscriptionGroupConfig | None:
        """Return a subscription group; create it if it is unknown and the settings allow it.

        Raise LimitReached if there is no room for a new group.
        """
        known = self.groups.get(name)
        if known is not None:
            return known
        return self.groups.find(
            name,
            auto_create=self.settings.auto_create_subscription_group,
            admit=(lambda _count: None) if room is None else partial(add_entry, room, GROUPS),
        )

    def room(self, call: Call[Any]) -> Room:
        """Return the room that a request has in the tables that peers fill."""
        return Room(self.limits, self.journal, call, self._peer_of)

    def _peer_of(self, call: Call[Any]) -> str:
        account = None if self.acl is None else self.acl.control.account_name(call)
        return f"the account {account}" if account else address_of(call)

    def _is_known(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group, and a queue of a topic, exist."""
        config = self.topics.get(topic)
        if config is None or not (group in self.groups.table or is_system_group(group)):
            return False
        return 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def _bound_tables(self) -> None:
        """Connect the tables with the limits."""
        limits = self.limits
        offsets, locks = self.offsets, self.locks
        offsets.is_known = self._is_known
        offsets.known_version = lambda: (self.topics.version, self.groups.version)
        offsets.find_unknown()
        locks.released = partial(limits.release, QUEUE_LOCKS)
        self.filters.released = partial(limits.release, FILTERS)
        limits.used |= {
            TOPICS.name: lambda: len(self.topics.table),
            QUEUES.name: lambda: self.topics.queue_count,
            GROUPS.name: lambda: len(self.groups.table),
            OFFSETS.name: lambda: offsets.count,
            UNKNOWN_OFFSETS.name: lambda: offsets.unknown_count,
            QUEUE_LOCKS.name: lambda: locks.count,
            REGISTRATIONS.name: lambda: self.registered.count,
            SUBSCRIPTION_BYTES.name: lambda: self.registered.size,
            FILTERS.name: lambda: self.filters.count,
            BATCH_BYTES.name: lambda: self.large_batches.size_bytes,
            FILTER_CHARS.name: lambda: self.filters.chars,
            HELD_PULLS.name: lambda: self.hold.count,
            JOURNAL_BYTES.name: lambda: self.journal.size_bytes if self.journal else 0,
            STATISTICS.name: lambda: len(self.stats.topics) + len(self.stats.groups),
        }

    def apply(self, loaded: Loaded[BrokerSettings]) -> None:
        """Adopt new settings, and recompute the values that the message path derives from them."""
        settings = loaded.value
        self.loaded = loaded
        self.settings = settings
        self.offsets.count_max = self.limits.maximum(OFFSETS)
        self.cluster_pair = cluster_pair(settings.broker_cluster_name)
        self.checks_sends = not settings.broker_permission & Perm.WRITE or bool(
            settings.start_accept_send_request_time_stamp
        )
        trace = "true" if settings.trace_on else "false"
        self.send_ext = ConstantExt({"MSG_REGION": settings.region_id, "TRACE_ON": trace})
