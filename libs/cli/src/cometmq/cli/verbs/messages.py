# SPDX-License-Identifier: Apache-2.0
"""`cometmq message`: show a stored message and its way, find messages by key, or recall one."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from cometmq.cli.changes import add_changes
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask
from cometmq.cli.lazy import App
from cometmq.cli.messaging.message_trace import trace
from cometmq.cli.output import (
    AsJson,
    Cell,
    as_objects,
    print_facts,
    print_json,
    print_notes,
    print_rows,
)
from cometmq.cli.say import say
from cometmq.cli.verbs.views import add_view
from cometmq.client.admin import AdminClient, MessageTrack
from cometmq.client.admin.broker_messages import FOREVER_MS
from cometmq.client.admin.dead_letters import origin_message_id, origin_topic
from cometmq.client.clock import wall_ms
from cometmq.client.errors import BrokerMissing, ClientError, InvalidArgument
from cometmq.client.message import DamagedMessage, MessageExt, UnreadableMessage
from cometmq.insight import message_json, times
from cometmq.insight.browsing import FOUND_MAX, find_by_key
from cometmq.insight.changes.messages import RecallMessage
from cometmq.insight.views.messages import DelayedMessages, DelayLevels
from cometmq.insight.words import counted
from cometmq.remoting.errors import QueryNotFound, ServerError
from cometmq.remoting.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.remoting.visible import command, visible

COLUMNS: Final = ("Message id", "Broker", "Queue", "Offset", "Tag", "Keys", "Stored", "Bytes")
GROUP_COLUMNS: Final = ("Group", "State")

app = App("Show a stored message and its way, find messages by key, or recall a delayed one.")
app.command()(trace)
add_view(app, DelayedMessages, levels=DelayLevels)


@app.command()
def show(
    message_id: Annotated[
        str, typer.Argument(help="Message id (with --topic), or offset message id.")
    ],
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", help="Topic of the message; needed for a message id."),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Show a message with its body, and its state in each consumer group.

    produce and consume print message ids, which producers create; finding a message by this id also
    needs its topic. The offset message id is the position in a broker's log (offset_message_id of
    consume --json).

    \b
    CONSUMED               the group has committed an offset beyond the message
    CONSUMED_BUT_FILTERED  ... but its filter does not select the message
    NOT_CONSUME_YET        the group has not committed such an offset
    NOT_ONLINE             no member of the group is connected
    PULL                   its members pull; brokers do not know their progress
    CONSUME_BROADCASTING   each member receives it; brokers know no progress
    UNKNOWN                the broker answered with an error

    \b
    EXAMPLE
      cometmq message show 0A000001...A5A10001 -t orders
    """

    async def question(admin: AdminClient) -> tuple[list[MessageExt], list[MessageTrack]]:
        found = await find_by_id(admin, message_id, topic)
        return found, await admin.message_tracks(found[0])

    (message, *others), tracks = ask(namesrv, question)
    groups: list[list[Cell]] = [[it.consumer_group, str(it.track_type)] for it in tracks]
    if as_json:
        described = msgspec.json.decode(message_json.render(message))
        print_json({**described, "groups": as_objects(GROUP_COLUMNS, groups)})
    else:
        print_facts(_facts(message), as_json=False)
        if groups:
            say()
            print_rows(GROUP_COLUMNS, groups, as_json=False)
    print_notes(_notes(message_id, others))


