# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands about topics."""

from typing import Annotated

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin.frame import (
    BrokerAddr,
    ClusterName,
    Family,
    Namesrv,
    Topic,
    TrueFalse,
    check_target,
    print_done,
    targets,
)
from cometmq.cli.output import AsJson
from cometmq.client.admin import AdminClient
from cometmq.client.message import check_topic
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.message.flags import TopicSysFlag

app = Family()


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
    perm: Annotated[
        int, typer.Option("-p", "--perm", help="What clients may do: 2 write, 4 read, 6 both.")
    ] = 6,
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
    config = TopicConfig(
        topic_name=topic,
        read_queue_nums=read_queues,
        write_queue_nums=write_queues,
        perm=perm,
        order=order == "true",
        topic_sys_flag=(TopicSysFlag.UNIT if unit == "true" else 0)
        | (TopicSysFlag.UNIT_SUB if has_unit_sub == "true" else 0),
    )

    async def question(admin: AdminClient) -> list[str]:
        check_topic(topic)
        masters = await targets(admin, broker, cluster)
        for master in masters:
            await master.create_topic(config)
        return [master.address for master in masters]

    addresses = ask(namesrv, question)
    lines = [f"create topic to {address} success." for address in addresses]
    print_done("\n".join(lines), {"topic": topic, "brokers": addresses}, as_json=as_json)
