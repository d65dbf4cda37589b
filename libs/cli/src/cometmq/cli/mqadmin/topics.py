# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that create, change and delete topics."""

from typing import Annotated

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin.frame import (
    Family,
    Namesrv,
    Target,
    Topic,
    TrueFalse,
    ask_each,
    broker_name_of,
    exit_if_any,
    print_done,
)
from cometmq.cli.output import AsJson
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import NoRoute
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import CometError
from cometmq.remoting.message.flags import Perm, TopicSysFlag

app = Family()

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
