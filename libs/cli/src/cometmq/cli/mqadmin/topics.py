# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that create, change and delete topics."""

from contextlib import suppress
from typing import Annotated, Final, Literal

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask, wrong_usage
from cometmq.cli.mqadmin.frame import (
    Column,
    Family,
    Namesrv,
    Target,
    Topic,
    TrueFalse,
    ask_each,
    broker_name_of,
    exit_if_any,
    print_done,
    print_table,
    time_column,
)
from cometmq.cli.output import AsJson
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.consume.queues.rebalance import AllocateAveragely
from cometmq.client.errors import BrokerMissing, NoRoute
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import CometError, CommandError
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


@app.named("topicRoute")
def topic_route(
    topic: Topic,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_list: Annotated[bool, typer.Option("-l", "--list", help="Print a table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the brokers of a topic as clients see them."""

    async def question(admin: AdminClient) -> TopicRoute:
        return await admin.route(topic)

    route = ask(namesrv, question)
    if as_json or not as_list:
        say(msgspec.json.format(encode_json(route), indent=2))
        return
    queues = {data.broker_name: data for data in route.queue_datas}
    rows = [
        (data.cluster, name, data.broker_addrs, one.read_queue_nums, one.write_queue_nums, one.perm)
        for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
        if (one := queues.get(name := data.broker_name)) is not None
    ]
    print_table(ROUTE_COLUMNS, rows, as_json=False)
    say(RULE)
    total = ("Total:", len(rows), None, sum(row[3] for row in rows), sum(row[4] for row in rows))
    print_table(ROUTE_COLUMNS, [(*total, None)], as_json=False, has_heading=False)


@app.named("topicStatus")
def topic_status(
    topic: Topic, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False
) -> None:
    """Show the offsets and last message of each queue of a topic."""

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
        bool, typer.Option("-c", "--clusterModel", help="Include clusters and groups.")
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
    """Return a topic's cluster and consumer groups, where known."""
    clusters: list[str] = []
    with suppress(
        CommandError, BrokerMissing, NoRoute
    ):  # the topic may have no broker at the moment
        clusters = await admin.topic_clusters(topic)
        return ",".join(clusters), await admin.consuming_groups(topic)
    return ",".join(clusters), []


@app.named("updateOrderConf")
def update_order_conf(
    topic: Topic,
    method: Annotated[
        Literal["get", "put", "delete"], typer.Option("-m", "--method", help="Action.")
    ],
    value: Annotated[
        str | None,
        typer.Option("-v", "--orderConf", help="Queues, as broker:queues;broker:queues."),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Get, put or delete the queues that an ordered topic keeps when brokers change."""
    if method == "put" and not (value and value.strip()):
        raise wrong_usage("please set orderConf with option -v")

    async def question(admin: AdminClient) -> str | None:
        if method == "get":
            return await admin.order_config(topic)
        if method == "delete":
            await admin.delete_order_config(topic)
            return None
        assert value is not None
        await admin.set_order_config(topic, value.strip())
        return value.strip()

    config = ask(namesrv, question)
    verb = {"get": "get", "put": "update", "delete": "delete"}[method]
    text = f"{verb} orderConf success. topic=[{topic}]"
    if method != "delete":
        text += f", orderConf=[{config or 'null'}]"
    print_done(text, {"topic": topic, "order_config": config}, as_json=as_json)


@app.named("allocateMQ")
def allocate_mq(
    topic: Topic,
    addresses: Annotated[
        str, typer.Option("-i", "--ipList", help="Members of the group, comma-separated.")
    ],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show how consumers would share the queues of a topic."""
    members = addresses.split(",")

    async def question(admin: AdminClient) -> list[MessageQueue]:
        return await admin.queues(topic)

    queues = ask(namesrv, question)
    strategy = AllocateAveragely()
    shares = {member: strategy.allocate(member, queues, members) for member in members}
    print_done(encode_json({"result": shares}).decode(), {"result": shares}, as_json=as_json)


Perms = Annotated[
    int, typer.Option("-p", "--perm", help="What clients may do: 2 write, 4 read, 6 both.")
]


@app.named("updateTopic")
def update_topic(
    topic: Topic,
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    read_queues: Annotated[
        int, typer.Option("-r", "--readQueueNums", min=0, help="Queues to read from.")
    ] = 8,
    write_queues: Annotated[
        int, typer.Option("-w", "--writeQueueNums", min=0, help="Queues to write to.")
    ] = 8,
    perm: Perms = 6,
    order: Annotated[
        TrueFalse,
        typer.Option(
            "-o", "--order", help="Whether the topic keeps its queues when brokers change."
        ),
    ] = "false",
    unit: Annotated[
        TrueFalse, typer.Option("-u", "--unit", help="Whether the topic belongs to a unit.")
    ] = "false",
    has_unit_sub: Annotated[
        TrueFalse, typer.Option("-s", "--hasUnitSub", help="Whether units subscribe to the topic.")
    ] = "false",
    *,
    as_json: AsJson = False,
) -> None:
    """Create or update a topic."""
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

    async def question(admin: AdminClient) -> tuple[list[str], dict[str, CometError], str | None]:
        masters = await target.masters(admin)
        done, failures = await ask_each(masters, lambda one: admin.put_topic(config, [one]))
        has_order = config.order and not failures
        order_config = await _keep_order(admin, config, target) if has_order else None
        return list(done), failures, order_config

    addresses, failures, order_config = ask(namesrv, question)
    lines = [f"create topic to {address} success." for address in addresses]
    if order_config is not None:
        place = "cluster" if target.broker is None else "broker"
        lines.append(f"set {place} orderConf. isOrder=true, orderConf=[{order_config}]")
    facts = {"topic": config.topic_name, "brokers": addresses, "order_config": order_config}
    if addresses:
        print_done("\n".join([*lines, _config_text(config)]), facts, as_json=as_json)
    exit_if_any(failures)


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
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Change what clients may do with a topic."""

    async def question(
        admin: AdminClient,
    ) -> tuple[dict[str, tuple[int, TopicConfig]], dict[str, CometError]]:
        async def change(master: BrokerAdmin) -> tuple[int, TopicConfig]:
            config = (await master.topics()).get(topic)
            if config is None:
                raise NoRoute(f"it has no topic {topic}")
            old, config.perm = config.perm, perm
            await admin.put_topic(config, [master])
            return old, config

        return await ask_each(await target.masters(admin), change)

    changed, failures = ask(namesrv, question)
    lines = [
        f"update topic perm from {old} to {perm} in {address} success.\n{_config_text(config)}."
        for address, (old, config) in changed.items()
    ]
    facts = [{"broker": at, "perm": perm, "old_perm": old} for at, (old, _) in changed.items()]
    if changed:
        print_done("\n".join(lines), facts, as_json=as_json)
    exit_if_any(failures)


@app.named("deleteTopic")
def delete_topic(
    topic: Topic,
    cluster: Annotated[
        str, typer.Option("-c", "--clusterName", help="Cluster to delete the topic from.")
    ],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and its messages from brokers and name servers."""

    async def question(admin: AdminClient) -> None:
        await admin.delete_topic(topic, cluster=cluster, is_missing_ok=True)

    ask(namesrv, question)
    text = (
        f"delete topic [{topic}] from cluster [{cluster}] success.\n"
        f"delete topic [{topic}] from NameServer success."
    )
    print_done(text, {"topic": topic, "cluster": cluster}, as_json=as_json)
