# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands about topics."""

from contextlib import suppress
from typing import Annotated, Final

import msgspec
import typer

from cometmq.broker.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin.frame import (
    BrokerAddr,
    ClusterName,
    Column,
    Family,
    Namesrv,
    Topic,
    TrueFalse,
    broker_name_of,
    check_target,
    print_done,
    print_table,
    targets,
    time_column,
)
from cometmq.cli.output import AsJson
from cometmq.client.admin import AdminClient
from cometmq.client.errors import BrokerMissing, NoRoute
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import CommandError
from cometmq.remoting.message.flags import Perm, TopicSysFlag

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

Perms = Annotated[
    int, typer.Option("-p", "--perm", help="What clients may do: 2 write, 4 read, 6 both.")
]


# -- change -----------------------------------------------------------------------------------


@app.named("updateTopic")
def update_topic(
    topic: Topic,
    broker: BrokerAddr = None,
    cluster: ClusterName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    read_queues: Annotated[
        int, typer.Option("-r", "--readQueueNums", help="Queues to read from.")
    ] = 8,
    write_queues: Annotated[
        int, typer.Option("-w", "--writeQueueNums", help="Queues to write to.")
    ] = 8,
    perm: Perms = 6,
    order: Annotated[
        TrueFalse, typer.Option("-o", "--order", help="Keep its queues when brokers change.")
    ] = "false",
    unit: Annotated[TrueFalse, typer.Option("-u", "--unit", help="A unit's topic.")] = "false",
    has_unit_sub: Annotated[
        TrueFalse, typer.Option("-s", "--hasUnitSub", help="Units subscribe to it.")
    ] = "false",
    *,
    as_json: AsJson = False,
) -> None:
    """Create a topic, or change it."""
    check_target(broker, cluster)
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

    async def question(admin: AdminClient) -> tuple[list[str], str | None]:
        masters = await targets(admin, broker, cluster)
        await admin.put_topic(config, masters)
        order_config = await _keep_order(admin, config, broker, cluster) if config.order else None
        return [master.address for master in masters], order_config

    addresses, order_config = ask(namesrv, question)
    lines = [f"create topic to {address} success." for address in addresses]
    if order_config is not None:
        place = "cluster" if broker is None else "broker"
        lines.append(f"set {place} orderConf. isOrder=true, orderConf=[{order_config}]")
    facts = {"topic": config.topic_name, "brokers": addresses, "order_config": order_config}
    print_done("\n".join([*lines, _config_text(config)]), facts, as_json=as_json)


async def _keep_order(
    admin: AdminClient, config: TopicConfig, broker: str | None, cluster: str | None
) -> str:
    """Tell the name servers which queues the topic has; return what they know now."""
    topic, count = config.topic_name, config.write_queue_nums
    if broker is not None:
        return await admin.set_order_queues(topic, await broker_name_of(admin, broker), count)
    order_config = ";".join(f"{name}:{count}" for name in await admin.masters(cluster))
    await admin.set_order_config(topic, order_config)
    return order_config


def _config_text(config: TopicConfig) -> str:
    perm = ("R" if config.perm & Perm.READ else "-") + ("W" if config.perm & Perm.WRITE else "-")
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}-, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={str(config.order).lower()}]"
    )


