# SPDX-License-Identifier: Apache-2.0
"""Puts the parts of a broker together around an open store; nothing runs yet."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.addresses import Ports, advertised_host, host_port, packed_host
from cometmq.broker.broker import Broker
from cometmq.broker.clients.consumers import Consumers
from cometmq.broker.clients.producers import Producers
from cometmq.broker.clients.queue_locks import QueueLocks
from cometmq.broker.clients.rebalance_notices import Notices
from cometmq.broker.delay import DelayService, delay_file
from cometmq.broker.filters.compiling import Compiler
from cometmq.broker.filters.subscriptions import BloomSize, FilterSubscriptions, filter_file
from cometmq.broker.hold import HoldTable
from cometmq.broker.namesrv_addresses import NamesrvAddresses
from cometmq.broker.registration import Identity, Registration
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.settings_file import SettingsFile
from cometmq.broker.statistics.counters import BrokerStats
from cometmq.broker.statistics.daily_totals import History, Totals
from cometmq.broker.statistics.sampler import StatSampler
from cometmq.broker.store_driver import StoreDriver, Workers
from cometmq.broker.tables.groups import Groups, group_file
from cometmq.broker.tables.offsets import Offsets, offset_file
from cometmq.broker.tables.persistence import Saved, TableSaver
from cometmq.broker.tables.topics import Topics, topic_file
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.log import Log
from cometmq.remoting.transport.client import RemotingClient
from cometmq.runtime.clock import Clock
from cometmq.runtime.incremental import Turns
from cometmq.runtime.memory import memory_limit_bytes
from cometmq.runtime.settings import Loaded
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.message_store import MessageStore


class Parts(NamedTuple):
    """What the outside gives to a broker."""

    loaded: Loaded[BrokerSettings]
    clock: Clock
    log: Log
    workers: Workers
    store: MessageStore
    client: RemotingClient
    ports: Ports
    config_path: Path | None  # the file that changed settings go to
    acl: AclKeeper | None


class SaveSoon:
    """Saves a table once at the end of the loop's turn, however often it changes in it."""

    def __init__(self, saver: TableSaver) -> None:
        """Save nothing before `watch` names the table."""
        self.then: Callable[[], None] = lambda: None
        self._saver = saver
        self._is_scheduled = False
        self._save: Callable[[], None] | None = None

    def watch(self, table: Saved) -> None:
        """Name the table."""
        self._save = lambda: self._saver.request_if_dirty(table)

    def __call__(self) -> None:
        """Note a change."""
        if not self._is_scheduled and self._save is not None:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        assert self._save is not None
        self._save()
        self.then()


class Tables(NamedTuple):
    """The tables with files of their own."""

    topics: Topics
    groups: Groups
    offsets: Offsets
    filters: FilterSubscriptions
    topics_changed: SaveSoon


def load_tables(parts: Parts, saver: TableSaver, config: Path) -> Tables:
    """Read the tables; topics that have messages but no configuration get one."""
    settings = parts.loaded.value
    topics_changed, groups_changed = SaveSoon(saver), SaveSoon(saver)
    topics = Topics(
        topic_file(str(config / "topics.json")),
        clock_ms=parts.clock.now_ms,
        changed=topics_changed,
        log=parts.log,
    )
    groups = Groups(
        group_file(str(config / "subscriptionGroup.json")),
        clock_ms=parts.clock.now_ms,
        changed=groups_changed,
        log=parts.log,
    )
    topics_changed.watch(topics)
    groups_changed.watch(groups)
    topics.boot(settings)
    topics.adopt(queue_counts(parts.store))
    saver.request_if_dirty(topics)
    offsets = Offsets(offset_file(str(config / "consumerOffset.json")))
    return Tables(topics, groups, offsets, _filters(parts, config), topics_changed)


