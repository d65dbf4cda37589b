# SPDX-License-Identifier: Apache-2.0
"""The parts of a broker that handlers may use.

Only the event loop uses these parts, so there are no locks. `assembly.py` builds the broker, and
handlers receive it, or the one part that they need, as their first argument; the parts themselves
hold no reference to it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.clients.consumers import Consumers
from cometmq.broker.clients.habits import Habits, MovedReports
from cometmq.broker.clients.producers import Producers
from cometmq.broker.clients.queue_locks import QueueLock, QueueLocks
from cometmq.broker.clients.registered import Registered
from cometmq.broker.clients.told import Told
from cometmq.broker.copies.keys import MemberKeys
from cometmq.broker.copies.state import Replication
from cometmq.broker.copies.tables.feed import Replicated
from cometmq.broker.delays.delays import Delays
from cometmq.broker.delays.parking import Destinations, Parking
from cometmq.broker.delays.timed import TimerRules
from cometmq.broker.filters.records import RecordFilter
from cometmq.broker.filters.subscriptions import FilterSubscriptions
from cometmq.broker.filters.tags import TagFilter
from cometmq.broker.hold import HoldTable
from cometmq.broker.limits import (
    BATCH_BYTES,
    COPY_BYTES,
    FILTER_CHARS,
    FILTERS,
    GROUPS,
    HEARTBEAT_ITEMS,
    HELD_PULLS,
    JOURNAL_BYTES,
    OFFSETS,
    QUESTIONS,
    QUEUE_LOCKS,
    QUEUES,
    RECALLED,
    REGISTRATIONS,
    REPLY_BYTES,
    STATISTICS,
    SUBSCRIPTION_BYTES,
    TOPICS,
    UNKNOWN_OFFSETS,
    Room,
    add_entry,
)
from cometmq.broker.messages import cluster_pair
from cometmq.broker.registration.registration import Registration
from cometmq.broker.role import AdoptedRole
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.settings.file import SettingsFile
from cometmq.broker.statistics.counters import BrokerStats
from cometmq.broker.statistics.detours import Detours
from cometmq.broker.statistics.lag_times import LagTimes
from cometmq.broker.statistics.rates import History, Rates
from cometmq.broker.statistics.refused import RecentRefusals
from cometmq.broker.statistics.sampler import StatSampler
from cometmq.broker.storing.disk_figures import DiskWatch
from cometmq.broker.storing.large_puts import LargePuts, UnderWay
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
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.clock import Clock
from cometmq.runtime.incremental import IncrementalRunner, LaterSteps, TurnLock
from cometmq.runtime.limits import Limits
from cometmq.runtime.settings import Loaded
from cometmq.runtime.tasks import Alarm
from cometmq.store.message_store import MessageStore


class LearningLane(Protocol):
    """A native message path (lane), which serves requests like those that handlers served before.

    After a handler has admitted a request, it calls a `learn` method. Each returns whether the lane
    now serves such requests and did not before.
    """

    request_count: int  # sends taken since startup

    @property
    def pull_count(self) -> int:
        """The number of pulls answered since startup."""

    @property
    def cached_bytes(self) -> int:
        """The size of the cache of records for pulls."""

    def learn(self, config: TopicConfig) -> bool:
        """Let the lane serve later sends to this topic."""

    def learn_pull(
        self,
        call: Call[PullMessage],
        group: SubscriptionGroupConfig,
        accept: TagFilter | RecordFilter | None,
    ) -> bool:
        """Let the lane serve later pulls with the group, topic and filter of `call`."""

    def learn_back(self, group: SubscriptionGroupConfig, topic: TopicConfig) -> bool:
        """Let the lane store what consumers of a group send back; `topic` is its retry topic."""

    def learn_renewal(self, call: Call[NoHeader], locks: list[QueueLock], answer: bytes) -> bool:
        """Let the lane renew `locks`, and answer `answer`, on requests equal to `call`."""


@dataclass(slots=True)
class Configuration:
    """The settings with their sources, and what the message path derives from them."""

    loaded: Loaded[BrokerSettings]
    version: DataVersion  # counts the changes by code 25
    file: SettingsFile | None = None  # None: changes by code 25 are not saved
    cluster_pair: str = ""  # the property that every message gets
    checks_sends: bool = False  # whether a setting makes every send pass all checks
    send_ext: ConstantExt = field(default_factory=lambda: ConstantExt({}))  # of answers to sends

    def adopt(self, loaded: Loaded[BrokerSettings]) -> None:
        settings = loaded.value
        self.loaded = loaded
        self.cluster_pair = cluster_pair(settings.broker_cluster_name)
        self.checks_sends = not settings.broker_permission & Perm.WRITE or bool(
            settings.start_accept_send_request_time_stamp
        )
        trace = "true" if settings.trace_on else "false"
        self.send_ext = ConstantExt({"MSG_REGION": settings.region_id, "TRACE_ON": trace})


@dataclass(slots=True)
class Process:
    """Facts about this process: its addresses, memory, certificates and message path."""

    address: str  # "ip:port" for clients and name servers
    host: str  # the ip alone, as remarks name the broker
    store_host: bytes  # ip and port, packed as in every record
    started_ms: int
    started_monotonic_ms: int
    memory_bytes: int = 8 << 30  # bounds the window of hot messages
    is_stopping: bool = False
    send_path: str = "python"  # `native`, or `python` and why
    expiries_s: Callable[[], dict[str, float]] = dict  # of TLS certificates, by setting
    unread_bytes: Callable[[], int] = lambda: 0  # answers held for peers that do not read them


@dataclass(slots=True)
class Tables:
    """The tables that are journaled and saved in their own files."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    filters: FilterSubscriptions
    saver: TableSaver
    journal: Journal | None = None  # None: the tables are in memory only
    has_lost_messages: bool = False
    """Whether messages were lost, so that offsets may lie beyond the ends of their queues."""


