# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for the queues of ordered topics and their allocation."""

from typing import Annotated, Literal

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask, wrong_usage
from cometmq.cli.mqadmin.frame import Family, Namesrv, Topic, print_done
from cometmq.cli.output import AsJson
from cometmq.client.admin import AdminClient
from cometmq.client.consume.queues.rebalance import AllocateAveragely
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.queues import MessageQueue

app = Family()


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
