# SPDX-License-Identifier: Apache-2.0
"""Admin requests about groups and offsets, as served by the in-memory broker."""

from bisect import bisect_left

from cometmq.client.testing.broker import MemoryBroker
from cometmq.remoting.bodies.connections import Connection, ConsumerConnections, ProducerConnections
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable, QueueOffsetTable
from cometmq.remoting.bodies.queues import GroupList, MessageQueue
from cometmq.remoting.bodies.stats import ConsumeStats, OffsetPair, TopicOffset, TopicStats
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands import admin, callbacks, topics
from cometmq.remoting.errors import ConsumerNotOnline, ServerError, TopicNotExist
from cometmq.remoting.message.record import decode_record


def update_and_create_topic(broker: MemoryBroker, call: Call[topics.UpdateAndCreateTopic]) -> Reply:
    """Create a topic, or change its number of queues and its permissions."""
    header = call.header
    if header.read_queue_nums != header.write_queue_nums:
        raise ServerError("a topic of MemoryCluster has as many read queues as write queues")
    broker.queues.configure(header.topic, header.write_queue_nums, perm=header.perm)
    return OK


def delete_topic_in_broker(broker: MemoryBroker, call: Call[topics.DeleteTopicInBroker]) -> Reply:
    """Delete a topic with its messages; the offsets of its groups are kept, as on a real broker."""
    broker.queues.delete(call.header.topic)
    return OK


def get_all_topic_config(broker: MemoryBroker, _call: Call[None]) -> Reply:
    table = {
        topic: TopicConfig(
            topic_name=topic,
            read_queue_nums=count,
            write_queue_nums=count,
            perm=broker.queues.perm(topic),
        )
        for topic, count in broker.queues.queue_counts.items()
    }
    return Reply(body=encode_json(TopicConfigTable(topic_config_table=table)))


def update_and_create_subscriptiongroup(broker: MemoryBroker, call: Call[None]) -> Reply:
    config = decode_json(SubscriptionGroupConfig, call.body)
    broker.group_configs[config.group_name] = config
    return OK


def delete_subscriptiongroup(
    broker: MemoryBroker, call: Call[topics.DeleteSubscriptiongroup]
) -> Reply:
    """Delete a consumer group, with its offsets if requested; its members remain connected."""
    header = call.header
    broker.group_configs.pop(header.group_name, None)
    if not broker.groups.get(header.group_name):
        broker.groups.pop(header.group_name, None)
    if header.removes_offsets:
        broker.offsets = {
            place: at for place, at in broker.offsets.items() if place[0] != header.group_name
        }
    return OK


def get_all_subscriptiongroup_config(broker: MemoryBroker, _call: Call[None]) -> Reply:
    table = {group: broker.group_config(group) for group in broker.groups} | broker.group_configs
    return Reply(body=encode_json(SubscriptionGroupTable(subscription_group_table=table)))


def get_consumer_connection_list(
    broker: MemoryBroker, call: Call[admin.GetConsumerConnectionList]
) -> Reply:
    """Return the members of a consumer group, the model and topics of the last heartbeat, and the
    newest subscription to each topic."""
    group = call.header.consumer_group
    members = broker.groups.get(group)
    if not members:
        raise ConsumerNotOnline(f"the consumer group[{group}] not online")
    found = ConsumerConnections(
        [Connection(peer.address, client_id) for client_id, peer in members]
    )
    newest: dict[str, SubscriptionData] = {}
    for _, data in members.values():
        for wanted in data.subscription_data_set:
            known = newest.get(wanted.topic)
            if known is None or wanted.sub_version > known.sub_version:
                newest[wanted.topic] = wanted
    *_, (_, last) = members.values()
    found.consume_from_where = last.consume_from_where
    found.consume_type = last.consume_type
    found.message_model = last.message_model
    topics = {wanted.topic for wanted in last.subscription_data_set}
    found.subscription_table = {topic: newest[topic] for topic in topics}
    return Reply(body=encode_json(found))


def get_producer_connection_list(
    broker: MemoryBroker, call: Call[admin.GetProducerConnectionList]
) -> Reply:
    group = call.header.producer_group
    if group not in broker.producers:
        raise ServerError(f"the producer group[{group}] not exist")
    members = [Connection(client_id=client_id) for client_id in sorted(broker.producers[group])]
    return Reply(body=encode_json(ProducerConnections(members)))


