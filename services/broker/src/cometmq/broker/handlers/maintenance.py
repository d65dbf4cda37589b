# SPDX-License-Identifier: Apache-2.0
"""Clean-up requests, and small queries from tools.

Background jobs of the store delete the files later. As in RocketMQ, an answer only confirms that
the request was accepted.
"""

from cometmq.broker.broker import Broker
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.queues import TopicList
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.admin import RegisterFilterServer, RegisterFilterServerReply
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.names import SYSTEM_TOPICS, is_system_topic


def clean_expired_consume_queue(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Drop queue entries and files that point to messages no longer in the log.

    Compatibility: RocketMQ deletes a queue that has no messages left, so its offsets restart at 0
    even though consumers have committed higher ones. Here the queue keeps its last file and its
    offsets.
    """
    broker.store.upkeep.cleaner.ask_trim()
    return OK


async def clean_unused_topic(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Delete the queues of topics that are not configured on this broker.

    A slave gets deletions with its master's log; until then, it may lack the configuration of a
    topic whose messages it has.
    """
    if not broker.is_master:
        return OK
    for topic in sorted(broker.store.reader.topics()):
        if topic in broker.topics.table or is_system_topic(topic):
            continue
        broker.log.info("topic.cleaned", topic=topic, peer=call.peer.address)
        await broker.driver.delete_topic(topic)
        if broker.settings.auto_delete_unused_stats:
            broker.stats.forget_topic(topic)
    return OK


def delete_expired_commitlog(broker: Broker, _call: Call[NoHeader]) -> Reply:
    """Delete expired files now, regardless of the configured hour."""
    broker.store.upkeep.cleaner.ask()
    return OK


def get_system_topic_list(broker: Broker, _call: Call[NoHeader]) -> Reply:
    topics = SYSTEM_TOPICS | broker.topics.reserved
    return Reply(body=encode_json(TopicList(topic_list=sorted(topics))))


def register_filter_server(
    broker: Broker, _call: Call[RegisterFilterServer]
) -> RegisterFilterServerReply:
    """Answer with the broker's name and id; RocketMQ 4.9 no longer has filter servers."""
    return RegisterFilterServerReply(
        broker_name=broker.settings.broker_name, broker_id=broker.role.broker_id
    )
