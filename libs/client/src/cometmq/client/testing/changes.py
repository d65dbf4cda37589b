# SPDX-License-Identifier: Apache-2.0
"""Admin requests that change the topics and groups of the in-memory broker."""

from collections.abc import Mapping
from typing import Any, Final

from cometmq.client.testing.broker import MemoryBroker
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands import topics
from cometmq.remoting.errors import ServerError
from cometmq.remoting.transport.dispatch import Handler


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
    """Return all topics."""
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
    """Create or change a consumer group."""
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
    """Return the groups that were created or have had a member."""
    table = {group: broker.group_config(group) for group in broker.groups} | broker.group_configs
    return Reply(body=encode_json(SubscriptionGroupTable(subscription_group_table=table)))


CHANGE_HANDLERS: Final[Mapping[int, Handler[Any]]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: update_and_create_topic,
    RequestCode.DELETE_TOPIC_IN_BROKER: delete_topic_in_broker,
    RequestCode.GET_ALL_TOPIC_CONFIG: get_all_topic_config,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update_and_create_subscriptiongroup,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete_subscriptiongroup,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_all_subscriptiongroup_config,
}
