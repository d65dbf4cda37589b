# SPDX-License-Identifier: Apache-2.0
"""Requests about clients: heartbeats, unregistration, group members, filter checks."""

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from cometmq.broker.acl.keeper import AclKeeper
from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.clients.registered import Place, registration_size, subscriptions_size
from cometmq.broker.clients.subscription_conflicts import subscription_pairs
from cometmq.broker.filters.sql import EXPRESSION_TYPE, SqlError, compile_sql
from cometmq.broker.filters.tags import is_tag_type
from cometmq.broker.handlers.admin import body_of
from cometmq.broker.handlers.deferred_answers import answer, stepwise
from cometmq.broker.limits import (
    CLIENT_ID_CHARS,
    GROUP_SUBSCRIPTIONS,
    HEARTBEAT_FILTER_CHARS,
    HEARTBEAT_GROUPS,
    Room,
    add_topic,
)
from cometmq.broker.names import can_retry, check_group
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import (
    ClientConfigCheck,
    ConsumerData,
    Heartbeat,
    ProducerData,
)
from cometmq.remoting.bodies.queues import ConsumerIdList
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.command import OK, Call, Peer, Reply
from cometmq.remoting.commands.clients import (
    DisconnectClient,
    DisconnectClientReply,
    GetConsumerListByGroup,
    UnregisterClient,
)
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.errors import ServerError, SubscriptionParseFailed
from cometmq.remoting.message.flags import TopicSysFlag
from cometmq.remoting.transport.dispatch import InOrder
from cometmq.runtime.acl.accounts import Accounts
from cometmq.runtime.incremental import Steps, finish
from cometmq.runtime.limits import LimitReached

STEP_WEIGHT: Final = 100
"""Groups and subscriptions that a heartbeat registers in one step: 2 to 4 ms if all are new."""
STEP_SUBSCRIPTIONS: Final = 1_000
"""Number of subscriptions of one group that one step measures and compares in 2 to 4 ms; a
subscription with many tags counts as several.
"""
TAGS_CHARS: Final = 50
STEP_LEAVING: Final = 300
"""Groups that a closed connection leaves in one step: 2 to 3 ms."""
STEP_EXPIRED: Final = 20
"""Silent connections that are closed in one step: 1 to 2 ms."""
GroupData: TypeAlias = ConsumerData | ProducerData


def heart_beat(broker: Broker, call: Call[NoHeader]) -> Reply | InOrder:
    """Register the client's groups; create unknown consumer groups if the settings allow it.

    Many groups are registered in steps; the connection's next requests wait. If the heartbeat as a
    whole is refused, no group is registered. If only a limit leaves no room for some groups, all
    others are registered before the request is refused, so that the client keeps them.

    Compatibility: a client leaves the groups that its heartbeat no longer names; in RocketMQ, it
    stays for 120 s or longer, and nobody reads its queues. Heartbeats of 5.x without subscriptions
    end nothing.
    """
    beat = body_of(call, Heartbeat)
    room = broker.admission.room(call)
    groups = [consumer.group_name for consumer in beat.consumer_data_set]
    groups += [producer.group_name for producer in beat.producer_data_set]
    room.check(HEARTBEAT_GROUPS, len(groups))
    room.check(CLIENT_ID_CHARS, len(beat.client_id))
    for group in groups:
        check_group(group)
    chars = sum(_sql_chars(consumer) for consumer in beat.consumer_data_set)
    room.check(HEARTBEAT_FILTER_CHARS, chars)

    client = Client(
        call.peer, beat.client_id, int(call.language), call.version, broker.clock.monotonic_ms()
    )
    rights_checks = broker.clients.registered.rights_checks
    work = _registering(broker, beat, client, room, rights_checks)
    weight = len(groups) + sum(map(_topic_count, beat.consumer_data_set))
    if weight <= STEP_WEIGHT:
        return finish(work)
    return InOrder(_registering_later(broker, call, work, weight))


async def _registering_later(
    broker: Broker, call: Call[NoHeader], work: Steps[Reply], weight: int
) -> Reply:
    """Run the registration of a large heartbeat when its turn comes.

    Raise LimitReached if the waiting heartbeats, with this one's `weight`, have too many groups and
    subscriptions.
    """
    with broker.pending.heartbeats.counting(weight, broker.admission.room(call)):
        return await stepwise(broker, call, work)


