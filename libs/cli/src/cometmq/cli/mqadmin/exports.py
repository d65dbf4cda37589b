# SPDX-License-Identifier: Apache-2.0
"""mqadmin's export commands."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated, Any, Final

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask, wrong_usage
from cometmq.cli.mqadmin.frame import Column, Family, Namesrv, Target, print_done, print_table
from cometmq.cli.output import AsJson
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.figures import BrokerFigures, Traffic, read_figures
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.errors import CometError, CommandError, ConsumerNotOnline
from cometmq.remoting.names import (
    BOOT_GROUPS,
    CLIENT_GROUPS,
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    is_system_group,
)
from cometmq.remoting.versions import CURRENT_VERSION, version_name

app = Family()


NO_CONSUMER: Final = "NO_CONSUMER"
COLUMNS: Final = (
    Column("topic", "#Topic", "%-64.64s  "),
    Column("group", "#Consumer Group", "%-64.64s "),
    Column("accumulation", "#Accumulation", "%12d "),
    Column("in_tps", "#InTPS", "%11.2f "),
    Column("out_tps", "#OutTPS", "%11.2f "),
    Column("in_24h", "#InMsg24Hour", "%14d "),
    Column(
        *("out_24h", "#OutMsg24Hour", "%14s"),
        data=lambda count: None if count == NO_CONSUMER else count,
    ),
)


@app.named("statsAll")
def stats_all(
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Only this topic.")] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    only_active: Annotated[
        bool, typer.Option("-a", "--activeTopic", help="Only topics with traffic.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show rates and counts of all topics and their groups.

    As in RocketMQ, the figures of 24 hours come from samples: they stay 0 for messages older than
    a minute until the next sample, which may take ten minutes. `cometmq cluster` counts all of
    today's messages.
    """

    async def question(admin: AdminClient) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        for name in await admin.topics():
            if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and topic in (None, name):
                with suppress(CometError):  # the topic's brokers may not answer at the moment
                    rows += await _rows(admin, name, only_active=only_active)
        return rows

    print_table(COLUMNS, ask(namesrv, question), as_json=as_json)


async def _rows(admin: AdminClient, topic: str, *, only_active: bool) -> list[tuple[Any, ...]]:
    masters = await admin.masters_of(topic)
    groups = await admin.consuming_groups(topic)
    incoming = await _statistics_traffic(masters, "TOPIC_PUT_NUMS", topic)
    if not groups:
        row = (topic, "", 0, incoming.tps, None, incoming.count, NO_CONSUMER)
        return [] if only_active and not incoming.count else [row]
    rows = []
    for group in groups:
        outgoing = await _statistics_traffic(masters, "GROUP_GET_NUMS", f"{topic}@{group}")
        if not only_active or incoming.count or outgoing.count:
            lag = sum(one.difference for one in await admin.lag(group, topic))
            rates = (incoming.tps, outgoing.tps, incoming.count, outgoing.count)
            rows.append((topic, group, max(lag, 0), *rates))
    return rows


async def _statistics_traffic(masters: Iterable[BrokerAdmin], name: str, key: str) -> Traffic:
    """Return the sum over all masters; a master without this count returns an error and adds
    nothing.
    """
    total = Traffic()
    for master in masters:
        with suppress(CometError):
            total += Traffic.of(await master.stats(name, key))
    return total


async def user_topics(broker: BrokerAdmin, *, with_special: bool = False) -> dict[str, TopicConfig]:
    """Return the topics created by users; with `with_special`, also retry and dead-letter
    topics.
    """
    own = set(await broker.system_topics())
    special = () if with_special else (RETRY_PREFIX, DLQ_PREFIX)
    topics = await broker.topics()
    return {it: topics[it] for it in topics if it not in own and not it.startswith(special)}


async def user_groups(broker: BrokerAdmin) -> dict[str, SubscriptionGroupConfig]:
    """Return the consumer groups created by users."""
    reserved = CLIENT_GROUPS.union(BOOT_GROUPS)
    groups = await broker.groups()
    return {it: groups[it] for it in groups if it not in reserved and not is_system_group(it)}


async def cluster_metrics(admin: AdminClient, cluster: str) -> dict[str, Any]:
    """Return a report on each master in a cluster, and totals."""
    reports: dict[str, Any] = {}
    rates: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, master in (await admin.masters(cluster)).items():
        report = await _report(admin, master)
        reports[name] = report
        _add(rates, report["runtimeQuota"]["tps"])
        _add(counts, report["runtimeQuota"]["oneDayNum"])
    return {
        "evaluateReport": reports,
        "totalData": {"totalTps": rates, "totalOneDayNum": counts},
    }


def _add(totals: dict[str, Any], figures: Mapping[str, Any]) -> None:
    """Add figures to totals; the total of `normalInTps` is `totalNormalInTps`."""
    for name, figure in figures.items():
        total = f"total{name[0].upper()}{name[1:]}" if name.endswith("Tps") else name
        totals[total] = totals.get(total, 0) + figure


async def _report(admin: AdminClient, master: BrokerAdmin) -> dict[str, Any]:
    facts, config = await master.runtime_info(), await master.config()
    groups = await user_groups(master)
    return {
        "runtimeEnv": {
            "cpuNum": config.get("clientCallbackExecutorThreads"),
            "totalMemKBytes": facts.get("totalMemKBytes"),
        },
        "runtimeQuota": {
            "diskRatio": {
                "commitLogDiskRatio": facts.get("commitLogDiskRatio"),
                "consumeQueueDiskRatio": facts.get("consumeQueueDiskRatio"),
            },
            **await _traffic(master, read_figures(facts)),
            "messageAverageSize": facts.get("putMessageAverageSize"),
            "topicSize": len(await user_topics(master)),
            "groupSize": len(groups),
        },
        "runtimeVersion": {
            "rocketmqVersion": version_name(CURRENT_VERSION),
            "clientInfo": await _clients(admin, groups),
        },
    }


