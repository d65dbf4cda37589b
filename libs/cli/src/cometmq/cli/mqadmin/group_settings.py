# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for the settings of consumer groups."""

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Final, NamedTuple

from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.frame import Family, Reply, Target, TrueFalse
from cometmq.cli.option_sets import opt
from cometmq.client.admin import AdminClient
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import check_group
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.names import dead_letter_topic, retry_topic
from cometmq.remoting.spelling import did_you_mean
from cometmq.runtime.programs import PROGRAMS

_NETTY: Final = frozenset(
    {
        *("listenPort", "serverWorkerThreads", "serverCallbackExecutorThreads"),
        *("serverSelectorThreads", "serverOnewaySemaphoreValue", "serverAsyncSemaphoreValue"),
        *("serverChannelMaxIdleTimeSeconds", "serverSocketSndBufSize", "serverSocketRcvBufSize"),
        *("writeBufferHighWaterMark", "writeBufferLowWaterMark", "serverSocketBacklog"),
        *("serverPooledByteBufAllocatorEnable", "useEpollNativeSelector"),
    }
)


class Kind(NamedTuple):
    """A kind of server: our settings for it, and RocketMQ's additional keys."""

    program: str
    more: frozenset[str]


BROKER: Final = Kind(
    "broker",
    _NETTY
    | {
        *("enableAsyncDeliver", "forwardTimeout", "maxBatchDeleteFilesNum", "putMessageTimeout"),
        *("rejectPullConsumerEnable", "storePathReadOnlyCommitLogPaths"),
    },
)
NAMESRV: Final = Kind(
    "namesrv", _NETTY | {"rocketmqHome", "productEnvName", "returnOrderTopicConfigToBroker"}
)


def refuse_unknown(key: str, address: str, config: Mapping[str, str], kind: Kind) -> None:
    """Raise InvalidArgument if neither the server nor RocketMQ has a setting of this name."""
    if key in config or key in kind.more:
        return
    fields_of = import_module("cometmq.runtime.settings.fields").fields_of
    ours = fields_of(PROGRAMS[kind.program].settings_type())
    if key not in ours:
        known = {*config, *ours, *kind.more}
        raise InvalidArgument(
            f"{address} has no setting {key}; to send it anyway, give --force"
            f"{did_you_mean(key, known)}"
        )


FIELDS: Final = (
    "groupName", "consumeEnable", "consumeFromMinEnable", "consumeBroadcastEnable",
    "retryQueueNums", "retryMaxTimes", "brokerId", "whichBrokerWhenConsumeSlowly",
    "notifyConsumerIdsChangedEnable",
)  # fmt: skip

app = Family()

GroupName = Annotated[str, opt("-g", "--groupName", "Name of the consumer group.")]


@app.asks("updateSubGroup")
async def _update_sub_group(
    admin: AdminClient,
    group: GroupName,
    target: Target,
    consume: Annotated[
        TrueFalse, opt("-s", "--consumeEnable", "Whether the group may consume.")
    ] = "true",
    from_min: Annotated[
        TrueFalse, opt("-m", "--consumeFromMinEnable", "Start at the first message.")
    ] = "false",
    broadcast: Annotated[
        TrueFalse, opt("-d", "--consumeBroadcastEnable", "Allow broadcasting.")
    ] = "false",
    retry_queues: Annotated[
        int, opt("-q", "--retryQueueNums", "Queues of its retry topic.", min=0)
    ] = 1,
    retry_max: Annotated[int, opt("-r", "--retryMaxTimes", "Retries before the dead letter.")] = 16,
    broker_id: Annotated[int, opt("-i", "--brokerId", "Id of the broker to read from.", min=0)] = 0,
    slow_id: Annotated[
        int, opt("-w", "--whichBrokerWhenConsumeSlowly", "Id of that for groups far behind.", min=0)
    ] = 1,
    notify: Annotated[
        TrueFalse, opt("-a", "--notifyConsumerIdsChanged", "Notify members of others.")
    ] = "true",
) -> Reply:
    """Create or update a consumer group; omitted options take their defaults."""
    config = SubscriptionGroupConfig(
        group_name=group,
        consume_enable=consume == "true",
        consume_from_min_enable=from_min == "true",
        consume_broadcast_enable=broadcast == "true",
        retry_queue_nums=retry_queues,
        retry_max_times=retry_max,
        broker_id=broker_id,
        which_broker_when_consume_slowly=slow_id,
        notify_consumer_ids_changed_enable=notify == "true",
    )
    check_group(group)
    done, failed = await target.ask(admin, lambda one: one.create_group(config))
    if not done:
        return Reply(failed=failed)
    lines = [f"create subscription group to {address} success." for address in done]
    lines.append(java_text.bracketed("SubscriptionGroupConfig", java_text.fields(config, FIELDS)))
    return Reply("\n".join(lines), {"group": config, "brokers": list(done)}, failed)


@app.asks("deleteSubGroup")
async def _delete_sub_group(
    admin: AdminClient,
    group: GroupName,
    target: Target,
    remove_offset: Annotated[
        TrueFalse, opt("-r", "--removeOffset", "Whether to delete its offsets.")
    ] = "false",
) -> Reply:
    """Delete a consumer group and, with -c, its retry and dead-letter topics."""
    is_removing = remove_offset == "true"
    done, failed = await target.ask(
        admin, lambda one: one.delete_group(group, remove_offsets=is_removing)
    )
    inside = "" if target.cluster is None else f" in cluster [{target.cluster}]"
    lines = [
        f"delete subscription group [{group}] from broker [{address}]{inside} success."
        for address in done
    ]
    if target.cluster is not None and not failed:
        own = (retry_topic(group), dead_letter_topic(group))
        for topic in sorted({*own} & {*await admin.topics()}):
            await admin.delete_topic(topic, cluster=target.cluster, is_missing_ok=True)
        lines += [
            f"delete topic [{topic}] from {place} success."
            for topic in own
            for place in (f"cluster [{target.cluster}]", "NameServer")
        ]
    facts = {"deleted": group, "brokers": list(done)}
    return Reply("\n".join(lines), facts, failed) if done else Reply(failed=failed)


class Placed(NamedTuple):
    """The settings of a group on one broker."""

    cluster: str
    broker: str
    config: SubscriptionGroupConfig


@app.asks("getConsumerConfig")
async def _get_consumer_config(admin: AdminClient, group: GroupName) -> Reply:
    clusters = (await admin.cluster()).cluster_addr_table
    found = []
    for name, master in (await admin.masters()).items():
        config = (await master.groups()).get(group)
        if config is not None:
            cluster = next(key for key, names in clusters.items() if name in names)
            found.append(Placed(cluster, name, config))
    if not found:
        raise ClientError(f"no broker knows the consumer group {group}")
    lines = []
    for row in found:
        lines.append(f"{'=' * 29}{row.cluster}:{row.broker}{'=' * 29}")
        for name, value in java_text.fields(row.config, FIELDS):
            lines.append(f"{name:<40}=  {java_text.word(value)}")
    return Reply("\n".join(lines), [row._asdict() for row in found])