@app.command()
def find(
    topic: Annotated[str, typer.Argument(help="Topic of the messages.")],
    key: Annotated[str, typer.Option("-k", "--key", help="Key that the producer has set.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only messages stored since 2026-11-20T10:00Z, or 90m (ago)."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Only messages stored before this time.")
    ] = None,
    count_max: Annotated[
        int, typer.Option("--max", min=1, help="Maximum number of messages; the newest are shown.")
    ] = FOUND_MAX,
    as_json: AsJson = False,
) -> None:
    """Find messages by key, oldest first; exit status 1 if there is none.

    A note is printed if --max leaves out older messages, or if a broker may have more messages
    stored at the same time than it returns.

    \b
    EXAMPLE
      cometmq message find orders --key order-17 --since 2d
    """
    now_ms = wall_ms()
    begin_ms = 0 if since is None else times.parsed(since, now_ms=now_ms)
    # --until is exclusive, as in other commands; brokers include the end of a period
    end_ms = FOREVER_MS if until is None else times.parsed(until, now_ms=now_ms) - 1

    async def question(admin: AdminClient) -> tuple[list[MessageExt], list[str]]:
        return await find_by_key(
            admin, topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )

    messages, notes = ask(namesrv, question)
    if as_json:
        print_json([msgspec.json.decode(message_json.render(it)) for it in messages])
    elif messages:
        print_rows(COLUMNS, [_row(message) for message in messages], as_json=False)
    print_notes(notes)
    if not messages:
        has_times = since is not None or until is not None
        raise ClientError(
            f"no message of the topic {topic} has the key {key}"
            + (" and was stored in this time" if has_times else "")
        )


add_changes(app, [RecallMessage])


async def find_by_id(admin: AdminClient, message_id: str, topic: str | None) -> list[MessageExt]:
    """Return the messages with an id, the oldest first: a resent message keeps its id."""
    if topic is not None:
        try:
            found = await admin.query_by_unique_key(topic, message_id)
        except InvalidArgument:  # an offset message id of one of the topic's brokers
            found = [await admin.view_message(message_id, topic)]
        if not found:
            raise QueryNotFound(f"no message of the topic {topic} has the id {message_id}")
        return found
    try:
        return [await admin.stored_message(message_id)]
    except (InvalidArgument, BrokerMissing, QueryNotFound, ServerError) as error:
        raise ClientError(
            f"no stored message has the offset message id {message_id}; if produce or consume has"
            f" printed this id, give the topic: {command('message show', message_id)} -t TOPIC"
        ) from error


def _notes(message_id: str, others: Sequence[MessageExt]) -> list[str]:
    if not others:
        return []
    ids = " ".join(it.offset_message_id for it in others)
    return [
        f"this id has {counted(len(others), 'further message')}, as after a retry of the producer;"
        f" to show one: {command('message show', ids.partition(' ')[0])}"
        + (f" (also {ids.partition(' ')[2]})" if " " in ids else "")
    ]


def _row(message: MessageExt) -> list[Cell]:
    return [
        message.message_id,
        message.queue.broker_name,
        message.queue.queue_id,
        message.queue_offset,
        message.tag,
        _keys(message),
        times.shown(message.store_timestamp),
        len(message.body),
    ]


def _keys(message: MessageExt) -> list[str]:
    return [key for key in message.keys if key != message.message_id]


def _facts(message: MessageExt) -> dict[str, Cell]:
    queue = message.queue
    facts: dict[str, Cell] = {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.topic,
        **_original(message),
        "tag": message.tag,
        "keys": _keys(message),
        "properties": [f"{name}={text}" for name, text in message.user_properties.items()],
        "position": f"{queue.broker_name}:{queue.queue_id}, offset {message.queue_offset}",
        "redeliveries": message.reconsume_times,
        "sent": f"{times.shown(message.born_timestamp)} by {message.born_host}",
        "stored": f"{times.shown(message.store_timestamp)} by {message.store_host}",
    }
    if isinstance(message, DamagedMessage | UnreadableMessage):
        facts["damaged"] = True
    return {**facts, "body": _body_text(message.body)}


def _original(message: MessageExt) -> dict[str, Cell]:
    """Return the message of which a retry or a dead letter is a copy."""
    if not message.queue.topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return {}
    topic = origin_topic(message)
    return {"original": command("message show", origin_message_id(message), options=("-t", topic))}


def _body_text(body: bytes) -> Any:
    """Return a body for a terminal, which must not interpret control characters."""
    try:
        return visible(body.decode().replace("\r\n", "\n"))
    except UnicodeDecodeError:
        return f"{counted(len(body), 'byte')} that are no text; --json prints them"
