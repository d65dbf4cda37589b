# SPDX-License-Identifier: Apache-2.0
"""Messages: finds them by id, key, offset or time, follows a topic, and shows the life of one."""

from typing import Any, Final

import msgspec

from cometmq.client.admin.broker_messages import FOREVER_MS
from cometmq.client.clock import wall_ms
from cometmq.client.message import DamagedMessage, MessageExt, UnreadableMessage
from cometmq.console.pages.bodies import body_of, format_of, schema_of
from cometmq.console.web.page import Download, Page, Shown, View, silent_brokers
from cometmq.console.web.problems import missing
from cometmq.insight import message_json
from cometmq.insight.browsing import COUNT_MAX, Browsed, Wanted, browse, find_by_key
from cometmq.insight.decode import Format, decode
from cometmq.insight.life import life_of, place_of
from cometmq.insight.model import Topic, TopicKind, known
from cometmq.insight.views.view import Column, address
from cometmq.insight.words import command
from cometmq.remoting.errors import QueryNotFound
from cometmq.remoting.message.properties import PropertyKey
from cometmq.runtime.acl.accounts import SHARED_TOPICS

PREVIEW_CHARS: Final = 120
NAMES_MAX: Final = 1_000
"""The most topics that the field offers while a name is typed."""
TAIL_S: Final = 2
_KEPT: Final = (
    "topic", "id", "key", "since", "until", "broker", "queue", "offset", "tag", "sql", "count",
)  # fmt: skip
_OPTIONS: Final = {
    "tag": "--tag", "sql": "--filter", "since": "--from", "until": "--until", "offset": "--offset",
}  # fmt: skip
"""The options of `cometmq consume` by argument of the page."""


async def search(view: View) -> Shown:
    """Show the search form, and the messages found."""
    topic = view.text("topic")
    given = {name: view.text(name) for name in _KEPT}
    narrowed = any(text for name, text in given.items() if name != "topic")
    extra: dict[str, Any] = {"args": given, "is_narrowed": narrowed}
    if not topic:
        return await _topics(view, extra)
    await view.check_readable(topic)
    found, command = await _found(view, topic)
    rows = [_row(view, message) for message in found.messages]
    table = view.table(
        rows, _COLUMNS, default="-stored", search=lambda it: it["search"], keep=_KEPT
    )
    data = [_data(message) for message in found.messages]
    return Shown(
        data,
        command,
        wall_ms(),
        found.unanswered,
        {**extra, "found": found, "table": table},
        refresh_s=TAIL_S,
    )


async def _topics(view: View, extra: dict[str, Any]) -> Shown:
    """Show the topics to choose from."""
    snapshot = await view.snapshot()
    own = [it for it in known(snapshot.topics) if it.kind is TopicKind.NORMAL]
    columns: list[Column[Topic]] = [
        Column("name", "Topic", lambda it: it.name,
               link=lambda it: address("/messages", topic=it.name)),
        Column("messages", "Messages", lambda it: it.messages, "number"),
        Column("in", "In", lambda it: it.in_per_s, "rate", help="Messages stored per second"),
    ]  # fmt: skip
    table = view.table(own, columns, default="name", search=lambda it: it.name, name="topic_")
    names = sorted(it.name for it in own)[:NAMES_MAX]
    return Shown(
        [],
        "cometmq consume TOPIC --last 50",
        snapshot.taken_ms,
        silent_brokers(snapshot),
        {**extra, "found": None, "topics": table, "names": names},
    )


async def _found(view: View, topic: str) -> tuple[Browsed, str]:
    admin = view.admin()
    if message_id := view.text("id"):
        message = await _one(view, topic, message_id)
        shown = command("message show", message_id, options=("-t", topic))
        return Browsed([message], [], {}), shown
    begin_ms, end_ms = _moment(view, "since"), _moment(view, "until")
    if key := view.text("key"):
        messages, notes = await find_by_key(
            admin,
            topic,
            key,
            count_max=_count(view),
            begin_ms=begin_ms or 0,
            end_ms=FOREVER_MS if end_ms is None else end_ms - 1,
        )
        period = [
            word for name in ("since", "until") if view.text(name)
            for word in (f"--{name}", view.text(name))
        ]  # fmt: skip
        shown = command("message find", topic, options=("--key", key, *period))
        return Browsed(messages, notes, {}), shown
    wanted = Wanted(
        topic=topic,
        broker=view.text("broker"),
        queue_id=view.number("queue", 0) if view.text("queue") else None,
        offset=view.number("offset", 0) if view.text("offset") else None,
        begin_ms=begin_ms,
        end_ms=end_ms,
        tag=view.text("tag"),
        sql=view.text("sql", length_max=4_000),
        count_max=_count(view),
    )
    return await browse(admin, wanted), _command(view, topic)


