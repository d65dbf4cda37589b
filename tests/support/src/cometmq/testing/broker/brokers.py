# SPDX-License-Identifier: Apache-2.0
"""A broker in memory, with real tables and a settable clock but without a disk or name servers."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from cometmq.broker.broker import (
    Admission,
    Broker,
    Clients,
    Configuration,
    Deferred,
    Measured,
    Pending,
    Process,
    Tables,
)
from cometmq.broker.clients.consumers import ConsumerGroup, Consumers, notify_member
from cometmq.broker.clients.registered import Registered
from cometmq.broker.delays.level import DelayFile
from cometmq.broker.delays.parking import Destinations, Parking
from cometmq.broker.filters.subscriptions import FilterSubscriptions
from cometmq.broker.limits import LIMITS
from cometmq.broker.registration.identity import Identity
from cometmq.broker.registration.namesrv_addresses import NamesrvAddresses
from cometmq.broker.registration.registrant import Registrant
from cometmq.broker.registration.registration import Registration
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.statistics.counters import BrokerStats
from cometmq.broker.statistics.latencies import PutTimes
from cometmq.broker.statistics.rates import History, Rates, Totals
from cometmq.broker.statistics.sampler import StatSampler
from cometmq.broker.storing.large_puts import LargePuts
from cometmq.broker.storing.read_turns import Deadlines
from cometmq.broker.tables.offsets import Offsets, UnknownOffsets
from cometmq.broker.tables.persistence import Saved
from cometmq.broker.tables.subscription_groups import Groups
from cometmq.broker.tables.topics import Topics
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.command import Call, Response
from cometmq.remoting.errors import ConnectFailed
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.incremental import finish as finish_steps
from cometmq.runtime.limits import Limits
from cometmq.runtime.settings import load
from cometmq.runtime.tasks import Alarm
from cometmq.store.reads import Lookup, finish
from cometmq.store.results import PutResult, PutStatus, StoreStats
from cometmq.store.settings import StoreSettings
from cometmq.testing.runtime.clock import FakeClock

T = TypeVar("T")

SETTINGS = {"brokerName": "broker-a", "brokerClusterName": "PeersCluster"}


def notify_members(group: ConsumerGroup) -> None:
    """Notify all members of a changed group at once."""
    for peer in group.peers():
        notify_member(peer, group.name)


class NoNamesrv:
    """A remoting client that reaches no name server."""

    async def invoke(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int,
    ) -> Response:
        raise ConnectFailed(address)

    def disconnect(self, address: str, reason: str = "") -> None:
        pass


class MemoryStore:
    """Stands for the store in administrative requests: queues as set by a test, without
    messages.
    """

    def __init__(self) -> None:
        self.reader = self.writer = self.write_state = self.commit_log = self.counters = self
        self.queues: dict[tuple[str, int], tuple[int, int, int]] = {}
        self.deleted: list[str] = []
        self.mark = PutStatus.PUT_OK
        """The outcome of deletions of topics."""
        self.settings: StoreSettings | None = None

    def set_queue(
        self, topic: str, queue_id: int, *, max_offset: int, stored_ms: int, min_offset: int = 0
    ) -> None:
        """Simulate a queue whose messages were all stored at the same time."""
        self.queues[topic, queue_id] = (min_offset, max_offset, stored_ms)

    def queue_count(self, topic: str) -> int:
        return max((q + 1 for name, q in self.queues if name == topic), default=0)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.queues.get((topic, queue_id), (0, 0, -1))[0]

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.queues.get((topic, queue_id), (0, 0, -1))[1]

    def store_time(self, topic: str, queue_id: int, offset: int) -> Lookup[int]:
        low, high, stored_ms = self.queues.get((topic, queue_id), (0, 0, -1))
        yield from ()
        return stored_ms if low <= offset < high else -1

    def offset_by_time(self, topic: str, queue_id: int, timestamp: int) -> Lookup[int]:
        """Return the first offset if the messages are from this time or later, otherwise the
        end.
        """
        low, high, stored_ms = self.queues.get((topic, queue_id), (0, 0, -1))
        yield from ()
        return low if timestamp <= stored_ms else high

    confirm_offset = 0
    put_count = 0
    role_writable = True
    needs_replicas = False

    @staticmethod
    def may_replicate(_end: int) -> bool:
        return True

    def read_record(self, physical_offset: int) -> Lookup[None]:
        yield from ()

    stored_record = read_record

    def stats(self) -> StoreStats:
        figures: list[Any] = [0] * len(StoreStats._fields)
        return StoreStats._make(figures)._replace(is_writable=True, refusals=())

    def apply(self, settings: StoreSettings) -> None:
        self.settings = settings

    def delete_topic(self, topic: str) -> PutResult:
        self.deleted.append(topic)
        return PutResult(self.mark)


class MemoryReads:
    """Runs reads immediately, on the caller's thread."""

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines(asyncio.get_running_loop(), lambda: 0)

    def __len__(self) -> int:
        return 0

    def read(self, call: Call[Any], job: Callable[[], T], done: Callable[[T], None]) -> None:
        done(job())

    def look_up(
        self,
        lookup: Lookup[T],
        done: Callable[[T], None],
        failed: Callable[[Exception], None],
        *,
        call: Call[Any] | None = None,
        is_part_of_put: bool = False,
        may_end_early: bool = False,
    ) -> None:
        done(finish(lookup))