def _registering(
    broker: Broker, beat: Heartbeat, client: Client, room: Room, rights_checks: int
) -> Steps[Reply]:
    """Register the groups of a heartbeat until the connection ends.

    If the accounts change meanwhile, close the connection, so that the client connects again:
    `Registered.check_rights` does not see groups that are registered after it began.
    """
    if not beat.without_sub:
        yield from _leaving_groups(
            broker,
            client.peer,
            broker.clients.producers.left_by(
                client, {it.group_name for it in beat.producer_data_set}
            ),
            broker.clients.consumers.left_by(
                client, {it.group_name for it in beat.consumer_data_set}
            ),
        )
    refusal: LimitReached | None = None
    weight = 0
    groups: list[GroupData] = [*beat.consumer_data_set, *beat.producer_data_set]
    for data in groups:
        weight += 1 + _topic_count(data)
        if weight > STEP_WEIGHT:
            yield
            weight = 1 + _topic_count(data)
        register = yield from _prepared(broker, data, client, room)
        if broker.clients.registered.rights_checks != rights_checks:
            connection_closed(broker, client.peer)
            client.peer.close()
            break
        if not client.peer.is_open:  # nothing would remove what is registered now
            break
        try:
            register()
        except LimitReached as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    return OK


def _prepared(
    broker: Broker, data: GroupData, client: Client, room: Room
) -> Steps[Callable[[], None]]:
    """Prepare the registration of a group in steps; return the function that completes it."""
    if not isinstance(data, ConsumerData):
        return partial(_register_producer, broker, data.group_name, client, room)
    asked = data.subscription_data_set
    size, pairs = registration_size(client.client_id, data.group_name), list[tuple[str, str]]()
    start = weight = 0
    for end, subscription in enumerate(asked, 1):
        weight += 1 + len(subscription.sub_string) // TAGS_CHARS
        if weight < STEP_SUBSCRIPTIONS and end < len(asked):
            continue
        if start:
            yield
        part = asked[start:end]
        size += subscriptions_size(part)
        pairs += subscription_pairs(part)
        start, weight = end, 0
    if len(asked) > STEP_SUBSCRIPTIONS:
        yield
    return partial(_register_consumer, broker, data, client, room, size, pairs)


def _topic_count(data: GroupData) -> int:
    return len(data.subscription_data_set) if isinstance(data, ConsumerData) else 0


def unregister_client(broker: Broker, call: Call[UnregisterClient]) -> Reply:
    header = call.header
    if header.producer_group is not None:
        broker.clients.producers.unregister(header.producer_group, call.peer)
        broker.clients.registered.leave(call.peer, header.producer_group, consumes=False)
    if header.consumer_group is not None:
        config = broker.tables.groups.get(header.consumer_group)
        broker.clients.consumers.unregister(
            header.consumer_group, call.peer, notify=_may_notify(broker, config)
        )
        broker.clients.registered.leave(call.peer, header.consumer_group, consumes=True)
        broker.clients.told.forget(call.peer, header.consumer_group)
    return OK


def disconnect_client(broker: Broker, call: Call[DisconnectClient]) -> DisconnectClientReply:
    """Close the connections of a client, for operators."""
    client_id = call.header.client_id
    peers = broker.clients.producers.peers_of(client_id) | broker.clients.consumers.peers_of(
        client_id
    )
    broker.log.info(
        "client.disconnected", client_id=client_id, count=len(peers), by=call.peer.address
    )
    for peer in peers:
        peer.close()
    return DisconnectClientReply(len(peers))


def get_consumer_list_by_group(broker: Broker, call: Call[GetConsumerListByGroup]) -> Reply:
    """Return the client ids of a group; its members use this list to divide the queues.

    As in RocketMQ, a client with two live connections is listed twice, and nobody reads the queues
    of its second entry. With `groupAddress`, each client is listed once, because a client often has
    two connections after a failover.
    """
    group = broker.clients.consumers.group(call.header.consumer_group)
    if group is None:
        raise ServerError(remarks.consumers_offline(call.header.consumer_group))
    ids = group.client_ids()
    if broker.settings.group_address:
        ids = list(dict.fromkeys(ids))
    return Reply(body=encode_json(ConsumerIdList(consumer_id_list=ids)))


def check_client_config(broker: Broker, call: Call[NoHeader]) -> Reply | None:
    """Check whether the broker supports a consumer's filter, before the consumer starts."""
    subscription = body_of(call, ClientConfigCheck).subscription_data
    if subscription is None or is_tag_type(subscription.expression_type):
        return OK
    kind = subscription.expression_type
    if kind != EXPRESSION_TYPE or not broker.settings.enable_property_filter:
        raise ServerError(remarks.filter_refused(kind))
    expression = subscription.sub_string
    broker.tables.filters.arriving.compiler.when_ready(
        expression,
        lambda: answer(broker, call, lambda: _check_expression(expression)),
        partial(broker.admission.requester, call),
    )
    return None


def _check_expression(expression: str) -> Reply:
    try:
        compile_sql(expression)
    except SqlError as error:
        raise SubscriptionParseFailed(str(error)) from error
    return OK


def connection_closed(broker: Broker, peer: Peer) -> None:
    """Unregister the client of a closed connection, and notify the other members of its groups.

    The first STEP_LEAVING groups are left now, further ones in later steps.
    """
    broker.pending.later.start(_leaving(broker, peer))


