# SPDX-License-Identifier: Apache-2.0
"""Builds a broker around an open store, without running anything."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from cometmq.broker.acl.keeper import AclKeeper
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
from cometmq.broker.clients.consumers import Consumers
from cometmq.broker.clients.habits import Habits
from cometmq.broker.clients.rebalance_notices import Notices
from cometmq.broker.clients.registered import Registered
from cometmq.broker.copies.keys import MemberKeys
from cometmq.broker.delays.delays import BATCH_INTERVAL_MS, Delays
from cometmq.broker.delays.due_runs import DueRuns
from cometmq.broker.delays.finder import Finder
from cometmq.broker.delays.level import delay_file
from cometmq.broker.delays.parking import Destinations, Parking
from cometmq.broker.delays.positions import Positions
from cometmq.broker.delays.wheel import Wheel, WheelFiles
from cometmq.broker.filters.compiling import Compiler
from cometmq.broker.filters.sql import load_parser
from cometmq.broker.filters.subscriptions import BloomSize, FilterSubscriptions, filter_file
from cometmq.broker.handlers.clients import accounts_changed
from cometmq.broker.limits import LIMITS
from cometmq.broker.native import reason_without
from cometmq.broker.registration.addresses import (
    Address,
    Ports,
    advertised,
    advertised_host,
    packed_host,
    shared_address,
)
from cometmq.broker.registration.identity import Identity
from cometmq.broker.registration.namesrv_addresses import NamesrvAddresses
from cometmq.broker.registration.registrant import Registrant
from cometmq.broker.registration.registration import Registration
from cometmq.broker.role import first_state
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.settings.file import SettingsFile
from cometmq.broker.statistics.counters import BrokerStats
from cometmq.broker.statistics.rates import History, Rates, Totals
from cometmq.broker.statistics.sampler import StatSampler
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.storing.large_puts import LargePuts
from cometmq.broker.storing.log_syncs import NativeSyncer
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.tables.journal import Journal
from cometmq.broker.tables.offsets import Offsets, UnknownOffsets, offset_file
from cometmq.broker.tables.persistence import TableSaver
from cometmq.broker.tables.subscription_groups import Groups, group_file
from cometmq.broker.tables.topics import Topics, topic_file
from cometmq.broker.turn import OncePerTurn
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.log import Log
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.remoting.transport.addresses import host_port
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.clock import Clock
from cometmq.runtime.incremental import IncrementalRunner
from cometmq.runtime.limits import Limits
from cometmq.runtime.process.memory import memory_limit_bytes
from cometmq.runtime.settings import Loaded
from cometmq.runtime.tasks import Alarm
from cometmq.runtime.worker import error_of
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.message_store import MessageStore
from cometmq.store.queues.consume_queue import last_entry
from cometmq.store.recovery.start import StartReason


class Inputs(NamedTuple):
    """The resources of a broker; `app.py` opens and closes them."""

    loaded: Loaded[BrokerSettings]
    clock: Clock
    log: Log
    workers: Workers
    store: MessageStore
    client: RemotingClient
    ports: Ports
    config_path: Path | None  # the file to which changed settings are written
    acl: AclKeeper | None
    journal: Journal
    member_keys: MemberKeys = MemberKeys()
    syncer: NativeSyncer | None = None
    waiting_topics: Mapping[str, int] = MappingProxyType({})
    """Topics that have messages but may lack a configuration, with their numbers of queues: see
    `tables/lost_creations.py`.
    """


def load_tables(
    inputs: Inputs, saver: TableSaver, config: Path, *, register: Callable[[], None]
) -> Tables:
    """Load the tables and apply the journal; create topics that have messages but no configuration.

    Later changes of topics call `register` at the end of the loop's turn.
    """

    def topics_changed() -> None:
        saver.request_if_dirty(topics)
        register()

    def groups_changed() -> None:
        saver.request_if_dirty(groups)

    topics = Topics(
        topic_file(str(config / "topics.json")),
        clock_ms=inputs.clock.now_ms,
        changed=OncePerTurn(topics_changed),
        log=inputs.log,
    )
    groups = Groups(
        group_file(str(config / "subscriptionGroup.json")),
        clock_ms=inputs.clock.now_ms,
        changed=OncePerTurn(groups_changed),
        log=inputs.log,
    )
    unknown = UnknownOffsets(topics, groups)
    offsets = Offsets(offset_file(str(config / "consumerOffset.json")), unknown)
    filters = _filters(inputs, config)
    journal, store = inputs.journal, inputs.store
    known_end = journal.known_log_end
    is_complete = journal.attach(topics)
    for table in (groups, offsets, filters):
        journal.attach(table)
    topics.boot(inputs.loaded.value)
    is_member = inputs.loaded.value.group_record
    if known_end is not None and not is_member and "topics.json" not in journal.replay.unreliable:
        # The journal has every change before `known_end`: a topic without a configuration that has
        # only earlier messages was deleted. The creation of a later one may be lost.
        topics.adopt(queue_counts(store, since=known_end))
        topics.adopt_created(inputs.waiting_topics)
    elif not is_complete:  # if it is, a topic without a configuration was deleted
        topics.adopt(queue_counts(store))
    unknown.find(offsets.table)
    has_lost = known_end is not None and store.commit_log.end < known_end
    has_lost = has_lost or store.upkeep.recovered.start.reason is StartReason.QUEUES_LOST
    return Tables(topics, groups, offsets, filters, saver, journal, has_lost)


def _filters(inputs: Inputs, config: Path) -> FilterSubscriptions:
    settings = inputs.loaded.value

    def load(done: Callable[[], None]) -> None:
        inputs.workers.config.submit(load_parser).add_done_callback(lambda _: done())

    return FilterSubscriptions(
        filter_file(config / "consumerFilter.json"),
        clock_ms=inputs.clock.now_ms,
        bloom=BloomSize(
            settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter
        ),
        compiler=Compiler(inputs.clock.now_ms, asyncio.get_running_loop().call_soon, load),
        keep_dead_ms=settings.filter_data_clean_time_span,
        log=inputs.log,
    )


def assemble(inputs: Inputs) -> Broker:
    """Build the broker, loading its tables from the store's config folder.

    The topics call `register` when they change, but the broker that it registers is built from
    them. So `register` looks up `broker` when it is called, after this function has returned.
    """
    loaded, clock, log = inputs.loaded, inputs.clock, inputs.log
    path, first = inputs.config_path, DataVersion(clock.now_ms(), 0)
    file = None if path is None else SettingsFile(path, inputs.workers.config)
    config = Configuration(loaded, first, file)
    incremental = IncrementalRunner()
    saver = TableSaver(inputs.workers.config, log=log, runner=incremental, journal=inputs.journal)
    driver = _driver(inputs)

    def register() -> None:
        broker.registration.notify()

    def current_settings() -> BrokerSettings:
        return config.loaded.value

    tables = load_tables(inputs, saver, _config_folder(inputs), register=register)
    address, shared = advertised(loaded, inputs.ports.main), shared_address(loaded)
    store_host = packed_host(*(shared or address)[:2], setting=(shared or address).setting)
    stats = BrokerStats()
    limits = Limits(LIMITS, current_settings, clock_ms=clock.monotonic_ms, log=log)
    puts = LargePuts(driver, log)
    filters = tables.filters
    consumers = Consumers(
        changed=Notices(), emptied=filters.unregister, replaced=filters.register, log=log
    )
    broker = Broker(
        config,
        clock,
        log,
        Process(
            host_port(address.host, address.port),
            address.host,
            store_host,
            clock.now_ms(),
            clock.monotonic_ms(),
            memory_limit_bytes(),
        ),
        inputs.store,
        driver,
        tables,
        Clients(consumers, Registered(limits), habits=Habits(log)),
        Admission(limits, tables, inputs.acl, inputs.member_keys),
        _deferred(inputs, tables, puts, stats, store_host, settings=current_settings),
        stats,
        _measured(inputs, stats),
        _registration(inputs, tables.topics, address, shared, settings=current_settings),
        Pending(puts, incremental=incremental),
    )
    driver.reads.places.requester_of = broker.admission.requester
    if inputs.acl is not None:
        inputs.acl.changed = partial(accounts_changed, broker, inputs.acl)
    driver.turn.cut.connect(broker.deferred.transactions.recent.clear)
    _begin_journal(inputs.journal, broker)
    return broker


def _config_folder(inputs: Inputs) -> Path:
    return Path(inputs.loaded.value.store_path_root_dir).expanduser() / "config"


def _begin_journal(journal: Journal, broker: Broker) -> None:
    """Start journaling changes, and request saves of tables that differ from their files."""
    saver = broker.tables.saver

    def save_all() -> None:
        for table in broker.journaled:
            saver.request_if_dirty(table)

    journal.attach(broker.deferred.delays.positions)
    journal.turn.noted.connect(OncePerTurn(journal.write))
    journal.turn.filled.connect(save_all)
    journal.begin()
    for table in broker.journaled:
        if table.is_dirty or not table.file.loaded_digest:
            saver.request(table)


def _driver(inputs: Inputs) -> StoreDriver:
    driver = StoreDriver(
        inputs.store,
        workers=inputs.workers,
        clock=inputs.clock,
        log=inputs.log,
        turn=inputs.journal.turn,
        syncer=inputs.syncer,
    )
    driver.reads.deadlines.wait_ms_max = inputs.loaded.value.read_wait_mills
    return driver


def _measured(inputs: Inputs, stats: BrokerStats) -> Measured:
    store, clock = inputs.store, inputs.clock
    totals = History(
        lambda: Totals(store.counters.put_count, stats.get_count), now_ms=clock.now_ms()
    )
    return Measured(Rates(stats), StatSampler(stats, now_ms=clock.monotonic_ms()), totals)


def _deferred(
    inputs: Inputs,
    tables: Tables,
    puts: LargePuts,
    stats: BrokerStats,
    store_host: bytes,
    *,
    settings: Callable[[], BrokerSettings],
) -> Deferred:
    first, clock, log, store = settings(), inputs.clock, inputs.log, inputs.store
    parking = Parking(
        tables.topics, puts, host=store_host, monotonic_ms=clock.monotonic_ms, log=log
    )
    destinations = Destinations(tables.topics, tables.groups)
    alarm = Alarm(clock.now_ms, least_ms=BATCH_INTERVAL_MS)
    runs = None
    if reason_without(first) is None:
        runs = DueRuns(store.reader, host=store_host, settings=settings, log=log)
    repairs, recovered = store.upkeep.scrubber.repairs, store.upkeep.recovered
    levels = DelayLevels.parse(first.message_delay_level)
    wheel_files = WheelFiles(store.layout.root)

    def wheel_taken(end: int) -> None:
        log.info("wheel.taken", messages=end)
        noted = inputs.workers.config.submit(partial(wheel_files.note_taken, end, clock.now_ms()))
        noted.add_done_callback(wheel_noted)

    def wheel_noted(noted: asyncio.Future[None]) -> None:
        if error := error_of(noted):
            log.warning("wheel.unnoted", error=describe(error))

    used = [q + 1 for topic, q in store.reader.queue_ids() if topic == SCHEDULE_TOPIC]
    file = delay_file(str(_config_folder(inputs) / "delayOffset.json"))
    positions = Positions(file, [*levels.numbers, *used])
    wheel = Wheel(store, levels, wheel_files, taken=wheel_taken, host=store_host)
    delays = Delays(
        positions,
        Finder(store, positions.recalled, destinations, levels, wheel, store_host, runs),
        puts=puts,
        saver=tables.saver,
        parking=parking,
        stats=stats,
        wake_at=alarm.ring_at,
        repaired_count=(lambda: repairs.repaired_count) if first.group_record else None,
        log=log,
    )
    if not recovered.was_clean:
        delays.expect_copies(recovered.last_timestamp)
    return Deferred(delays, parking, destinations, alarm)


def _registration(
    inputs: Inputs,
    topics: Topics,
    address: Address,
    shared: Address | None,
    *,
    settings: Callable[[], BrokerSettings],
) -> Registration:
    first = inputs.loaded.value
    identity = Identity(
        cluster_name=first.broker_cluster_name,
        broker_name=first.broker_name,
        broker_addr=host_port(address.host, address.port),
        broker_id=first_state(first).broker_id,
        ha_server_addr=host_port(
            advertised_host(first.broker_ip2 or first.broker_ip1, first.bind_address),
            inputs.ports.ha,
        ),
    )
    namesrvs = NamesrvAddresses(first.namesrv_addr, log=inputs.log)
    registrant = Registrant(
        identity,
        topics,
        inputs.client,
        settings=settings,
        keys=inputs.member_keys.current,
        shared_address="" if shared is None else host_port(shared.host, shared.port),
        log=inputs.log,
    )
    return Registration(registrant, namesrvs, settings=settings, log=inputs.log)


def queue_counts(store: MessageStore, *, since: int = 0) -> dict[str, int]:
    """Return the number of queues of each topic with messages at or after an offset of the log."""
    counts: dict[str, int] = {}
    newest: dict[str, int] = {}
    for topic, queue_id in store.reader.queue_ids():
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        queue = store.reader.queue(topic, queue_id)
        entry = None if queue is None or not since else last_entry(queue)
        place = since - 1 if entry is None else entry.physical_offset
        newest[topic] = max(newest.get(topic, -1), place)
    if since:
        return {topic: count for topic, count in counts.items() if newest[topic] >= since}
    return counts