def _filters(parts: Parts, config: Path) -> FilterSubscriptions:
    settings = parts.loaded.value
    return FilterSubscriptions(
        filter_file(config / "consumerFilter.json"),
        clock_ms=parts.clock.now_ms,
        bloom=BloomSize(
            settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter
        ),
        compiler=Compiler(parts.clock.now_ms, asyncio.get_running_loop().call_soon),
        keep_dead_ms=settings.filter_data_clean_time_span,
        log=parts.log,
    )


def assemble(parts: Parts) -> Broker:
    """Build the broker; its tables are read from the store's config folder."""
    loaded, clock, log = parts.loaded, parts.clock, parts.log
    settings = loaded.value
    config = Path(settings.store_path_root_dir).expanduser() / "config"
    turns = Turns()
    saver = TableSaver(parts.workers.config, log=log, turns=turns)
    driver = StoreDriver(parts.store, workers=parts.workers, clock=clock, log=log)
    tables = load_tables(parts, saver, config)
    host = advertised_host(settings.broker_ip1, settings.bind_address)
    store_host = packed_host(host, parts.ports.main, setting=loaded.label("brokerIP1"))
    stats = BrokerStats()
    broker = Broker(
        loaded=loaded,
        settings=settings,
        settings_version=DataVersion(clock.now_ms(), 0),
        clock=clock,
        log=log,
        store=parts.store,
        driver=driver,
        saver=saver,
        topics=tables.topics,
        groups=tables.groups,
        offsets=tables.offsets,
        delay=_delay(parts, config, driver, saver, store_host),
        producers=Producers(),
        consumers=Consumers(changed=Notices(), emptied=tables.filters.unregister, log=log),
        filters=tables.filters,
        locks=QueueLocks(),
        hold=HoldTable(),
        registration=Registration(
            _identity(settings, host, parts.ports),
            tables.topics,
            parts.client,
            NamesrvAddresses(settings.namesrv_addr, log=log),
            settings=lambda: broker.settings,
            log=log,
        ),
        stats=stats,
        sampler=StatSampler(stats, now_ms=clock.monotonic_ms()),
        history=History(
            lambda: Totals(parts.store.put_count, stats.get_count), now_ms=clock.now_ms()
        ),
        address=host_port(host, parts.ports.main),
        host=host,
        store_host=store_host,
        settings_file=_settings_file(parts),
        acl=parts.acl,
        memory_bytes=memory_limit_bytes(),
        started_ms=clock.now_ms(),
        turns=turns,
    )
    tables.topics_changed.then = broker.registration.notify
    broker.delay.delivered = partial(_count_delivered, broker)
    return broker


def _count_delivered(broker: Broker, topic: str, queue_id: int, size: int) -> None:
    if broker.settings.enable_schedule_message_stats:
        broker.stats.count_delivered(topic, queue_id, size)


def _delay(
    parts: Parts, config: Path, driver: StoreDriver, saver: TableSaver, store_host: bytes
) -> DelayService:
    delay = DelayService(
        parts.store,
        DelayLevels.parse(parts.loaded.value.message_delay_level),
        delay_file(str(config / "delayOffset.json")),
        driver=driver,
        saver=saver,
        host=store_host,
        log=parts.log,
    )
    recovered = parts.store.recovered
    if not recovered.was_clean:
        delay.expect_copies(recovered.last_timestamp)
    return delay


def _identity(settings: BrokerSettings, host: str, ports: Ports) -> Identity:
    return Identity(
        cluster_name=settings.broker_cluster_name,
        broker_name=settings.broker_name,
        broker_addr=host_port(host, ports.main),
        broker_id=settings.broker_id,
        ha_server_addr=host_port(advertised_host(settings.broker_ip2, host), ports.ha),
    )


def _settings_file(parts: Parts) -> SettingsFile | None:
    if parts.config_path is None:
        return None
    return SettingsFile(parts.config_path, parts.workers.config)


def queue_counts(store: MessageStore) -> dict[str, int]:
    """Return topic -> number of queues that have messages."""
    counts: dict[str, int] = {}
    for topic, queue_id in store.queue_ids():
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return counts
