# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that create, change and delete topics."""

from contextlib import suppress
from typing import Annotated, Final, Literal

import msgspec

from cometmq.cli.connecting import wrong_usage
from cometmq.cli.mqadmin.frame import (
    Column,
    Family,
    Reply,
    Target,
    Topic,
    TrueFalse,
    broker_name_of,
    table,
    text_of,
    time_column,
)
from cometmq.cli.mqadmin.java_text import bracketed
from cometmq.cli.option_sets import opt
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.consume.queues.rebalance import AllocateAveragely
from cometmq.client.errors import BrokerMissing, NoRoute
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import CommandError
from cometmq.remoting.message.flags import Perm, TopicSysFlag
from cometmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX

app = Family()


ROUTE_COLUMNS: Final = (
    Column("cluster", "#ClusterName", "%-45s "),
    Column("broker", "#BrokerName", "%-32s "),
    Column(
        "addresses",
        "#BrokerAddrs",
        "%-50s ",
        text=lambda found: "{" + ", ".join(f"{i}={it}" for i, it in found.items()) + "}",
    ),
    Column("read_queues", "#ReadQueue", "%-10s "),
    Column("write_queues", "#WriteQueue", "%-11s "),
    Column("perm", "#Perm", "%-5s"),
)
STATUS_COLUMNS: Final = (
    Column("broker", "#Broker Name", "%-32.32s  "),
    Column("queue", "#QID", "%-4d  "),
    Column("min_offset", "#Min Offset", "%-20d  "),
    Column("max_offset", "#Max Offset", "%-20d    "),
    time_column("last_updated", "#Last Updated", with_ms=True),
)
LIST_COLUMNS: Final = (
    Column("cluster", "#Cluster Name", "%-20.20s  "),
    Column("topic", "#Topic", "%-64.64s  "),
    Column("group", "#Consumer Group", "%-64.64s"),
)
RULE: Final = "-" * 158


@app.asks("topicRoute")
async def _topic_route(
    admin: AdminClient,
    topic: Topic,
    *,
    as_list: Annotated[bool, opt("-l", "--list", "Print a table.")] = False,
) -> Reply:
    route = await admin.route(topic)
    document = msgspec.json.format(encode_json(route), indent=2)
    if not as_list:
        return Reply(document, document)
    queues = {data.broker_name: data for data in route.queue_datas}
    rows = [
        (data.cluster, name, data.broker_addrs, one.read_queue_nums, one.write_queue_nums, one.perm)
        for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
        if (one := queues.get(name := data.broker_name)) is not None
    ]
    total = ("Total:", len(rows), None, sum(row[3] for row in rows), sum(row[4] for row in rows))
    below = text_of(ROUTE_COLUMNS, [(*total, None)], has_heading=False)
    return Reply(f"{text_of(ROUTE_COLUMNS, rows)}\n{RULE}\n{below}", document)


@app.asks("topicStatus")
async def _topic_status(admin: AdminClient, topic: Topic) -> Reply:
    rows = [
        (queue.broker_name, queue.queue_id, at.min_offset, at.max_offset, at.last_update_timestamp)
        for queue, at in (await admin.topic_stats(topic)).items()
    ]
    return table(STATUS_COLUMNS, rows)


@app.asks("topicClusterList")
async def _topic_cluster_list(admin: AdminClient, topic: Topic) -> Reply:
    clusters = await admin.topic_clusters(topic)
    return Reply("\n".join(clusters), clusters)


@app.asks("topicList")
async def _topic_list(
    admin: AdminClient,
    *,
    with_groups: Annotated[bool, opt("-c", "--clusterModel", "With clusters and groups.")] = False,
) -> Reply:
    topics = await admin.topics()
    if not with_groups:
        return Reply("\n".join(topics), topics)
    rows: list[tuple[str, str, str]] = []
    for topic in topics:
        if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            cluster, groups = await _cluster_and_groups(admin, topic)
            rows += [(cluster, topic, group) for group in groups or [""]]
    return table(LIST_COLUMNS, rows)


async def _cluster_and_groups(admin: AdminClient, topic: str) -> tuple[str, list[str]]:
    """Return a topic's cluster and consumer groups, where known."""
    clusters: list[str] = []
    with suppress(
        CommandError, BrokerMissing, NoRoute
    ):  # the topic may have no broker at the moment
        clusters = await admin.topic_clusters(topic)
        return ",".join(clusters), await admin.consuming_groups(topic)
    return ",".join(clusters), []


@app.asks("updateOrderConf")
async def _update_order_conf(
    admin: AdminClient,
    topic: Topic,
    method: Annotated[Literal["get", "put", "delete"], opt("-m", "--method", "Action.")],
    value: Annotated[
        str | None, opt("-v", "--orderConf", "Queues, as broker:queues;broker:queues.")
    ] = None,
) -> Reply:
    config = (value or "").strip() or None
    if method == "get":
        config = await admin.order_config(topic)
    elif method == "delete":
        await admin.delete_order_config(topic)
        config = None
    elif config is None:
        raise wrong_usage("please set orderConf with option -v")
    else:
        await admin.set_order_config(topic, config)
    verb = {"get": "get", "put": "update", "delete": "delete"}[method]
    text = f"{verb} orderConf success. topic=[{topic}]"
    if method != "delete":
        text += f", orderConf=[{config or 'null'}]"
    return Reply(text, {"topic": topic, "order_config": config})