class MemoryDriver:
    """Stands for the StoreDriver; no message can be stored."""

    waiting_count = 0

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.sends = self
        self.put_times = PutTimes(lambda: 10)
        self.reads = MemoryReads()

    def head_wait_ms(self) -> int:
        return 0

    def commit(self) -> None:
        """Do nothing."""

    def delete_topic(self, topic: str) -> asyncio.Future[PutResult]:
        stored = asyncio.get_running_loop().create_future()
        stored.set_result(self.store.delete_topic(topic))
        return stored


class MemorySaver:
    """Keeps the content of saved tables, or fails as if the disk were full."""

    def __init__(self) -> None:
        self.saved: dict[str, bytes] = {}
        self.error: OSError | None = None

    async def save(self, table: Saved) -> None:
        if table.file is None:
            return
        if self.error is not None:
            raise self.error
        content = table.encode_for_file()
        data = content if isinstance(content, bytes) else finish_steps(content)
        self.saved[table.file.path.name] = data


class MemoryPositions:
    """The progress of delay levels, as set by a test."""

    def __init__(self) -> None:
        self.progress: dict[int, int] = {}

    def offsets(self) -> dict[int, int]:
        return self.progress

    def as_table(self) -> DelayFile:
        return DelayFile(offset_table=self.progress)


class MemoryDelay:
    """Delay levels in which no message waits."""

    def __init__(self) -> None:
        self.positions = MemoryPositions()

    def waiting(self) -> dict[int, int]:
        return {}

    def stranded(self) -> dict[int, int]:
        return {}


def memory_broker(store: MemoryStore | None = None, /, **settings: str) -> Broker:
    """Build a broker; `settings`, by their external names, override the defaults."""
    loaded = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli={**SETTINGS, **settings})
    clock = FakeClock()
    topics = Topics(clock_ms=clock.now_ms)
    topics.boot(loaded.value)
    stats = BrokerStats()
    identity = Identity(
        cluster_name=loaded.value.broker_cluster_name,
        broker_name=loaded.value.broker_name,
        broker_addr="127.0.0.1:10911",
        broker_id=loaded.value.broker_id,
        ha_server_addr="127.0.0.1:10912",
    )
    absent: Any = None
    delay: Any = MemoryDelay()
    saver: Any = MemorySaver()
    queues: Any = store if store is not None else MemoryStore()
    driver: Any = MemoryDriver(queues)
    filters = FilterSubscriptions(clock_ms=clock.now_ms)
    groups = Groups(clock_ms=clock.now_ms)
    store_host = bytes([127, 0, 0, 1, 0, 0, 42, 159])
    config = Configuration(loaded, DataVersion(timestamp=clock.now_ms()))
    tables = Tables(topics, groups, Offsets(unknown=UnknownOffsets(topics, groups)), filters, saver)
    puts = LargePuts(driver)
    limits = Limits(LIMITS, lambda: config.loaded.value, clock_ms=clock.monotonic_ms, log=NO_LOG)
    return Broker(
        config,
        clock,
        NO_LOG,
        Process("127.0.0.1:10911", "127.0.0.1", store_host, clock.now_ms(), clock.monotonic_ms()),
        queues,
        driver,
        tables,
        Clients(
            Consumers(
                changed=notify_members, emptied=filters.unregister, replaced=filters.register
            ),
            Registered(limits),
        ),
        Admission(limits, tables),
        Deferred(
            delay,
            Parking(topics, puts, host=store_host, monotonic_ms=clock.monotonic_ms, log=NO_LOG),
            Destinations(topics, groups),
            Alarm(clock.now_ms, least_ms=0),
        ),
        stats,
        Measured(
            Rates(stats),
            StatSampler(stats, now_ms=clock.monotonic_ms()),
            History(lambda: Totals(queues.put_count, stats.get_count), now_ms=clock.now_ms()),
        ),
        Registration(
            Registrant(identity, topics, NoNamesrv(), settings=lambda: loaded.value),
            NamesrvAddresses(""),
            settings=lambda: loaded.value,
        ),
        Pending(puts, hold=absent),
    )
