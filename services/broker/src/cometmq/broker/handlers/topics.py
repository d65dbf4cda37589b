# SPDX-License-Identifier: Apache-2.0
"""Administrative requests about topics and subscription groups."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.admin import body_of, naming, refuse_on_slave, save_table, stored_ms
from cometmq.broker.handlers.deferred_answers import ROW_BYTES, look_up, paused, stepwise
from cometmq.broker.limits import GROUPS, LIST_ITEMS, QUEUES, TOPICS, Room, check_total
from cometmq.broker.names import check_group, check_topic
from cometmq.broker.tables.topics import QUEUE_NUMS_MAX, Topics, queues_of
from cometmq.broker.topic_attributes import changed, parse_changes
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.large import encode_with_table
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import TopicOffset, TopicStats
from cometmq.remoting.bodies.topic_config import (
    CreateTopicList,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.commands.topics import (
    DeleteSubscriptiongroup,
    DeleteTopicInBroker,
    GetSubscriptiongroupConfig,
    GetTopicConfig,
    GetTopicStatsInfo,
    UpdateAndCreateTopic,
)
from cometmq.remoting.errors import ServerError, SubscriptionGroupNotExist, TopicNotExist
from cometmq.remoting.names import retry_topic
from cometmq.store.reads import Lookup, Pause
from cometmq.store.results import PutStatus

FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
PERM_MAX = 7
STEP_QUEUES: Final = 128  # queues without messages, which need no read: 0.5 ms


async def update_and_create_topic(broker: Broker, call: Call[UpdateAndCreateTopic]) -> Reply:
    """Create or replace a topic, and change its attributes; answer once it is saved and registered
    with all reachable name servers.

    Compatibility: RocketMQ accepts any number of queues. Here the number is bounded, because each
    queue takes memory, has to be scanned, and adds an entry to every route. The success remark is
    RocketMQ's.
    """
    header = call.header
    refuse_on_slave(broker)
    asked = TopicConfig(
        topic_name=header.topic,
        read_queue_nums=header.read_queue_nums,
        write_queue_nums=header.write_queue_nums,
        perm=header.perm,
        topic_filter_type=header.topic_filter_type,
        topic_sys_flag=header.topic_sys_flag or 0,
        attributes=parse_changes(header.attributes or ""),
    )
    config = _checked(broker, asked, broker.tables.topics.get(header.topic))
    await _put(broker, broker.admission.room(call), {header.topic: config})
    return Reply(remark=remarks.NOT_SET)


async def update_and_create_topic_list(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Create or replace topics, each as `update_and_create_topic` does; all, or none if one is
    refused.

    Compatibility: RocketMQ 5.5.0 answers success, and changes nothing, if one of the topics would
    remain as it is.
    """
    refuse_on_slave(broker)
    room = broker.admission.room(call)
    asked = body_of(call, CreateTopicList).topic_config_list
    room.check(LIST_ITEMS, len(asked))
    configs: dict[str, TopicConfig] = {}
    for number, config in enumerate(asked, start=1):
        name = config.topic_name
        with naming(name, number):
            old = configs.get(name) or broker.tables.topics.get(name)
            configs[name] = _checked(broker, config, old)
    await _put(broker, room, configs)
    return Reply(remark=remarks.NOT_SET)


async def delete_topic_in_broker(broker: Broker, call: Call[DeleteTopicInBroker]) -> Reply:
    """Delete a topic and its queues; answer once all in-sync copies have the deletion.

    Compatibility: committed offsets are kept, and a name that clients may not choose is accepted
    for a topic that exists, unlike in RocketMQ. Name servers keep the topic until they receive
    their own request (216).
    """
    topic = call.header.topic
    refuse_on_slave(broker)
    if topic not in broker.tables.topics.table:  # retry topics have the names of their groups
        check_topic(topic)
    _check_unreserved(broker, topic)
    broker.tables.topics.remove(topic)
    stored = broker.driver.delete_topic(topic)
    if broker.settings.auto_delete_unused_stats:
        broker.stats.forget_topic(topic)
    await save_table(broker, broker.tables.topics)
    check_deleted(broker, (await stored).status)
    return OK


def check_deleted(broker: Broker, mark: PutStatus) -> None:
    """Raise an error unless all in-sync copies have a deletion, by its record's status."""
    is_alone = broker.role.is_master and not broker.store.writer.needs_replicas
    if not is_alone and mark not in {PutStatus.PUT_OK, PutStatus.SLAVE_NOT_AVAILABLE}:
        raise ServerError(f"the deletion has not reached all copies ({mark.name}): repeat it")


