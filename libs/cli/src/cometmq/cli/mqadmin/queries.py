# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that find messages."""

from collections.abc import Iterator
from typing import Annotated, Final

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask, wrong_usage
from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.frame import Column, Family, Namesrv, Topic, print_table, time_column
from cometmq.cli.mqadmin.java_text import Found, print_found
from cometmq.cli.output import AsJson, print_errors, print_json, print_notes
from cometmq.cli.say import say
from cometmq.client import SendResult
from cometmq.client.admin import AdminClient
from cometmq.client.clock import wall_ms
from cometmq.client.errors import BrokerMissing, ClientError, InvalidArgument
from cometmq.client.message import MessageExt
from cometmq.client.trace import CorruptTrace, Pub, SubAfter, decode_trace
from cometmq.insight.key_search import find_some_by_key
from cometmq.remoting.bodies.running_info import ConsumeMessageDirectlyResult
from cometmq.remoting.errors import QueryNotFound
from cometmq.remoting.message.ids import parse_offset_message_id
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


_KEY_COLUMNS: Final = (
    Column("message_id", "#Message ID", "%-50s "),
    Column("queue", "#QID", "%4d "),
    Column("offset", "#Offset", "%40d"),
)
_RESULT_FIELDS: Final = ("order", "autoCommit", "consumeResult", "remark", "spentTimeMills")

Group = Annotated[
    str | None, typer.Option("-g", "--consumerGroup", help="Redeliver the message to this group.")
]
ClientId = Annotated[
    str | None,
    typer.Option("-d", "--clientId", help="Member of the group to redeliver the message to."),
]


