# SPDX-License-Identifier: Apache-2.0
"""The content of exportMetrics: a report on each master, and totals."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.figures import BrokerFigures, Traffic, read_figures
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.errors import CommandError, ConsumerNotOnline
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
