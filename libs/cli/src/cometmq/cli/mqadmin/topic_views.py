# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that show topics."""

from contextlib import suppress
from typing import Annotated, Final

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin.frame import (
    Column,
    Family,
    Namesrv,
    Topic,
    print_done,
    print_table,
    time_column,
)
from cometmq.cli.output import AsJson
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient
from cometmq.client.errors import BrokerMissing, NoRoute
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import TopicRoute
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.errors import CommandError
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