def _leaving(broker: Broker, peer: Peer) -> Steps[None]:
    clients = broker.clients
    clients.told.drop(peer)
    yield from _leaving_groups(
        broker, peer, clients.producers.groups_of(peer), clients.consumers.groups_of(peer)
    )
    clients.registered.drop(peer)


def _leaving_groups(
    broker: Broker, peer: Peer, producing: list[str], consuming: list[str]
) -> Steps[None]:
    clients, notify = broker.clients, broker.settings.notify_consumer_ids_changed_enable
    for count, group in enumerate(producing + consuming):
        if count and not count % STEP_LEAVING:
            yield
        consumes = count >= len(producing)
        if consumes:
            clients.consumers.unregister(group, peer, notify=notify)
            clients.told.forget(peer, group)
        else:
            clients.producers.unregister(group, peer)
        clients.registered.leave(peer, group, consumes=consumes)


def accounts_changed(broker: Broker, acl: AclKeeper, before: Accounts) -> None:
    """Close the connections with a registered group to which their account no longer has the right.

    Otherwise the broker would ask them about transactions, and push replies to them, until they
    expired.
    """

    def may_stay(peer: Peer, account: str | None, place: Place) -> bool:
        group, consumes = place
        return acl.control.may_stay(before, account, peer.host, group, consumes=consumes)

    def revoke(peer: Peer) -> None:
        broker.log.info("client.revoked", peer=peer.address)
        connection_closed(broker, peer)
        peer.close()

    broker.pending.later.start(broker.clients.registered.check_rights(may_stay, revoke))


def expire_clients(broker: Broker) -> None:
    """Close clients that missed their heartbeats and drop expired locks; called every 10 s.

    A client of which other groups are not silent only leaves the silent ones. As a member, it would
    keep queues that nobody reads.
    """
    now_ms = broker.clock.monotonic_ms()
    broker.pending.later.start(_expiring(broker, now_ms))
    broker.pending.later.start(broker.clients.locks.expiring(now_ms=now_ms))


def _expiring(broker: Broker, now_ms: int) -> Steps[None]:
    producers, consumers = broker.clients.producers, broker.clients.consumers
    producing = yield from producers.silent(now_ms)
    consuming = yield from consumers.silent(now_ms)
    for count, peer in enumerate(producing.keys() | consuming.keys()):
        if count and not count % STEP_EXPIRED:
            yield
        silent = producing.get(peer, []), consuming.get(peer, [])
        group_count = len(producers.groups_of(peer)) + len(consumers.groups_of(peer))
        if sum(map(len, silent)) < group_count:
            yield from _leaving_groups(broker, peer, *silent)
            continue
        broker.log.warning("client.expired", peer=peer.address)
        connection_closed(broker, peer)
        peer.close()


def _sql_chars(consumer: ConsumerData) -> int:
    return sum(
        len(wanted.sub_string)
        for wanted in consumer.subscription_data_set
        if not is_tag_type(wanted.expression_type)
    )


def _register_consumer(  # with what has been prepared
    broker: Broker,
    data: ConsumerData,
    client: Client,
    room: Room,
    size: int,
    pairs: list[tuple[str, str]],
) -> None:
    """Register one group; raise LimitReached if there is no room for it, or its filters."""
    subject = f"the group {data.group_name}"
    room.check(GROUP_SUBSCRIPTIONS, len(data.subscription_data_set), subject)
    broker.clients.registered.admit(client.peer, data.group_name, size, room, consumes=True)
    try:
        config = _group_with_retry_topic(broker, data, room)
    except LimitReached:
        if not broker.clients.consumers.has_member(data.group_name, client.peer):
            broker.clients.registered.leave(client.peer, data.group_name, consumes=True)
        raise
    broker.clients.consumers.register(data, client, notify=_may_notify(broker, config), pairs=pairs)
    broker.clients.told.forget(client.peer, data.group_name)
    group = broker.clients.consumers.group(data.group_name)
    assert group is not None
    broker.tables.filters.register(data.group_name, group.subscriptions.values(), room)


def _group_with_retry_topic(
    broker: Broker, data: ConsumerData, room: Room
) -> SubscriptionGroupConfig | None:
    config = broker.group(data.group_name, room)
    if config is not None and can_retry(data.group_name):
        unit_flag = int(TopicSysFlag.UNIT_SUB) if data.unit_mode else 0
        broker.tables.topics.create_retry(
            data.group_name,
            queue_nums=config.retry_queue_nums,
            sys_flag=unit_flag,
            admit=partial(add_topic, room),
        )
    return config


def _register_producer(broker: Broker, group: str, client: Client, room: Room) -> None:
    size = registration_size(client.client_id, group)
    broker.clients.registered.admit(client.peer, group, size, room, consumes=False)
    broker.clients.producers.register(group, client)


def _may_notify(broker: Broker, config: SubscriptionGroupConfig | None) -> bool:
    """Return whether the broker and the group allow notices of membership changes."""
    if not broker.settings.notify_consumer_ids_changed_enable:
        return False
    return config is None or config.notify_consumer_ids_changed_enable