async def _traffic(master: BrokerAdmin, figures: BrokerFigures) -> dict[str, Any]:
    half = await _topic_traffic(master, HALF_TOPIC)
    delayed = await _topic_traffic(master, SCHEDULE_TOPIC)
    return {
        "tps": {
            "normalInTps": figures.incoming.tps,
            "normalOutTps": figures.outgoing.tps,
            "transInTps": half.tps,
            "scheduleInTps": delayed.tps,
        },
        "oneDayNum": {
            "normalOneDayInNum": figures.put_yesterday,
            "normalOneDayOutNum": figures.got_yesterday,
            "transOneDayInNum": half.count,
            "scheduleOneDayInNum": delayed.count,
        },
    }


async def _topic_traffic(master: BrokerAdmin, topic: str) -> Traffic:
    with suppress(CommandError):  # no statistics yet
        return Traffic.of(await master.stats("TOPIC_PUT_NUMS", topic))
    return Traffic()


async def _clients(admin: AdminClient, groups: Mapping[str, SubscriptionGroupConfig]) -> list[str]:
    """Return the languages and versions of the connected consumers."""
    found: set[str] = set()
    for group in groups:
        with suppress(ConsumerNotOnline):
            for connection in (await admin.consumer_connections(group)).connection_set:
                found.add(f"{connection.language}%{version_name(connection.version)}")
    return sorted(found)


DEFAULT_FOLDER: Final = Path(gettempdir()) / "rocketmq" / "export"
CONFIG_KEYS: Final = (
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime",
    "filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel",
    "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
)  # fmt: skip
Folder = Annotated[Path, typer.Option("-f", "--filePath", help="Folder to write to.")]
WholeCluster = Annotated[str, typer.Option("-c", "--clusterName", help="Name of the cluster.")]


# -- topics and groups ------------------------------------------------------------------------


@app.named("exportMetadata")
def export_metadata(
    target: Target,
    folder: Folder = DEFAULT_FOLDER,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    only_topics: Annotated[bool, typer.Option("-t", "--topic", help="Export only topics.")] = False,
    only_groups: Annotated[
        bool, typer.Option("-g", "--subscriptionGroup", help="Export only consumer groups.")
    ] = False,
    with_special: Annotated[
        bool, typer.Option("-s", "--specialTopic", help="Include retry and dead-letter topics.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Export topics and consumer groups to a file."""
    if only_topics and only_groups:
        raise wrong_usage("give -t or -g, not both")

    async def question(admin: AdminClient) -> dict[str, Any]:
        masters = await target.masters(admin)
        return await _metadata(masters, with_special=with_special)

    found = ask(namesrv, question)
    name = "metadata.json"
    if only_topics:
        name = "topic.json"
        found = {"topicConfigTable": found["topicConfigTable"]}
    elif only_groups:
        name = "subscriptionGroup.json"
        found = {"subscriptionGroupTable": found["subscriptionGroupTable"]}
    _write(folder / name, found | {"exportTime": wall_ms()}, as_json=as_json)


async def _metadata(masters: list[BrokerAdmin], *, with_special: bool) -> dict[str, Any]:
    """Sum the queues of all masters, for planning a new cluster."""
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    for master in masters:
        for name, topic in (await user_topics(master, with_special=with_special)).items():
            if (other := topics.get(name)) is not None:
                topic.read_queue_nums += other.read_queue_nums
                topic.write_queue_nums += other.write_queue_nums
            topics[name] = topic
        for name, group in (await user_groups(master)).items():
            if name in groups:
                group.retry_queue_nums += groups[name].retry_queue_nums
            groups[name] = group
    return {"topicConfigTable": topics, "subscriptionGroupTable": groups}


# -- settings, figures ------------------------------------------------------------------------


@app.named("exportConfigs")
def export_configs(
    cluster: WholeCluster,
    folder: Folder = DEFAULT_FOLDER,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Export the important settings and the size of a cluster to a file."""

    async def question(admin: AdminClient) -> dict[str, Any]:
        groups = await admin.broker_groups(cluster)
        configs = {
            name: await group[MASTER_ID].config()
            for name, group in groups.items()
            if MASTER_ID in group
        }
        return {
            "brokerConfigs": {
                name: {key: config[key] for key in CONFIG_KEYS if key in config}
                for name, config in configs.items()
            },
            "clusterScale": {
                "namesrvSize": len(admin.namesrv.addresses),
                "masterBrokerSize": len(configs),
                "slaveBrokerSize": sum(map(len, groups.values())) - len(configs),
            },
        }

    _write(folder / "configs.json", ask(namesrv, question), as_json=as_json)


@app.named("exportMetrics")
def export_metrics(
    cluster: WholeCluster,
    folder: Folder = DEFAULT_FOLDER,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Export rates, counts and sizes of a cluster to a file."""

    async def question(admin: AdminClient) -> dict[str, Any]:
        return await cluster_metrics(admin, cluster)

    _write(folder / "metrics.json", ask(namesrv, question), as_json=as_json)


def _write(path: Path, found: dict[str, Any], *, as_json: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(encode_json(found), indent=2))
    except OSError as error:
        raise wrong_usage(f"cannot write {path}: {error.strerror}") from error
    print_done(f"export {path} success", {"file": str(path)}, as_json=as_json)