@app.named("queryMsgById")
def query_msg_by_id(
    message_ids: Annotated[
        str, typer.Option("-i", "--msgId", help="Offset message ids, comma-separated.")
    ],
    group: Group = None,
    client_id: ClientId = None,
    resend: Annotated[
        str | None, typer.Option("-s", "--sendMessage", help="If true, resend the message.")
    ] = None,
    _unit_name: Annotated[
        str | None,
        typer.Option("-u", "--unitName", help="Ignored; accepted for compatibility with mqadmin."),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show, redeliver or resend messages by offset message id."""
    ids = [text.strip() for text in message_ids.split(",") if text.strip()]
    _check_ids(ids)
    if group is not None and client_id is not None:
        results = ask(namesrv, lambda admin: _consumed(admin, group, client_id, ids))
        _print_results(results, as_json=as_json)
    elif resend is not None:
        if resend.lower() == "true":
            sent = ask(namesrv, lambda admin: _resent(admin, ids))
            _print_sent(ids, sent, as_json=as_json)
    else:
        found = ask(namesrv, lambda admin: _tracked(admin, ids))
        print_found(found, as_json=as_json)


@app.named("queryMsgByUniqueKey")
def query_msg_by_unique_key(
    topic: Topic,
    message_id: Annotated[str, typer.Option("-i", "--msgId", help="Unique key of the message.")],
    group: Group = None,
    client_id: ClientId = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    show_all: Annotated[
        bool,
        typer.Option(
            "-a", "--showAll", help="Show all messages with this key, not only the first."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show or redeliver a message by its unique key."""
    if group is not None and client_id is not None:

        async def consumed(admin: AdminClient) -> list[ConsumeMessageDirectlyResult]:
            message = await admin.view_message(message_id, topic)
            return [await admin.consume_directly(group, client_id, message)]

        _print_results(ask(namesrv, consumed), as_json=as_json)
        return

    async def question(admin: AdminClient) -> Found:
        try:
            messages = await admin.query_by_unique_key(topic, message_id)
        except InvalidArgument as error:
            raise ClientError(
                f"{message_id} is an offset message id, not a unique key: use cometmq queryMsgById"
                f" -i {message_id}"
            ) from error
        if not messages:
            raise QueryNotFound(f"no message of the topic {topic} has the unique key {message_id}")
        return await _with_tracks(admin, messages if show_all else messages[:1])

    print_found(ask(namesrv, question), as_json=as_json, with_id=False)


@app.named("queryMsgByKey")
def query_msg_by_key(
    topic: Topic,
    key: Annotated[str, typer.Option("-k", "--msgKey", help="Key of the messages.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """List up to 64 messages with a given key."""
    messages, notes = ask(namesrv, lambda admin: find_some_by_key(admin, topic, key))
    rows = [(m.message_id, m.queue.queue_id, m.queue_offset) for m in messages]
    print_table(_KEY_COLUMNS, rows, as_json=as_json)
    print_notes(notes)
    if not rows:
        raise ClientError(f"no message of the topic {topic} has the key {key}")


@app.named("queryMsgByOffset")
def query_msg_by_offset(
    topic: Topic,
    broker: Annotated[str, typer.Option("-b", "--brokerName", help="Name of the broker.")],
    queue_id: Annotated[int, typer.Option("-i", "--queueId", min=0, help="Number of the queue.")],
    offset: Annotated[int, typer.Option("-o", "--offset", min=0, help="Offset in the queue.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show the message at an offset of a queue."""

    async def question(admin: AdminClient) -> Found:
        await admin.route(topic)
        master = (await admin.masters()).get(broker)
        if master is None:
            raise InvalidArgument(f"there is no master {broker}")
        pulled = await master.pull(topic, queue_id, offset, count_max=1)
        if not pulled.messages:
            raise QueryNotFound(
                f"{topic} has no message at offset {offset} of queue {queue_id}: "
                f"it begins at {pulled.min_offset} and ends before {pulled.max_offset}"
            )
        return await _with_tracks(admin, pulled.messages)

    print_found(ask(namesrv, question), as_json=as_json)


# -- queries ----------------------------------------------------------------------------------


def _check_ids(ids: list[str]) -> None:
    try:
        for text in ids:
            parse_offset_message_id(text)
    except ValueError as error:
        raise wrong_usage(
            f"{error}; to find a message by its unique key: cometmq queryMsgByUniqueKey -t TOPIC"
        ) from error
    if not ids:
        raise wrong_usage("-i: give at least one id")


async def _tracked(admin: AdminClient, ids: list[str]) -> Found:
    return await _with_tracks(admin, [await _stored(admin, text) for text in ids])


async def _stored(admin: AdminClient, message_id: str) -> MessageExt:
    """Return the message with an offset message id; if its broker is unknown, the id may be a
    unique key, which has the same length.
    """
    try:
        return await admin.stored_message(message_id)
    except BrokerMissing as error:
        raise BrokerMissing(
            f"{message_id} is no offset message id of this cluster; if it is a unique key"
            f" (the message id that produce and consume print), use: cometmq queryMsgByUniqueKey"
            f" -t TOPIC -i {message_id}"
        ) from error


async def _with_tracks(admin: AdminClient, messages: list[MessageExt]) -> Found:
    return [(message, await admin.message_tracks(message)) for message in messages]


async def _consumed(
    admin: AdminClient, group: str, client_id: str, ids: list[str]
) -> list[ConsumeMessageDirectlyResult]:
    messages = [await _stored(admin, text) for text in ids]
    return [await admin.consume_directly(group, client_id, message) for message in messages]


async def _resent(admin: AdminClient, ids: list[str]) -> list[SendResult]:
    return [await admin.resend(await _stored(admin, text)) for text in ids]


def _print_results(results: list[ConsumeMessageDirectlyResult], *, as_json: bool) -> None:
    if as_json:
        print_json(results)
        return
    for result in results:
        pairs = java_text.fields(result, _RESULT_FIELDS)
        say(java_text.bracketed("ConsumeMessageDirectlyResult", pairs))


def _print_sent(ids: list[str], sent: list[SendResult], *, as_json: bool) -> None:
    if as_json:
        print_json(sent)
        return
    for text, result in zip(ids, sent, strict=True):
        say(f"prepare resend msg. originalMsgId={text}{java_text.send_result(result)}")
