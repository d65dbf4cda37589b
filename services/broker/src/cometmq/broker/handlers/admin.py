# SPDX-License-Identifier: Apache-2.0
"""Administrative requests that are not about a single topic or group."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers.deferred_answers import look_up, stepwise
from cometmq.broker.handlers.runtime_info import runtime_table
from cometmq.broker.registration.namesrv_addresses import parse_addresses
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.statistics.sampler import find_statistic
from cometmq.broker.storing.disk_figures import DiskFigures, read_disk
from cometmq.broker.tables.persistence import Saved
from cometmq.remoting import remarks
from cometmq.remoting.bodies.connections import (
    Connection,
    ConsumerConnections,
    ProducerConnections,
    ProducerInfo,
    ProducerTable,
)
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.large import encode_with_lists, encode_with_table
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.settings import BrokerSetting, BrokerSettingsList
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.admin import (
    GetBrokerConfigReply,
    GetConsumerConnectionList,
    GetProducerConnectionList,
    ViewBrokerStatsData,
)
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.errors import (
    CodedError,
    ConsumerNotOnline,
    RemoteProtocolError,
    ServerError,
    SettingsError,
)
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.transport.bodies import decoded_body
from cometmq.remoting.types import language_of
from cometmq.runtime import properties
from cometmq.runtime.incremental import Steps
from cometmq.runtime.settings import Loaded
from cometmq.store.reads import Lookup

T = TypeVar("T")

STEP_CLIENTS: Final = 512  # about 1 ms
NAME_CHARS_SHOWN: Final = 255  # names longer than this are illegal

_REGISTERED: Final = frozenset(("brokerPermission", "autoCreateTopicEnable"))
"""Settings that change what the broker registers with the name servers."""


def body_of(call: Call[Any], type_: type[T]) -> T:
    """Return the typed body of a request; raise CommandError if it is malformed.

    A malformed body is the sender's error, so the broker only answers it and logs nothing.
    """
    try:
        return decoded_body(type_, call)
    except RemoteProtocolError as error:
        raise ServerError(f"the body is not a valid {type_.__name__}: {error}") from error


@contextmanager
def naming(item: str, number: int) -> Iterator[None]:
    """Add the name and number of an item of a list to the remark of its refusal."""
    try:
        yield
    except CodedError as error:
        named = f"item {number} of the list, {item[:NAME_CHARS_SHOWN]!r}"
        raise type(error)(f"{named}: {error.remark}") from error


def refuse_on_slave(broker: Broker) -> None:
    """Raise CommandError if this broker is a slave, which copies its tables from the master."""
    if not broker.role.is_master:
        raise ServerError(remarks.SLAVE_MODIFY_REFUSED)


async def save_table(broker: Broker, table: Saved) -> None:
    """Wait until the current content of a table is on disk; raise CommandError if saving fails."""
    try:
        await broker.tables.saver.save(table)
    except OSError as error:
        name = table.file.path.name
        raise ServerError(f"changed, but {name} cannot be saved yet: {error.strerror}") from error


async def update_broker_config(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Change mutable settings; apply all changes in the request, or none.

    Compatibility: RocketMQ accepts a new value for any of its keys, even for one that it reads only
    at startup, such as a path. Here such a key is refused with the reason. Both ignore unknown
    keys.
    """
    try:
        changes = properties.parse(str(call.body, "utf-8"))
    except ValueError as error:
        raise ServerError(remarks.PROPERTIES_UNREADABLE) from error
    await change_settings(broker, changes, peer=call.peer.address)
    return OK


async def change_settings(
    broker: Broker, changes: Mapping[str, str], *, peer: str, must_save: bool = True
) -> Collection[str]:
    """Change and save mutable settings, all or none; return the names of the changed ones.

    Without `must_save`, a failure to save is ignored: in a Kubernetes pod, the
    operator owns the file, and it is read-only.
    """
    changed = _updated(broker, changes).changed_since(broker.config.loaded)
    if not changed:
        return ()

    kept = {name: value for name, value in changes.items() if name in changed}
    if broker.config.file is not None:
        try:
            await broker.config.file.save(kept)
        except OSError as error:
            path = broker.config.file.path
            if must_save:
                raise ServerError(f"cannot save {path}: {error.strerror}") from error
            broker.log.warning("settings.unsaved", path=str(path), error=error.strerror)
    _apply(broker, _updated(broker, kept))
    broker.log.info("settings.changed", peer=peer, **kept)
    reasons = broker.config.loaded.ineffective()
    if ineffective := {name: reasons[name] for name in kept.keys() & reasons.keys()}:
        broker.log.warning("settings.ineffective", settings=ineffective)
    if not changed.isdisjoint(_REGISTERED):
        broker.tables.topics.touch()
        await broker.registration.announce()
    if "namesrvAddr" in changed:
        broker.registration.use_addresses(broker.settings.namesrv_addr)
    return tuple(kept)


