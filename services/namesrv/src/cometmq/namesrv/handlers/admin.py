# SPDX-License-Identifier: Apache-2.0
"""Lists of topics, write permission, topic removal and settings: 205, 206, 216, 224, 304,
311-313, 318, 319, 327.
"""  # the summary lists the codes

from cometmq.namesrv.admission import stepwise
from cometmq.namesrv.namesrv import Namesrv
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.large import encode_with_lists
from cometmq.remoting.bodies.queues import TopicList
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.namesrv import (
    AddWritePermOfBroker,
    AddWritePermOfBrokerReply,
    DeleteTopicInNamesrv,
    GetTopicsByCluster,
    WipeWritePermOfBroker,
    WipeWritePermOfBrokerReply,
)
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.errors import ServerError, SettingsError
from cometmq.remoting.message.flags import TopicSysFlag
from cometmq.runtime import properties
from cometmq.runtime.incremental import Steps

CONFIG_BYTES_MAX = 64 * 1024
"""Maximum length of a request that changes settings; parsing it takes twenty times as much memory.
"""


async def wipe_write_perm_of_broker(
    namesrv: Namesrv, call: Call[WipeWritePermOfBroker]
) -> WipeWritePermOfBrokerReply:
    """Hide a broker group's queues from producers until the master next registers a change.

    This is not saved to a file.
    """
    name = call.header.broker_name
    count = await stepwise(namesrv, call, namesrv.routes.topics.wiping_write_perm(name))
    namesrv.log.info("write_perm.wiped", broker_name=name, topic_count=count)
    return WipeWritePermOfBrokerReply(count)


async def add_write_perm_of_broker(
    namesrv: Namesrv, call: Call[AddWritePermOfBroker]
) -> AddWritePermOfBrokerReply:
    """Make all queues of a broker group readable and writable."""
    name = call.header.broker_name
    count = await stepwise(namesrv, call, namesrv.routes.topics.adding_write_perm(name))
    namesrv.log.info("write_perm.added", broker_name=name, topic_count=count)
    return AddWritePermOfBrokerReply(count)


async def get_all_topic_list_from_nameserver(namesrv: Namesrv, call: Call[NoHeader]) -> Reply:
    return await _topics(namesrv, call, namesrv.routes.topics.selecting())


def delete_topic_in_namesrv(namesrv: Namesrv, call: Call[DeleteTopicInNamesrv]) -> Reply:
    """Delete a topic from the routes; a broker that still has it adds it when it next registers."""
    header = call.header
    namesrv.routes.delete_topic(header.topic, header.cluster_name or None)
    namesrv.log.info("topic.deleted", topic=header.topic, cluster=header.cluster_name)
    return OK


async def get_topics_by_cluster(namesrv: Namesrv, call: Call[GetTopicsByCluster]) -> Reply:
    return await _topics(namesrv, call, namesrv.routes.topics_of_cluster(call.header.cluster))


def get_system_topic_list_from_ns(namesrv: Namesrv, _call: Call[NoHeader]) -> Reply:
    """Return the names of clusters and broker groups, and the address of a broker; the client asks
    that broker for its own system topics.
    """
    names, address = namesrv.routes.groups.system_topics()
    return Reply(body=encode_json(TopicList(topic_list=names, broker_addr=address)))


async def get_unit_topic_list(namesrv: Namesrv, call: Call[NoHeader]) -> Reply:
    return await _topics(namesrv, call, namesrv.routes.topics.with_flags(wanted=TopicSysFlag.UNIT))


async def get_has_unit_sub_topic_list(namesrv: Namesrv, call: Call[NoHeader]) -> Reply:
    return await _topics(
        namesrv, call, namesrv.routes.topics.with_flags(wanted=TopicSysFlag.UNIT_SUB)
    )


async def get_has_unit_sub_ununit_topic_list(namesrv: Namesrv, call: Call[NoHeader]) -> Reply:
    found = namesrv.routes.topics.with_flags(
        wanted=TopicSysFlag.UNIT_SUB, unwanted=TopicSysFlag.UNIT
    )
    return await _topics(namesrv, call, found)


async def update_namesrv_config(namesrv: Namesrv, call: Call[NoHeader]) -> Reply:
    """Change mutable settings, all or none, and save them to the file.

    Unknown keys are ignored. If the file cannot be written, the change lasts until the process
    ends, and the answer reports the error.

    Compatibility: in RocketMQ, any client may change any key, including file paths, which is a
    known vulnerability. Here, a request that changes an immutable key is refused with an error that
    names the key.
    """
    if len(call.body) > CONFIG_BYTES_MAX:
        raise ServerError(
            f"settings of {len(call.body)} bytes: at most {CONFIG_BYTES_MAX} are accepted",
        )
    try:
        changes = properties.parse(str(call.body, "utf-8"))
    except ValueError as error:
        raise ServerError(remarks.PROPERTIES_UNREADABLE) from error
    old = namesrv.settings
    if not any(map(old.knows, changes)):
        return OK
    try:
        namesrv.settings = old.updated(changes)
    except SettingsError as error:
        raise ServerError(str(error)) from error
    changed = namesrv.settings.changed_since(old)
    if changed:
        namesrv.log.info("settings.changed", keys=sorted(changed))
    await namesrv.save_settings()
    # even if nothing changed: an earlier save may have failed
    return OK


def get_namesrv_config(namesrv: Namesrv, _call: Call[NoHeader]) -> Reply:
    """Return all settings in properties format."""
    return Reply(body=namesrv.settings.as_properties().encode())


async def _topics(
    namesrv: Namesrv, call: Call[NoHeader] | Call[GetTopicsByCluster], names: Steps[list[str]]
) -> Reply:
    return Reply(body=await stepwise(namesrv, call, _encoded(names)))


def _encoded(names: Steps[list[str]]) -> Steps[bytes]:
    found = yield from names
    return (yield from encode_with_lists(TopicList(), {"topicList": found}))
