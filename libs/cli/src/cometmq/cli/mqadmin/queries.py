# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that find messages."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Final

import msgspec

from cometmq.cli.connecting import wrong_usage
from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.frame import (
    Column,
    Family,
    Reply,
    Topic,
    objects,
    table,
    text_of,
    time_column,
)
from cometmq.cli.mqadmin.java_text import found_text
from cometmq.cli.option_sets import opt
from cometmq.cli.output import print_errors, print_notes
from cometmq.client.admin import AdminClient
from cometmq.client.clock import wall_ms
from cometmq.client.errors import BrokerMissing, ClientError, InvalidArgument
from cometmq.client.message import MessageExt
from cometmq.client.trace import CorruptTrace, Pub, SubAfter, decode_trace
from cometmq.insight.browsing import find_some_by_key
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


@app.asks("queryMsgTraceById")
async def _query_msg_trace_by_id(
    admin: AdminClient,
    message_id: Annotated[str, opt("-i", "--msgId", "Unique key of the message.")],
    topic: Annotated[str, opt("-t", "--traceTopic", "Topic with the traces.")] = TRACE_TOPIC,
) -> Reply:
    """Show the producer and the consumers of a message, with times and results."""
    messages = await admin.query_by_key(topic, message_id, end_ms=wall_ms())
    views = [view for message in messages for view in _views(message, message_id)]
    if not views:
        raise ClientError(f"the topic {topic} has no trace of the message {message_id}")
    by_group: dict[str, list[View]] = {}
    for it in (it for it in views if it.kind == "Sub"):
        by_group.setdefault(it.group, []).append(it)
    sent = _columns("#ProducerGroup", "#SendTime")
    tables = [text_of(sent, _rows([it])) for it in views if it.kind == "Pub"]
    received = _columns("#ConsumerGroup", "#ConsumerTime")
    tables += [text_of(received, _rows(it)) for it in by_group.values()]
    text = "".join(f"{it}\n\n" for it in tables)
    return Reply(text.removesuffix("\n"), objects(_columns("group", "time"), _rows(views)))


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


def _rows(views: list[View]) -> list[tuple[object, ...]]:
    return [
        (
            *(view.kind, view.group, view.client_host, view.timestamp, view.cost_ms),
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

Group = Annotated[str | None, opt("-g", "--consumerGroup", "Redeliver the message to this group.")]
ClientId = Annotated[
    str | None, opt("-d", "--clientId", "Member of the group to redeliver the message to.")
]


@app.asks("queryMsgById")
async def _query_msg_by_id(
    admin: AdminClient,
    message_ids: Annotated[str, opt("-i", "--msgId", "Offset message ids, comma-separated.")],
    group: Group = None,
    client_id: ClientId = None,
    resend: Annotated[
        str | None, opt("-s", "--sendMessage", "If true, resend the message.")
    ] = None,
    _unit_name: Annotated[
        str | None, opt("-u", "--unitName", "Ignored; accepted for compatibility with mqadmin.")
    ] = None,
) -> Reply:
    """Show, redeliver or resend messages by offset message id."""
    ids = [text.strip() for text in message_ids.split(",") if text.strip()]
    _check_ids(ids)
    is_redelivery = group is not None and client_id is not None
    if not is_redelivery and resend is not None and resend.lower() != "true":
        return Reply()
    messages = [await _stored(admin, text) for text in ids]
    if group is not None and client_id is not None:
        return await _consumed(admin, group, client_id, messages)
    if resend is None:
        return await _found(admin, messages)
    sent = [await admin.resend(it) for it in messages]
    lines = [
        f"prepare resend msg. originalMsgId={text}{java_text.send_result(result)}"
        for text, result in zip(ids, sent, strict=True)
    ]
    return Reply("\n".join(lines), sent)


@app.asks("queryMsgByUniqueKey")
async def _query_msg_by_unique_key(
    admin: AdminClient,
    topic: Topic,
    message_id: Annotated[str, opt("-i", "--msgId", "Unique key of the message.")],
    group: Group = None,
    client_id: ClientId = None,
    *,
    show_all: Annotated[
        bool, opt("-a", "--showAll", "Show all messages with this key, not only the first.")
    ] = False,
) -> Reply:
    if group is not None and client_id is not None:
        message = await admin.view_message(message_id, topic)
        return await _consumed(admin, group, client_id, [message])
    try:
        messages = await admin.query_by_unique_key(topic, message_id)
    except InvalidArgument as error:
        raise ClientError(
            f"{message_id} is an offset message id, not a unique key: use cometmq queryMsgById"
            f" -i {message_id}"
        ) from error
    if not messages:
        raise QueryNotFound(f"no message of the topic {topic} has the unique key {message_id}")
    return await _found(admin, messages if show_all else messages[:1], with_id=False)


@app.asks("queryMsgByKey")
async def _query_msg_by_key(
    admin: AdminClient,
    topic: Topic,
    key: Annotated[str, opt("-k", "--msgKey", "Key of the messages.")],
) -> Reply:
    """List up to 64 messages with a given key."""
    messages, notes = await find_some_by_key(admin, topic, key)
    rows = [(m.message_id, m.queue.queue_id, m.queue_offset) for m in messages]
    print_notes(notes)
    failed = [] if messages else [f"no message of the topic {topic} has the key {key}"]
    return table(_KEY_COLUMNS, rows)._replace(failed=failed)


@app.asks("queryMsgByOffset")
async def _query_msg_by_offset(
    admin: AdminClient,
    topic: Topic,
    broker: Annotated[str, opt("-b", "--brokerName", "Name of the broker.")],
    queue_id: Annotated[int, opt("-i", "--queueId", "Number of the queue.", min=0)],
    offset: Annotated[int, opt("-o", "--offset", "Offset in the queue.", min=0)],
) -> Reply:
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
    return await _found(admin, pulled.messages)


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


async def _found(
    admin: AdminClient, messages: Sequence[MessageExt], *, with_id: bool = True
) -> Reply:
    found = [(message, await admin.message_tracks(message)) for message in messages]
    facts = [{**java_text.as_object(message), "tracks": tracks} for message, tracks in found]
    return Reply(partial(found_text, found, with_id=with_id), facts)


async def _consumed(
    admin: AdminClient, group: str, client_id: str, messages: Sequence[MessageExt]
) -> Reply:
    results = [await admin.consume_directly(group, client_id, it) for it in messages]
    lines = [
        java_text.bracketed("ConsumeMessageDirectlyResult", java_text.fields(it, _RESULT_FIELDS))
        for it in results
    ]
    return Reply("\n".join(lines), results)