@app.asks("allocateMQ")
async def _allocate_mq(
    admin: AdminClient,
    topic: Topic,
    addresses: Annotated[str, opt("-i", "--ipList", "Members of the group, comma-separated.")],
) -> Reply:
    members, queues = addresses.split(","), await admin.queues(topic)
    strategy = AllocateAveragely()
    facts = {"result": {member: strategy.allocate(member, queues, members) for member in members}}
    return Reply(encode_json(facts).decode(), facts)


Perms = Annotated[int, opt("-p", "--perm", "What clients may do: 2 write, 4 read, 6 both.")]


@app.asks("updateTopic")
async def _update_topic(
    admin: AdminClient,
    topic: Topic,
    target: Target,
    read_queues: Annotated[int, opt("-r", "--readQueueNums", "Queues to read from.", min=0)] = 8,
    write_queues: Annotated[int, opt("-w", "--writeQueueNums", "Queues to write to.", min=0)] = 8,
    perm: Perms = 6,
    order: Annotated[
        TrueFalse, opt("-o", "--order", "Whether the topic keeps its queues when brokers change.")
    ] = "false",
    unit: Annotated[
        TrueFalse, opt("-u", "--unit", "Whether the topic belongs to a unit.")
    ] = "false",
    has_unit_sub: Annotated[
        TrueFalse, opt("-s", "--hasUnitSub", "Whether units subscribe to the topic.")
    ] = "false",
) -> Reply:
    flags = TopicSysFlag.UNIT if unit == "true" else TopicSysFlag(0)
    flags |= TopicSysFlag.UNIT_SUB if has_unit_sub == "true" else TopicSysFlag(0)
    config = TopicConfig(
        topic_name=topic.strip(),
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=perm,
        order=order == "true",
        topic_sys_flag=int(flags),
    )
    done, failed = await target.ask(admin, lambda one: admin.put_topic(config, [one]))
    if not done:
        return Reply(failed=failed)
    lines = [f"create topic to {address} success." for address in done]
    order_config = None
    if config.order and not failed:
        order_config = await _keep_order(admin, config, target)
        place = "cluster" if target.broker is None else "broker"
        lines.append(f"set {place} orderConf. isOrder=true, orderConf=[{order_config}]")
    facts = {"topic": config.topic_name, "brokers": list(done), "order_config": order_config}
    return Reply("\n".join([*lines, _config_text(config)]), facts, failed)


async def _keep_order(admin: AdminClient, config: TopicConfig, target: Target) -> str:
    """Register the topic's queues with the name servers; return the new order configuration."""
    topic, count = config.topic_name, config.write_queue_nums
    if target.broker is not None:
        name = await broker_name_of(admin, target.broker)
        return await admin.set_order_queues(topic, name, count)
    order_config = ";".join(f"{name}:{count}" for name in await admin.masters(target.cluster))
    await admin.set_order_config(topic, order_config)
    return order_config


def _config_text(config: TopicConfig) -> str:
    perm = ("R" if config.perm & Perm.READ else "-") + ("W" if config.perm & Perm.WRITE else "-")
    facts = {
        "topicName": config.topic_name,
        "readQueueNums": config.read_queue_nums,
        "writeQueueNums": config.write_queue_nums,
        "perm": f"{perm}-",
        "topicFilterType": config.topic_filter_type,
        "topicSysFlag": config.topic_sys_flag,
        "order": config.order,
    }
    return bracketed("TopicConfig", facts.items())


@app.asks("updateTopicPerm")
async def _update_topic_perm(
    admin: AdminClient, topic: Topic, perm: Perms, target: Target
) -> Reply:
    async def change(master: BrokerAdmin) -> tuple[int, TopicConfig]:
        config = (await master.topics()).get(topic)
        if config is None:
            raise NoRoute(f"it has no topic {topic}")
        old, config.perm = config.perm, perm
        await admin.put_topic(config, [master])
        return old, config

    changed, failed = await target.ask(admin, change)
    lines = [
        f"update topic perm from {old} to {perm} in {address} success.\n{_config_text(config)}."
        for address, (old, config) in changed.items()
    ]
    facts = [{"broker": at, "perm": perm, "old_perm": old} for at, (old, _) in changed.items()]
    return Reply("\n".join(lines), facts or None, failed)


@app.asks("deleteTopic")
async def _delete_topic(
    admin: AdminClient,
    topic: Topic,
    cluster: Annotated[str, opt("-c", "--clusterName", "Cluster to delete the topic from.")],
) -> Reply:
    await admin.delete_topic(topic, cluster=cluster, is_missing_ok=True)
    places = (f"cluster [{cluster}]", "NameServer")
    lines = [f"delete topic [{topic}] from {place} success." for place in places]
    return Reply("\n".join(lines), {"topic": topic, "cluster": cluster})
