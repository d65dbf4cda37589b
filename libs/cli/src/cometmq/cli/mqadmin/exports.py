# SPDX-License-Identifier: Apache-2.0
"""mqadmin's export commands."""

from pathlib import Path
from tempfile import gettempdir
from typing import Annotated, Any, Final

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask, wrong_usage
from cometmq.cli.mqadmin.frame import Family, Namesrv, Target, print_done
from cometmq.cli.mqadmin.metrics import cluster_metrics, user_groups, user_topics
from cometmq.cli.output import AsJson
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig

DEFAULT_FOLDER: Final = Path(gettempdir()) / "rocketmq" / "export"
CONFIG_KEYS: Final = (
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime",
    "filterServerNums", "flushDiskType", "maxMessageSize", "messageDelayLevel",
    "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup",
)  # fmt: skip
app = Family()

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
