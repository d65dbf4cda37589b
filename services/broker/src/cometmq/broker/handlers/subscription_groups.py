# SPDX-License-Identifier: Apache-2.0
"""Administrative requests about subscription groups."""

from collections.abc import Sequence

from cometmq.broker.broker import Broker
from cometmq.broker.handlers.admin import body_of, naming, refuse_on_slave, save_table
from cometmq.broker.handlers.deferred_answers import stepwise
from cometmq.broker.limits import GROUPS, LIST_ITEMS, Room, check_total
from cometmq.broker.names import check_group
from cometmq.broker.tables.topics import QUEUE_NUMS_MAX
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, SubscriptionGroupList
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.commands.topics import DeleteSubscriptiongroup, GetSubscriptiongroupConfig
from cometmq.remoting.errors import ServerError, SubscriptionGroupNotExist
from cometmq.remoting.names import retry_topic


async def update_and_create_subscriptiongroup(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Create or replace a group; a field that the request omits gets its default."""
    refuse_on_slave(broker)
    config = body_of(call, SubscriptionGroupConfig)
    _check(config)
    await _put(broker, broker.admission.room(call), [config])
    return OK


async def update_and_create_subscriptiongroup_list(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Create or replace groups, each as `update_and_create_subscriptiongroup` does; all, or none
    if one is refused.
    """
    refuse_on_slave(broker)
    room = broker.admission.room(call)
    configs = body_of(call, SubscriptionGroupList).group_config_list
    room.check(LIST_ITEMS, len(configs))
    for number, config in enumerate(configs, start=1):
        with naming(config.group_name, number):
            _check(config)
    await _put(broker, room, configs)
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


def _check(config: SubscriptionGroupConfig) -> None:
    check_group(config.group_name)
    if not 0 <= config.retry_queue_nums <= QUEUE_NUMS_MAX:
        raise ServerError(
            f"retryQueueNums={config.retry_queue_nums}: must be between 0 and {QUEUE_NUMS_MAX}"
        )


async def _put(broker: Broker, room: Room, configs: Sequence[SubscriptionGroupConfig]) -> None:
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