def _command(view: View, topic: str) -> str:
    given = {name: view.text(name, length_max=4_000) for name in _OPTIONS}
    options = [word for name, text in given.items() if text for word in (_OPTIONS[name], text)]
    if view.text("broker") and view.text("queue"):
        options += ["--queue", f"{view.text('broker')}:{view.text('queue')}"]
    if given["since"] or given["offset"]:
        options += ["--max", str(_count(view))]
        options += [] if given["until"] else ["--no-follow"]
    elif not given["until"]:
        options += ["--last", str(_count(view))]
    return command("consume", topic, options=options)


def _count(view: View) -> int:
    return view.number("count", 50, low=1, high=COUNT_MAX)


def _moment(view: View, name: str) -> int | None:
    return view.moment(name, now_ms=wall_ms())


async def _one(view: View, topic: str, message_id: str) -> MessageExt:
    """Return a message that the user may read; an offset message id may lead to another topic."""
    try:
        found = await view.admin().view_message(message_id, topic)
    except QueryNotFound as error:
        raise missing(str(error)) from error
    real = found.topic
    if real in SHARED_TOPICS:  # in other topics, the property says what its sender wanted
        real = found.properties.get(PropertyKey.REAL_TOPIC, real)
    await view.check_readable(real)
    return found


def _row(view: View, message: MessageExt) -> dict[str, Any]:
    shown = decode(message.body, chars_max=4 * PREVIEW_CHARS)
    text = " ".join(shown.text.split())[:PREVIEW_CHARS]
    own = [key for key in message.keys if key != message.message_id]
    return {
        "stored": message.store_timestamp,
        "place": place_of(message),
        "tag": message.tag or "",
        "keys": own,
        "size": len(message.body),
        "body": f"{text} ({shown.format})" if text else "(empty)",
        "id": message.message_id,
        "link": address("/message", topic=message.topic, id=message.offset_message_id),
        "search": f"{text} {message.tag or ''} {' '.join(own)} {message.message_id}",
    }


_COLUMNS: Final[list[Column[dict[str, Any]]]] = [
    Column("stored", "Stored", lambda it: it["stored"], "moment", link=lambda it: it["link"]),
    Column("place", "Queue", lambda it: it["place"], "short"),
    Column("tag", "Tag", lambda it: it["tag"]),
    Column("keys", "Keys", lambda it: it["keys"], "id"),
    Column("size", "Size", lambda it: it["size"], "size"),
    Column("body", "Body", lambda it: it["body"], "prose"),
    Column("id", "Message id", lambda it: it["id"], "id"),
]


def _data(message: MessageExt) -> Any:
    return msgspec.json.decode(message_json.render(message))


async def one(view: View) -> Shown:
    """Show one message: its body in the wanted form, its properties, and its life."""
    topic, message_id = view.needed("topic"), view.needed("id")
    message = await _one(view, topic, message_id)
    if view.is_set("download"):
        name = "".join(it if it.isalnum() and it.isascii() else "_" for it in message.message_id)
        return Shown(None, "", download=Download(message.body, f"{name}.bin"))
    body = body_of(message.body, format_of(view), schema_of(view))
    life = await life_of(view.admin(), message)
    damage = ""
    if isinstance(message, DamagedMessage):
        damage = "The body differs from the one that the broker stored: its CRC does not match."
    elif isinstance(message, UnreadableMessage):
        damage = "The body cannot be decompressed; this is what is stored."
    own = message.user_properties
    return Shown(
        {**_data(message), "decoded": body.decoded, "life": life},
        " && ".join(
            [
                command("message show", message.message_id, options=("-t", topic)),
                command("message trace", message.message_id, options=("-t", topic)),
            ]
        ),
        wall_ms(),
        extra={
            "message": message,
            "facts": _facts(message),
            "body": body,
            "life": life,
            "damage": damage,
            "own": own,
            "system": {key: it for key, it in message.properties.items() if key not in own},
            "topic": topic,
            "formats": Format,
            "id": message_id,
        },
        title=f"Message {message.message_id}",
    )


def _facts(message: MessageExt) -> list[tuple[str, Any, str]]:
    return [
        ("Topic", message.topic, "text"),
        ("Tag", message.tag or "", "text"),
        ("Keys", [key for key in message.keys if key != message.message_id], "text"),
        ("Queue and offset", place_of(message), "text"),
        ("Size", len(message.body), "size"),
        ("Sent", message.born_timestamp, "moment"),
        ("Sent from", message.born_host, "text"),
        ("Stored", message.store_timestamp, "moment"),
        ("Stored by", message.store_host, "text"),
        ("Earlier deliveries", message.reconsume_times, "number"),
        ("Offset message id", message.offset_message_id, "text"),
    ]


PAGES: Final = (
    Page("/messages", "Messages", "messages.html", search, menu="Messages"),
    Page("/message", "Message", "message.html", one, section="/messages"),
)
