# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for the settings of consumer groups."""

from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Final, NamedTuple

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.frame import (
    Answers,
    Family,
    Namesrv,
    Target,
    TrueFalse,
    ask_each,
    exit_if_any,
    print_done,
)
from cometmq.cli.output import AsJson, print_json
from cometmq.cli.say import say
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
    "namesrv",
    _NETTY | {"rocketmqHome", "productEnvName", "returnOrderTopicConfigToBroker"},
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

GroupName = Annotated[str, typer.Option("-g", "--groupName", help="Name of the consumer group.")]

# Settings of a group
Consume = Annotated[
    TrueFalse, typer.Option("-s", "--consumeEnable", help="Whether the group may consume.")
]
FromMin = Annotated[
    TrueFalse,
    typer.Option("-m", "--consumeFromMinEnable", help="Start at the first message."),
]
Broadcast = Annotated[
    TrueFalse,
    typer.Option("-d", "--consumeBroadcastEnable", help="Allow broadcasting."),
]
RetryQueues = Annotated[
    int, typer.Option("-q", "--retryQueueNums", min=0, help="Queues of its retry topic.")
]
RetryMax = Annotated[
    int,
    typer.Option("-r", "--retryMaxTimes", help="Retries before the dead letter."),
]
BrokerId = Annotated[
    int, typer.Option("-i", "--brokerId", min=0, help="Id of the broker to read from.")
]
SlowId = Annotated[
    int,
    typer.Option(
        "-w",
        "--whichBrokerWhenConsumeSlowly",
        min=0,
        help="Id of that for groups far behind.",
    ),
]
Notify = Annotated[
    TrueFalse,
    typer.Option("-a", "--notifyConsumerIdsChanged", help="Notify members of others."),
]


class Placed(NamedTuple):
    """The settings of a group on one broker."""

    cluster: str
    broker: str
    config: SubscriptionGroupConfig


@app.named("updateSubGroup")
def update_sub_group(  # one parameter per option
    group: GroupName,
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    consume: Consume = "true",
    from_min: FromMin = "false",
    broadcast: Broadcast = "false",
    retry_queues: RetryQueues = 1,
    retry_max: RetryMax = 16,
    broker_id: BrokerId = 0,
    slow_id: SlowId = 1,
    notify: Notify = "true",
    *,
    as_json: AsJson = False,
) -> None:
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

    async def question(admin: AdminClient) -> Answers[None]:
        check_group(group)
        masters = await target.masters(admin)
        return await ask_each(masters, lambda one: one.create_group(config))

    done, failures = ask(namesrv, question)
    addresses = list(done)
    lines = [f"create subscription group to {address} success." for address in addresses]
    lines.append(java_text.bracketed("SubscriptionGroupConfig", java_text.fields(config, FIELDS)))
    if addresses:
        print_done("\n".join(lines), {"group": config, "brokers": addresses}, as_json=as_json)
    exit_if_any(failures)


@app.named("deleteSubGroup")
def delete_sub_group(
    group: GroupName,
    target: Target,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    remove_offset: Annotated[
        TrueFalse, typer.Option("-r", "--removeOffset", help="Whether to delete its offsets.")
    ] = "false",
    *,
    as_json: AsJson = False,
) -> None:
    """Delete a consumer group and, with -c, its retry and dead-letter topics."""

    async def question(admin: AdminClient) -> Answers[None]:
        masters = await target.masters(admin)
        is_removing = remove_offset == "true"
        found = await ask_each(
            masters, lambda one: one.delete_group(group, remove_offsets=is_removing)
        )
        if target.cluster is not None and not found[1]:
            own = {retry_topic(group), dead_letter_topic(group)}
            for topic in sorted(own.intersection(await admin.topics())):
                await admin.delete_topic(topic, cluster=target.cluster, is_missing_ok=True)
        return found

    done, failures = ask(namesrv, question)
    addresses = list(done)
    inside = "" if target.cluster is None else f" in cluster [{target.cluster}]"
    lines = [
        f"delete subscription group [{group}] from broker [{address}]{inside} success."
        for address in addresses
    ]
    if target.cluster is not None and not failures:
        lines += [
            f"delete topic [{topic}] from {place} success."
            for topic in (retry_topic(group), dead_letter_topic(group))
            for place in (f"cluster [{target.cluster}]", "NameServer")
        ]
    if addresses:
        print_done("\n".join(lines), {"deleted": group, "brokers": addresses}, as_json=as_json)
    exit_if_any(failures)


@app.named("getConsumerConfig")
def get_consumer_config(
    group: GroupName, namesrv: Namesrv = DEFAULT_NAMESRV, *, as_json: AsJson = False
) -> None:
    """Show the settings of a consumer group on every broker that has it."""
    found = ask(namesrv, lambda admin: _placed(admin, group))
    if as_json:
        print_json([row._asdict() for row in found])
        return
    for row in found:
        line = "=" * 29
        say(f"{line}{row.cluster}:{row.broker}{line}")
        for name, value in java_text.fields(row.config, FIELDS):
            say(f"{name:<40}=  {java_text.word(value)}")


async def _placed(admin: AdminClient, group: str) -> list[Placed]:
    clusters = (await admin.cluster()).cluster_addr_table
    found = []
    for name, master in (await admin.masters()).items():
        config = (await master.groups()).get(group)
        if config is not None:
            cluster = next(key for key, names in clusters.items() if name in names)
            found.append(Placed(cluster, name, config))
    if not found:
        raise ClientError(f"no broker knows the consumer group {group}")
    return found