@dataclass(slots=True)
class Clients:
    """The connected producers and consumers, their queue locks, and so on; none is saved."""

    consumers: Consumers
    registered: Registered
    producers: Producers = field(default_factory=Producers)
    told: Told = field(default_factory=Told)
    moved: MovedReports = field(default_factory=MovedReports)
    locks: QueueLocks = field(default_factory=QueueLocks)
    habits: Habits = field(default_factory=Habits)


@dataclass(slots=True)
class Admission:
    """Decides whether a request is allowed (access control), and the tables have room for it."""

    limits: Limits
    tables: Tables
    acl: AclKeeper | None = None  # None: no access control
    member_keys: MemberKeys = field(default_factory=MemberKeys)
    refused: RecentRefusals = field(default_factory=RecentRefusals)

    def room(self, call: Call[Any]) -> Room:
        """Return the room that the sender of a request has left in the tables that peers fill."""
        return Room(self.limits, self.tables.journal, call, self._account_of)

    def requester(self, call: Call[Any]) -> Requester:
        return self.room(call).requester()

    def _account_of(self, call: Call[Any]) -> str | None:
        return None if self.acl is None else self.acl.control.account_name(call)


@dataclass(slots=True)
class Deferred:
    """The parts for messages that the broker stores a second time later: delayed, timed, recalled
    and parked messages, and half messages.
    """

    delays: Delays
    parking: Parking
    destinations: Destinations
    alarm: Alarm
    """Rings when a delayed message is due."""
    transactions: Transactions = field(default_factory=Transactions)


@dataclass(slots=True)
class Pending:
    """Requests that are answered in a later turn of the loop: held pulls and long work."""

    large_puts: LargePuts
    hold: HoldTable = field(default_factory=HoldTable)
    incremental: IncrementalRunner = field(default_factory=IncrementalRunner)  # long answers
    later: LaterSteps = field(default_factory=LaterSteps)  # what no request waits for
    reports: TurnLock = field(default_factory=TurnLock)  # long answers that read the log
    large_batches: UnderWay = field(default_factory=lambda: UnderWay(BATCH_BYTES))
    questions: UnderWay = field(default_factory=lambda: UnderWay(QUESTIONS))
    replies: UnderWay = field(default_factory=lambda: UnderWay(REPLY_BYTES))
    copies: UnderWay = field(default_factory=lambda: UnderWay(COPY_BYTES))
    heartbeats: UnderWay = field(default_factory=lambda: UnderWay(HEARTBEAT_ITEMS))


@dataclass(slots=True)
class Measured:
    """Figures that timers sample, and counts of why requests left the native path."""

    rates: Rates
    sampler: StatSampler
    history: History
    is_observed: bool = False  # an HTTP port shows metrics, so their figures are measured
    lag_times: LagTimes = field(default_factory=LagTimes)
    disk_watch: DiskWatch = field(default_factory=DiskWatch)
    detours: Detours = field(default_factory=Detours)