def get_topic_stats_info(broker: MemoryBroker, call: Call[topics.GetTopicStatsInfo]) -> Reply:
    """Return the first and the end offset of each queue."""
    topic = call.header.topic
    table = {
        queue: TopicOffset(
            max_offset=broker.queues.max_offset(topic, queue.queue_id),
            min_offset=broker.queues.min_offset(topic, queue.queue_id),
        )
        for queue in _queues(broker, topic)
    }
    return Reply(body=encode_json(TopicStats(table)))


def get_consume_stats(broker: MemoryBroker, call: Call[admin.GetConsumeStats]) -> Reply:
    """Return the progress of a group in the topics where it has an offset."""
    header = call.header
    known = {topic for group, topic, _ in broker.offsets if group == header.consumer_group}
    wanted = known if header.topic is None else known & {header.topic}
    table = {
        queue: OffsetPair(
            broker.queues.max_offset(topic, queue.queue_id),
            broker.offsets.get((header.consumer_group, topic, queue.queue_id), 0),
        )
        for topic in sorted(wanted)
        for queue in _queues(broker, topic)
    }
    return Reply(body=encode_json(ConsumeStats(offset_table=table)))


def get_all_consumer_offset(broker: MemoryBroker, _call: Call[None]) -> Reply:
    table: dict[str, dict[int, int]] = {}
    for (group, topic, queue_id), offset in broker.offsets.items():
        table.setdefault(f"{topic}@{group}", {})[queue_id] = offset
    return Reply(body=encode_json(ConsumerOffsetTable(table)))


def query_topic_consume_by_who(
    broker: MemoryBroker, call: Call[admin.QueryTopicConsumeByWho]
) -> Reply:
    """Return the groups that consume a topic, or have an offset in it."""
    topic = call.header.topic
    groups = {group for group, name, _ in broker.offsets if name == topic}
    for group, members in broker.groups.items():
        for _, data in members.values():
            if any(wanted.topic == topic for wanted in data.subscription_data_set):
                groups.add(group)
    return Reply(body=encode_json(GroupList(sorted(groups))))


def invoke_broker_to_reset_offset(
    broker: MemoryBroker, call: Call[admin.InvokeBrokerToResetOffset]
) -> Reply:
    """Make the members of a group continue from a timestamp."""
    header = call.header
    members = broker.groups.get(header.group)
    if not members:
        raise ConsumerNotOnline(f"Consumer not online, so can not reset offset, {header.group}")
    table: dict[MessageQueue, int] = {}
    for queue in _queues(broker, header.topic):
        committed = broker.offsets.get((header.group, header.topic, queue.queue_id), 0)
        wanted = offset_at(broker, queue, header.timestamp)
        table[queue] = wanted if header.is_force or wanted < committed else committed
    body = encode_json(QueueOffsetTable(table))
    passed_on = callbacks.ResetConsumerClientOffset(
        header.topic, header.group, header.timestamp, header.is_force
    )
    for peer, _ in members.values():
        peer.send(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, passed_on, body)
    return Reply(body=body)


def _queues(broker: MemoryBroker, topic: str) -> list[MessageQueue]:
    count = broker.queues.queue_counts.get(topic)
    if count is None:
        raise TopicNotExist(f"topic[{topic}] not exist")
    return [MessageQueue(topic, broker.name, number) for number in range(count)]


def offset_at(broker: MemoryBroker, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the offset of the message stored nearest to a time, the older on a tie; -1: end."""
    place = (queue.topic, queue.queue_id)
    begin, end = broker.queues.min_offset(*place), broker.queues.max_offset(*place)
    if timestamp_ms < 0:
        return end
    times_ms = [
        decode_record(record).store_timestamp
        for record in broker.queues.read(*place, begin, end - begin)
    ]
    if not times_ms:
        return 0
    after = bisect_left(times_ms, timestamp_ms)
    if after == len(times_ms):
        return end - 1
    is_first = after == 0
    if is_first or timestamp_ms - times_ms[after - 1] > times_ms[after] - timestamp_ms:
        return begin + after
    return begin + after - 1
