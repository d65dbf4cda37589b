# SPDX-License-Identifier: Apache-2.0
"""mqadmin's export commands."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Annotated, Any, Final

import msgspec

from cometmq.cli.connecting import wrong_usage
from cometmq.cli.mqadmin.frame import Column, Family, Reply, Target, table
from cometmq.cli.option_sets import opt
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


@app.asks("statsAll")
async def _stats_all(
    admin: AdminClient,
    topic: Annotated[str | None, opt("-t", "--topic", "Only this topic.")] = None,
    *,
    only_active: Annotated[bool, opt("-a", "--activeTopic", "Only topics with traffic.")] = False,
) -> Reply:
    """Show rates and counts of all topics and their groups.

    As in RocketMQ, the figures of 24 hours come from samples: they stay 0 for messages older than
    a minute until the next sample, which may take ten minutes. `cometmq cluster` counts all of
    today's messages.
    """
    rows: list[tuple[Any, ...]] = []
    for name in await admin.topics():
        if not name.startswith((RETRY_PREFIX, DLQ_PREFIX)) and topic in (None, name):
            with suppress(CometError):  # the topic's brokers may not answer at the moment
                rows += await _rows(admin, name, only_active=only_active)
    return table(COLUMNS, rows)


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
    return {"evaluateReport": reports, "totalData": {"totalTps": rates, "totalOneDayNum": counts}}


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
Folder = Annotated[Path, opt("-f", "--filePath", "Folder to write to.")]
WholeCluster = Annotated[str, opt("-c", "--clusterName", "Name of the cluster.")]


@app.asks("exportMetadata")
async def _export_metadata(
    admin: AdminClient,
    target: Target,
    folder: Folder = DEFAULT_FOLDER,
    *,
    only_topics: Annotated[bool, opt("-t", "--topic", "Export only topics.")] = False,
    only_groups: Annotated[
        bool, opt("-g", "--subscriptionGroup", "Export only consumer groups.")
    ] = False,
    with_special: Annotated[
        bool, opt("-s", "--specialTopic", "Include retry and dead-letter topics.")
    ] = False,
) -> Reply:
    if only_topics and only_groups:
        raise wrong_usage("give -t or -g, not both")
    found = await _metadata(await target.masters(admin), with_special=with_special)
    name = "metadata.json"
    if only_topics:
        name = "topic.json"
        del found["subscriptionGroupTable"]
    elif only_groups:
        name = "subscriptionGroup.json"
        del found["topicConfigTable"]
    return _written(folder / name, found | {"exportTime": wall_ms()})


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


@app.asks("exportConfigs")
async def _export_configs(
    admin: AdminClient, cluster: WholeCluster, folder: Folder = DEFAULT_FOLDER
) -> Reply:
    groups = await admin.broker_groups(cluster)
    configs = {
        name: await group[MASTER_ID].config()
        for name, group in groups.items()
        if MASTER_ID in group
    }
    found = {
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
    return _written(folder / "configs.json", found)


@app.asks("exportMetrics")
async def _export_metrics(
    admin: AdminClient, cluster: WholeCluster, folder: Folder = DEFAULT_FOLDER
) -> Reply:
    return _written(folder / "metrics.json", await cluster_metrics(admin, cluster))


def _written(path: Path, found: dict[str, Any]) -> Reply:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(encode_json(found), indent=2))
    except OSError as error:
        raise wrong_usage(f"cannot write {path}: {error.strerror}") from error
    return Reply(f"export {path} success", {"file": str(path)})