def get_broker_config(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Return all settings, including keys in the file that only RocketMQ uses."""
    version = encode_json(broker.config.version).decode()
    return Reply(
        header=GetBrokerConfigReply(version=version),
        body=broker.config.loaded.as_properties().encode(),
    )


def get_broker_settings(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Return all settings with their defaults and sources, secrets masked."""
    rows = [BrokerSetting(*it) for it in broker.config.loaded.rows()]
    return Reply(body=encode_json(BrokerSettingsList(rows)))


def get_broker_runtime_info(broker: Broker, call: Call[NoHeader]) -> None:
    """Read the disk figures, then answer with all figures that tools and dashboards show."""

    def read(oldest: MessageRecord | None) -> None:
        broker.driver.reads.read(call, partial(read_disk, broker.settings, oldest), answer)

    def answer(disk: DiskFigures) -> None:
        call.answer(Reply(body=encode_json(KVTable(table=runtime_table(broker, disk)))))

    lookup = broker.store.reader.stored_record(broker.store.stats().min_offset)
    look_up(broker, call, lookup, read)


async def get_all_consumer_offset(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Return all committed offsets, for slaves."""
    return Reply(body=await stepwise(broker, call, broker.tables.offsets.encode()))


def get_all_delay_offset(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Return the progress of each delay level, for slaves."""
    return Reply(body=encode_json(broker.deferred.delays.positions.as_table()))


async def get_consumer_connection_list(
    broker: Broker, call: Call[GetConsumerConnectionList]
) -> Reply:
    """Return the members and subscriptions of a connected group."""
    name = call.header.consumer_group
    group = broker.clients.consumers.group(name)
    if group is None:
        raise ConsumerNotOnline(remarks.group_not_online(name))
    connections = ConsumerConnections(
        consume_from_where=group.consume_from_where,
        consume_type=group.consume_type,
        message_model=group.message_model,
        subscription_table=group.subscriptions,
    )
    work = _listing(connections, list(group.clients.values()))
    return Reply(body=await stepwise(broker, call, work))


async def get_producer_connection_list(
    broker: Broker, call: Call[GetProducerConnectionList]
) -> Reply:
    name = call.header.producer_group
    clients = broker.clients.producers.clients(name)
    if not clients:
        raise ServerError(remarks.producer_group_not_exist(name))
    work = _listing(ProducerConnections(), clients)
    return Reply(body=await stepwise(broker, call, work))


def _listing(
    around: ConsumerConnections | ProducerConnections, clients: Sequence[Client]
) -> Steps[bytes]:
    """Encode an answer with the connections of these clients."""
    connections: list[Connection] = []
    for start in range(0, len(clients), STEP_CLIENTS):
        connections += map(connection_of, clients[start : start + STEP_CLIENTS])
        yield
    return (yield from encode_with_lists(around, {"connectionSet": connections}))


async def get_all_producer_info(broker: Broker, call: Call[NoHeader]) -> Reply:
    return Reply(body=await stepwise(broker, call, _producers(broker)))


def _producers(broker: Broker) -> Steps[bytes]:
    origin_ms = broker.clock.now_ms() - broker.clock.monotonic_ms()
    table: dict[str, list[ProducerInfo]] = {}
    count = 0
    for group, _ in broker.clients.producers.groups():
        rows = table[group] = []
        for client in broker.clients.producers.clients(group):
            rows.append(_producer(client, origin_ms))
            count += 1
            if not count % STEP_CLIENTS:
                yield
    return (yield from encode_with_table(ProducerTable(), table, weigh=len))


def view_broker_stats_data(broker: Broker, call: Call[ViewBrokerStatsData]) -> Reply:
    name, key = call.header.stats_name, call.header.stats_key
    cluster = broker.settings.broker_cluster_name
    data = find_statistic(broker.stats, name, key, cluster=cluster)
    if data is None:
        raise ServerError(remarks.stats_not_exist(name, key))
    return Reply(body=encode_json(data))


def stored_ms(broker: Broker, queue: MessageQueue, offset: int) -> Lookup[int]:
    """Return the store time of a message in milliseconds; 0 if there is no message."""
    if offset < 0:
        return 0
    found = yield from broker.store.reader.store_time(queue.topic, queue.queue_id, offset)
    return max(0, found)


def _updated(broker: Broker, changes: Mapping[str, str]) -> Loaded[BrokerSettings]:
    try:
        loaded = broker.config.loaded.updated(changes)
        parse_addresses(loaded.value.namesrv_addr)
    except SettingsError as error:
        raise ServerError(str(error)) from error
    return loaded


def _apply(broker: Broker, loaded: Loaded[BrokerSettings]) -> None:
    broker.driver.commit()  # messages sent before the change keep the old settings
    broker.apply(loaded)
    broker.store.apply(loaded.value)
    broker.config.version = broker.config.version.next_version(broker.clock.now_ms())


def _producer(client: Client, origin_ms: int) -> ProducerInfo:
    return ProducerInfo(
        client_id=client.client_id,
        language=language_of(client.language).name,
        last_update_timestamp=origin_ms + client.seen_ms,
        remote_ip=f"/{client.peer.address}",  # with the slash of Java's addresses
        version=client.version,
    )


def connection_of(client: Client) -> Connection:
    return Connection(
        client_addr=client.peer.address,
        client_id=client.client_id,
        language=language_of(client.language).name,
        version=client.version,
    )
