# SPDX-License-Identifier: Apache-2.0
"""Broker: the references that handlers may use.

The event loop owns everything here, so there are no locks. `app.py` builds the broker, handlers
receive it as their first argument, and the domain objects inside never see it.
"""

from dataclasses import dataclass, field
from typing import Protocol

from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.clients.consumers import Consumers
from cometmq.broker.clients.producers import Producers
from cometmq.broker.clients.queue_locks import QueueLocks
from cometmq.broker.delay import DelayService
from cometmq.broker.filters.subscriptions import FilterSubscriptions
from cometmq.broker.hold import HoldTable
from cometmq.broker.messages import cluster_pair
from cometmq.broker.registration import Registration
from cometmq.broker.replication.state import Replication
from cometmq.broker.role import MASTER_ID, Order, Role, RoleState, obey
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.settings_file import SettingsFile
from cometmq.broker.statistics.counters import BrokerStats
from cometmq.broker.statistics.daily_totals import History
from cometmq.broker.statistics.sampler import StatSampler
from cometmq.broker.store_driver import StoreDriver
from cometmq.broker.tables.groups import Groups
from cometmq.broker.tables.journal import Journal
from cometmq.broker.tables.offsets import Offsets
from cometmq.broker.tables.persistence import TableSaver
from cometmq.broker.tables.topics import Topics
from cometmq.broker.transactions import Transactions
from cometmq.remoting.bodies.topic_config import DataVersion, SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.command import ConstantExt
from cometmq.remoting.log import Log
from cometmq.remoting.message.flags import Perm
from cometmq.runtime.clock import Clock
from cometmq.runtime.incremental import IncrementalRunner
from cometmq.runtime.settings import Loaded
from cometmq.store.message_store import MessageStore
from cometmq.store.settings import BrokerRole


class SendTaker(Protocol):
    """A lane for sends; it takes the sends to topics that it has learned."""

    request_count: int  # taken since the start

    def learn(self, config: TopicConfig) -> None:
        """Take sends to this topic from now on; a handler has just admitted one."""


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
    delay: DelayService
    producers: Producers
    consumers: Consumers
    filters: FilterSubscriptions
    locks: QueueLocks
    hold: HoldTable
    registration: Registration
    stats: BrokerStats
    sampler: StatSampler
    history: History
    address: str  # "ip:port" for clients and name servers
    host: str  # the ip alone, as remarks name the broker
    store_host: bytes  # ip and port, packed as in every record
    role: RoleState = field(init=False)
    is_master: bool = field(init=False)  # cached from `role` for the message path
    cluster_pair: str = ""  # the property that every message gets
    checks_sends: bool = False  # whether a setting makes every send pass all checks; set by `apply`
    send_ext: ConstantExt = field(default_factory=lambda: ConstantExt({}))  # set by `apply`
    settings_file: SettingsFile | None = None  # None: changes by code 25 end with the process
    acl: AclKeeper | None = None  # None: no access control
    journal: Journal | None = None  # None: the tables are in memory only
    memory_bytes: int = 8 << 30  # for the process; bounds the window of hot messages
    replication: Replication = field(default_factory=Replication)
    transactions: Transactions = field(default_factory=Transactions)
    incremental: IncrementalRunner = field(default_factory=IncrementalRunner)  # for long answers
    started_ms: int = 0
    is_stopping: bool = False
    lane: SendTaker | None = None  # None: every send is served by its handler
    send_path: str = "python"  # for people: which way plain sends take, and why

    def __post_init__(self) -> None:
        self.apply(self.loaded)
        settings = self.settings
        is_slave = settings.broker_role is BrokerRole.SLAVE
        role = Role.SLAVE if is_slave else Role.MASTER
        self.store.may_replicate = self._may_replicate
        self._take(RoleState(role, broker_id=settings.broker_id if is_slave else MASTER_ID))

    def obey(self, order: Order, *, epoch: int, broker_id: int) -> None:
        """Change the role; if the order does not fit, raise OrderRefused and change nothing."""
        self._take(obey(self.role, order, epoch=epoch, broker_id=broker_id))
        self.registration.use_broker_id(broker_id)

    def _take(self, state: RoleState) -> None:
        self.role = state
        self.is_master = state.role is Role.MASTER
        self.store.role_writable = self.is_master
        is_sync = self.settings.broker_role is BrokerRole.SYNC_MASTER
        self.store.needs_replicas = self.is_master and is_sync

    def _may_replicate(self, end: int) -> bool:
        behind_bytes_max = self.settings.ha_slave_fallbehind_max
        return self.replication.slaves.may_replicate(end, behind_bytes_max)

    @property
    def is_slave(self) -> bool:
        return self.role.role is Role.SLAVE

    def group(self, name: str) -> SubscriptionGroupConfig | None:
        """Return a subscription group; create it if it is unknown and the settings allow it."""
        return self.groups.find(name, auto_create=self.settings.auto_create_subscription_group)

    def apply(self, loaded: Loaded[BrokerSettings]) -> None:
        """Adopt new settings, and derive from them what the message path needs."""
        settings = loaded.value
        self.loaded = loaded
        self.settings = settings
        self.cluster_pair = cluster_pair(settings.broker_cluster_name)
        self.checks_sends = not settings.broker_permission & Perm.WRITE or bool(
            settings.start_accept_send_request_time_stamp
        )
        trace = "true" if settings.trace_on else "false"
        self.send_ext = ConstantExt({"MSG_REGION": settings.region_id, "TRACE_ON": trace})