@app.named("updateTopicPerm")
def update_topic_perm(
    topic: Topic,
    perm: Perms,
    broker: BrokerAddr = None,
    cluster: ClusterName = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Change what clients may do with a topic."""
    check_target(broker, cluster)

    async def question(admin: AdminClient) -> list[tuple[str, TopicConfig, int]]:
        changed = []
        for master in await targets(admin, broker, cluster):
            config = (await master.topics()).get(topic)
            if config is None:
                raise NoRoute(f"the broker {master.address} has no topic {topic}")
            old, config.perm = config.perm, perm
            await admin.put_topic(config, [master])
            changed.append((master.address, config, old))
        return changed

    changed = ask(namesrv, question)
    lines = [
        f"update topic perm from {old} to {perm} in {address} success.\n{_config_text(config)}."
        for address, config, old in changed
    ]
    facts = [{"broker": address, "perm": perm, "old_perm": old} for address, _, old in changed]
    print_done("\n".join(lines), facts, as_json=as_json)


@app.named("deleteTopic")
def delete_topic(
    topic: Topic,
    cluster: Annotated[str, typer.Option("-c", "--clusterName", help="Delete it there.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with its messages from brokers and name servers."""

    async def question(admin: AdminClient) -> None:
        await admin.delete_topic(topic, cluster=cluster)

    ask(namesrv, question)
    text = (
        f"delete topic [{topic}] from cluster [{cluster}] success.\n"
        f"delete topic [{topic}] from NameServer success."
    )
    print_done(text, {"topic": topic, "cluster": cluster}, as_json=as_json)


# -- look -------------------------------------------------------------------------------------


@app.named("topicRoute")
def topic_route(
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_list: Annotated[bool, typer.Option("-l", "--list", help="As a table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show which brokers have a topic, as clients see it."""

    async def question(admin: AdminClient) -> TopicRoute:
        return await admin.route(topic)

    route = ask(namesrv, question)
    if as_json or not as_list:
        typer.echo(msgspec.json.format(encode_json(route), indent=2))
        return
    queues = {data.broker_name: data for data in route.queue_datas}
    rows = [
        (data.cluster, name, data.broker_addrs, one.read_queue_nums, one.write_queue_nums, one.perm)
        for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
        if (one := queues.get(name := data.broker_name)) is not None
    ]
    print_table(ROUTE_COLUMNS, rows, as_json=False)
    typer.echo(RULE)
    total = ("Total:", len(rows), None, sum(row[3] for row in rows), sum(row[4] for row in rows))
    print_table(ROUTE_COLUMNS, [(*total, None)], as_json=False, has_heading=False)


@app.named("topicStatus")
def topic_status(
    topic: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False
) -> None:
    """Show begin, end and last message of each queue of a topic."""

    async def question(admin: AdminClient) -> dict[MessageQueue, TopicOffset]:
        return await admin.topic_stats(topic)

    rows = (
        (queue.broker_name, queue.queue_id, at.min_offset, at.max_offset, at.last_update_timestamp)
        for queue, at in ask(namesrv, question).items()
    )
    print_table(STATUS_COLUMNS, rows, as_json=as_json)


@app.named("topicClusterList")
def topic_cluster_list(
    topic: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False
) -> None:
    """List the clusters that have a topic."""

    async def question(admin: AdminClient) -> list[str]:
        return await admin.topic_clusters(topic)

    clusters = ask(namesrv, question)
    print_done("\n".join(clusters), clusters, as_json=as_json)


@app.named("topicList")
def topic_list(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    with_groups: Annotated[
        bool, typer.Option("-c", "--clusterModel", help="With their clusters and groups.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the topics."""

    async def names(admin: AdminClient) -> list[str]:
        return await admin.topics()

    async def places(admin: AdminClient) -> list[tuple[str, str, str]]:
        found = []
        for topic in await admin.topics():
            if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
                cluster, groups = await _cluster_and_groups(admin, topic)
                found += [(cluster, topic, group) for group in groups or [""]]
        return found

    if with_groups:
        print_table(LIST_COLUMNS, ask(namesrv, places), as_json=as_json)
    else:
        topics = ask(namesrv, names)
        print_done("\n".join(topics), topics, as_json=as_json)


async def _cluster_and_groups(admin: AdminClient, topic: str) -> tuple[str, list[str]]:
    """Return where a topic is and who consumes it, as far as it is known."""
    clusters: list[str] = []
    with suppress(CommandError, BrokerMissing, NoRoute):  # a topic may have no broker just now
        clusters = await admin.topic_clusters(topic)
        return ",".join(clusters), await admin.consuming_groups(topic)
    return ",".join(clusters), []
