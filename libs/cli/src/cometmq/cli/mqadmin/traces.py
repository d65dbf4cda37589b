# SPDX-License-Identifier: Apache-2.0
"""mqadmin's queryMsgTraceById."""

from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask
from cometmq.cli.mqadmin.frame import Column, Family, Namesrv, print_table, time_column
from cometmq.cli.output import AsJson, print_errors
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError
from cometmq.client.message import MessageExt
from cometmq.client.trace import CorruptTrace, Pub, SubAfter, decode_trace
from cometmq.remoting.names import TRACE_TOPIC

app = Family()


class View(msgspec.Struct, frozen=True):
    """One line of a message's trace."""

    kind: str
    group: str
    client_host: str
    timestamp: int
    cost_ms: int
    is_success: bool


@app.named("queryMsgTraceById")
def query_msg_trace_by_id(
    message_id: Annotated[str, typer.Option("-i", "--msgId", help="Unique key of the message.")],
    topic: Annotated[
        str, typer.Option("-t", "--traceTopic", help="Topic with the traces.")
    ] = TRACE_TOPIC,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the producer and the consumers of a message, with times and results."""

    async def question(admin: AdminClient) -> list[View]:
        messages = await admin.query_by_key(topic, message_id, end_ms=wall_ms())
        return [view for message in messages for view in _views(message, message_id)]

    views = ask(namesrv, question)
    if not views:
        raise ClientError(f"the topic {topic} has no trace of the message {message_id}")
    if as_json:
        print_table(_columns("group", "time"), _rows(views), as_json=True)
        return
    for sent in (view for view in views if view.kind == "Pub"):
        print_table(_columns("#ProducerGroup", "#SendTime"), _rows([sent]), as_json=False)
        say()
    consumed = [view for view in views if view.kind == "Sub"]
    for group in dict.fromkeys(view.group for view in consumed):
        rows = _rows([view for view in consumed if view.group == group])
        print_table(_columns("#ConsumerGroup", "#ConsumerTime"), rows, as_json=False)
        say()


def _views(message: MessageExt, message_id: str) -> Iterator[View]:
    host = message.born_host.rpartition(":")[0]
    try:
        records = decode_trace(message.body)
    except CorruptTrace as error:  # every sender of the topic can write anything
        print_errors([f"the trace {message.offset_message_id} cannot be read: {error}"])
        return
    for record in records:
        if record.message_id != message_id:
            continue
        if isinstance(record, Pub):
            yield View(
                "Pub", record.group, host, record.timestamp, record.cost_ms, record.is_success
            )
        elif isinstance(record, SubAfter):
            group = record.group or ""
            yield View("Sub", group, host, record.timestamp, record.cost_ms, record.is_success)


def _columns(group: str, time: str) -> tuple[Column, ...]:
    return (
        Column("type", "#Type", "%-10s "),
        Column("group", group, "%-20s "),
        Column("client_host", "#ClientHost", "%-20s "),
        time_column("time", time, "%-20s "),
        Column("cost_ms", "#CostTimes", "%-10s ", lambda cost: f"{cost}ms"),
        Column("status", "#Status", "%-10s"),
    )


def _rows(views: list[View]) -> list[tuple[str, str, str, int, int, str]]:
    return [
        (
            view.kind,
            view.group,
            view.client_host,
            view.timestamp,
            view.cost_ms,
            "success" if view.is_success else "failed",
        )
        for view in views
    ]