async def get_all_topic_config(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Return the topic table, for slaves."""
    return Reply(body=await stepwise(broker, call, broker.tables.topics.encode()))


def get_topic_config(broker: Broker, call: Call[GetTopicConfig]) -> Reply:
    """Return one topic; only 5.x tools request it."""
    config = broker.tables.topics.get(call.header.topic)
    if config is None:
        raise TopicNotExist(f"No topic in this broker. topic: {call.header.topic}")
    return Reply(body=encode_json(config))


def get_topic_stats_info(broker: Broker, call: Call[GetTopicStatsInfo]) -> None:
    """Answer with each queue's offsets and the store time of its last message."""
    topic, store = call.header.topic, broker.store
    config = broker.tables.topics.get(topic)
    if config is None:
        raise TopicNotExist(remarks.topic_not_exist(topic))
    count = max(config.read_queue_nums, config.write_queue_nums)

    def stats() -> Lookup[Reply]:
        table = {}
        for queue_id in range(count):
            queue = MessageQueue(topic, broker.settings.broker_name, queue_id)
            end = store.reader.max_offset(topic, queue_id)
            last_ms = yield from stored_ms(broker, queue, end - 1)
            start = store.reader.min_offset(topic, queue_id)
            table[queue] = TopicOffset(
                last_update_timestamp=last_ms, max_offset=end, min_offset=start
            )
            if not len(table) % STEP_QUEUES:
                yield Pause(ROW_BYTES * len(table))
        encoding = encode_with_table(TopicStats(), table)
        return Reply(body=(yield from paused(encoding, ROW_BYTES * len(table))))

    look_up(broker, call, stats(), lambda reply: reply)


def _checked(broker: Broker, asked: TopicConfig, old: TopicConfig | None) -> TopicConfig:
    """Return the topic as it shall be; the keys of the attributes of `asked` are signed."""
    check_topic(asked.topic_name)
    _check_unreserved(broker, asked.topic_name)
    _check_values(asked)
    attributes = changed(None if old is None else old.attributes or {}, asked.attributes or {})
    return replace(asked, attributes=attributes or UNSET)


async def _put(broker: Broker, room: Room, configs: Mapping[str, TopicConfig]) -> None:
    """Store the topics, and wait until they are saved and registered."""
    topics = broker.tables.topics
    _check_room(room, topics, configs)
    for config in configs.values():
        topics.put(config)
    await save_table(broker, topics)
    await broker.registration.announce()


def _check_room(room: Room, topics: Topics, configs: Mapping[str, TopicConfig]) -> None:
    """Raise LimitReached if the table has no room for new topics, or for their new queues."""
    old = [topics.table[name] for name in configs if name in topics.table]
    if len(old) < len(configs):
        check_total(room, TOPICS, len(topics.table), len(configs) - len(old))
    more = sum(map(queues_of, configs.values())) - sum(map(queues_of, old))
    if more > 0:
        check_total(room, QUEUES, topics.queue_count, more)


def _check_unreserved(broker: Broker, topic: str) -> None:
    if broker.tables.topics.is_reserved(topic):
        raise ServerError(remarks.system_topic_conflict(topic))


def _check_values(config: TopicConfig) -> None:
    for name, value in (
        ("readQueueNums", config.read_queue_nums),
        ("writeQueueNums", config.write_queue_nums),
    ):
        if not 0 <= value <= QUEUE_NUMS_MAX:
            raise ServerError(f"{name}={value}: must be between 0 and {QUEUE_NUMS_MAX}")
    if not 0 <= config.perm <= PERM_MAX:
        raise ServerError(f"perm={config.perm}: must be between 0 and {PERM_MAX}")
    if config.topic_filter_type not in FILTER_TYPES:
        raise ServerError(f"topicFilterType={config.topic_filter_type}: must be {FILTER_TYPES}")


async def update_and_create_subscriptiongroup(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Create or replace a group; a field that the request omits gets its default."""
    refuse_on_slave(broker)
    config = body_of(call, SubscriptionGroupConfig)
    _check_group_config(config)
    await _put_groups(broker, broker.admission.room(call), [config])
    return OK


async def update_and_create_subscriptiongroup_list(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Create or replace groups; all, or none if one is refused."""
    refuse_on_slave(broker)
    room = broker.admission.room(call)
    configs = body_of(call, SubscriptionGroupList).group_config_list
    room.check(LIST_ITEMS, len(configs))
    for number, config in enumerate(configs, start=1):
        with naming(config.group_name, number):
            _check_group_config(config)
    await _put_groups(broker, room, configs)
    return OK


async def delete_subscriptiongroup(broker: Broker, call: Call[DeleteSubscriptiongroup]) -> Reply:
    """Delete a group, and also its offsets if requested.

    Compatibility: connected consumers remain connected. If groups are created automatically, their
    next heartbeat creates the group again.
    """
    refuse_on_slave(broker)
    group = call.header.group_name
    broker.tables.groups.remove(group)
    if broker.settings.auto_delete_unused_stats:
        broker.stats.forget_group(group)
    if call.header.removes_offsets:
        broker.tables.offsets.drop_group(group)
        await save_table(broker, broker.tables.offsets)
    await save_table(broker, broker.tables.groups)
    return OK


async def get_all_subscriptiongroup_config(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Return the group table, for slaves."""
    return Reply(body=await stepwise(broker, call, broker.tables.groups.encode()))


def get_subscriptiongroup_config(broker: Broker, call: Call[GetSubscriptiongroupConfig]) -> Reply:
    """Return one group; only 5.x tools request it."""
    config = broker.tables.groups.get(call.header.group)
    if config is None:
        raise SubscriptionGroupNotExist(f"No group in this broker. group: {call.header.group}")
    return Reply(body=encode_json(config))


def _check_group_config(config: SubscriptionGroupConfig) -> None:
    check_group(config.group_name)
    if not 0 <= config.retry_queue_nums <= QUEUE_NUMS_MAX:
        raise ServerError(
            f"retryQueueNums={config.retry_queue_nums}: must be between 0 and {QUEUE_NUMS_MAX}"
        )


async def _put_groups(
    broker: Broker, room: Room, configs: Sequence[SubscriptionGroupConfig]
) -> None:
    """Store the groups, let their retry topics grow, and wait until the groups are saved."""
    groups, topics = broker.tables.groups, broker.tables.topics
    new = {config.group_name for config in configs} - groups.table.keys()
    if new:
        check_total(room, GROUPS, len(groups.table), len(new))
    for config in configs:
        groups.put(config)
        if retry_topic(config.group_name) in topics.table:
            topics.create_retry(config.group_name, queue_nums=config.retry_queue_nums)
    await save_table(broker, groups)
