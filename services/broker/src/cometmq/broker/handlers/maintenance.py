# SPDX-License-Identifier: Apache-2.0
"""Orders to clean up, and small questions that tools ask beside them.

Deleting is the business of the store's jobs: the answers say that it is ordered, as RocketMQ's do.
"""

import asyncio

from cometmq.broker.broker import Broker
from cometmq.broker.names import SYSTEM_TOPICS, is_system_topic
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.queues import TopicList
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.admin import RegisterFilterServer, RegisterFilterServerReply
from cometmq.remoting.commands.table import NoHeader


def clean_expired_consume_queue(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Have each queue forget the messages that the log no longer has, and its files with them.

    Compatibility: RocketMQ removes a queue without messages altogether, so that it begins at 0
    again although consumers have committed more; here it keeps its last file and its offsets.
    """
    broker.store.clean_queues()
    return OK


async def clean_unused_topic(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Delete the queues of topics that the broker does not know."""
    for topic in sorted(broker.store.topics()):
        if topic in broker.topics.table or is_system_topic(topic):
            continue
        broker.log.info("topic.cleaned", topic=topic, peer=call.peer.address)
        broker.store.delete_topic(topic)
        if broker.settings.auto_delete_unused_stats:
            broker.stats.forget_topic(topic)
        await asyncio.sleep(0)
    return OK


def delete_expired_commitlog(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Delete what has expired now, at whatever hour."""
    broker.store.clean_expired()
    return OK


def get_system_topic_list(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Return the topics that belong to the system of this broker."""
    topics = SYSTEM_TOPICS | broker.topics.reserved
    return Reply(body=encode_json(TopicList(topic_list=sorted(topics))))


def register_filter_server(
    broker: Broker, _call: Call[RegisterFilterServer]
) -> RegisterFilterServerReply:
    """Answer with the broker's name and id: RocketMQ 4.9 has no filter servers any more."""
    return RegisterFilterServerReply(
        broker_name=broker.settings.broker_name, broker_id=broker.role.broker_id
    )