@dataclass(slots=True)
class Broker:
    config: Configuration
    clock: Clock
    log: Log
    process: Process
    store: MessageStore
    driver: StoreDriver
    tables: Tables
    clients: Clients
    admission: Admission
    deferred: Deferred
    stats: BrokerStats
    measured: Measured
    registration: Registration
    pending: Pending
    replication: Replication = field(default_factory=Replication)
    lane: LearningLane | None = None  # None: handlers serve every request
    settings: BrokerSettings = field(init=False)  # of `config`, for the message path
    role: AdoptedRole = field(init=False)

    def __post_init__(self) -> None:
        self._connect_limits()
        self.apply(self.config.loaded)
        if not self.settings.group_record:
            self.store.writer.may_replicate = self._may_replicate
        self.role = AdoptedRole(self.settings, self.store, self.registration.use_role)

    def _may_replicate(self, end: int) -> bool:
        behind_bytes_max = self.settings.ha_slave_fallbehind_max
        return self.replication.slaves.may_replicate(end, behind_bytes_max)

    @property
    def timer_rules(self) -> TimerRules:
        """The settings that decide whether and how long a message with a delivery time waits."""
        settings = self.settings
        return TimerRules(
            self.deferred.delays.levels, settings.timer_wheel_enable, settings.timer_max_delay_sec
        )

    @property
    def journaled(self) -> tuple[Replicated, ...]:
        """The journaled tables, which a master of a broker group copies to its followers."""
        tables = self.tables
        positions = self.deferred.delays.positions
        return (tables.topics, tables.groups, tables.offsets, tables.filters, positions)

    def group(self, name: str, room: Room | None = None) -> SubscriptionGroupConfig | None:
        """Return a subscription group; create it if it is unknown and the settings allow it.

        Raise LimitReached if there is no room for a new group.
        """
        groups = self.tables.groups
        known = groups.get(name)
        if known is not None:
            return known
        return groups.find(
            name,
            auto_create=self.settings.auto_create_subscription_group,
            admit=(lambda _count: None) if room is None else partial(add_entry, room, GROUPS),
        )

    def _connect_limits(self) -> None:
        """Connect the limits with the tables: what is used now, and which entries were removed."""
        limits, tables, clients = self.admission.limits, self.tables, self.clients
        topics, offsets, filters = tables.topics, tables.offsets, tables.filters
        locks = clients.locks
        locks.released = partial(limits.release, QUEUE_LOCKS)
        filters.arriving.released = partial(_release_filter, limits)
        limits.used |= {
            TOPICS.name: lambda: len(topics.table),
            QUEUES.name: lambda: topics.queue_count,
            GROUPS.name: lambda: len(tables.groups.table),
            OFFSETS.name: lambda: offsets.index.count,
            UNKNOWN_OFFSETS.name: lambda: len(offsets.unknown or ()),
            QUEUE_LOCKS.name: lambda: locks.count,
            REGISTRATIONS.name: lambda: clients.registered.count,
            SUBSCRIPTION_BYTES.name: lambda: clients.registered.size,
            FILTERS.name: lambda: filters.count,
            BATCH_BYTES.name: lambda: self.pending.large_batches.size,
            QUESTIONS.name: lambda: self.pending.questions.size,
            REPLY_BYTES.name: lambda: self.pending.replies.size,
            COPY_BYTES.name: lambda: self.pending.copies.size,
            HEARTBEAT_ITEMS.name: lambda: self.pending.heartbeats.size,
            FILTER_CHARS.name: lambda: filters.chars,
            HELD_PULLS.name: lambda: self.pending.hold.count,
            RECALLED.name: lambda: self.deferred.delays.positions.recalled.count,
            JOURNAL_BYTES.name: lambda: tables.journal.size_bytes if tables.journal else 0,
            STATISTICS.name: lambda: len(self.stats.topics) + len(self.stats.groups),
        }

    def apply(self, loaded: Loaded[BrokerSettings]) -> None:
        """Adopt new settings, and recompute the values that the message path derives from them."""
        self.settings = loaded.value
        self.config.adopt(loaded)
        self.stats.counts_delivered = loaded.value.enable_schedule_message_stats
        self.tables.offsets.count_max = self.admission.limits.maximum(OFFSETS)


def _release_filter(limits: Limits, peer: str, chars: int) -> None:
    limits.release(FILTERS, peer)
    limits.release(FILTER_CHARS, peer, chars)
