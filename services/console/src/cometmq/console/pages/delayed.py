# SPDX-License-Identifier: Apache-2.0
"""Delayed messages: the number in each level, and those that are due next."""

from typing import Any, Final

from cometmq.client.clock import wall_ms
from cometmq.console.login.gate import may
from cometmq.console.login.roles import Role
from cometmq.console.web.page import NOT_READABLE, Page, Shown, View, silent_brokers
from cometmq.console.web.problems import missing
from cometmq.console.web.tables import Column
from cometmq.insight.delayed import Delayed, delay_ms, delay_texts, waiting_at
from cometmq.insight.model import DelayLevel, Unknown, known
from cometmq.insight.words import command
from cometmq.remoting.names import RETRY_PREFIX

SHOWN_MAX: Final = 200
_SECTION: Final = "/delayed"


async def overview(view: View) -> Shown:
    snapshot = await view.snapshot()
    levels = known(snapshot.delayed)
    columns: list[Column[DelayLevel]] = [
        Column(
            "delay",
            "Delay",
            lambda it: _seconds(it.delay_text),
            "duration",
            link=lambda it: view.href("/delayed/level", broker=it.broker, level=it.level),
        ),
        Column("level", "Level", lambda it: it.level, "number"),
        Column("broker", "Broker", lambda it: it.broker),
        Column("waiting", "Waiting", lambda it: it.waiting, "number"),
    ]
    table = view.table(
        levels, columns, default="delay", search=lambda it: f"{it.broker} {it.level}"
    )
    reason = snapshot.delayed if isinstance(snapshot.delayed, Unknown) else None
    return Shown(
        snapshot.delayed,
        "cometmq message delayed --levels",
        snapshot.taken_ms,
        silent_brokers(snapshot),
        {"table": table, "reason": reason, "total": sum(it.waiting for it in levels)},
    )


def _seconds(text: str) -> float | Unknown:
    found = delay_ms(text)
    return found if isinstance(found, Unknown) else found / 1_000


async def of_level(view: View) -> Shown:
    """Show the messages of one level of one broker that are due next."""
    name, level = view.needed("broker"), view.number("level", 1, low=1, high=100_000)
    masters = await view.admin().masters()
    if name not in masters:
        raise missing(f"there is no broker {name} with a master")
    master = masters[name]
    texts = await delay_texts(master)
    text = texts[level - 1] if level <= len(texts) else ""
    queue = await waiting_at(master, level, delay_ms(text), SHOWN_MAX)
    tags = await view.readable_only({it.topic for it in queue.messages})
    rows = [_row(view, it, has_tag=it.topic in tags) for it in queue.messages]
    columns = [*_COLUMNS, _RECALL] if may(view.user, Role.OPERATOR) else _COLUMNS
    table = view.table(
        rows, columns, default="due", search=lambda it: f"{it['topic']} {it['id']}",
        keep=("broker", "level"),
    )  # fmt: skip
    return Shown(
        [{key: it[key] for key in ("due", "stored", "topic", "tag", "size", "id")} for it in rows],
        command("message delayed", options=("-b", name, "--level", str(level))),
        wall_ms(),
        extra={
            "table": table,
            "is_cut": queue.is_cut,
            "shown_max": SHOWN_MAX,
        },
        title=f"Delay level {level}{f' ({text})' if text else ''} of {name}",
    )


def _row(view: View, it: Delayed, *, has_tag: bool) -> dict[str, Any]:
    message, topic = it.message, it.topic
    return {
        "due": it.due_ms,
        "stored": message.store_timestamp,
        "topic": topic,
        "tag": (message.tag or "") if has_tag else NOT_READABLE,
        "size": it.size,
        "id": message.message_id,
        "link": view.href("/message", topic=topic, id=message.offset_message_id),
        "recall": ""
        if topic.startswith(RETRY_PREFIX)
        else view.href("/delayed/recall", message_id=message.message_id, topic=topic),
    }


_COLUMNS: Final[list[Column[dict[str, Any]]]] = [
    Column("due", "Due", lambda it: it["due"], "moment", link=lambda it: it["link"]),
    Column("stored", "Stored", lambda it: it["stored"], "moment"),
    Column("topic", "Topic", lambda it: it["topic"]),
    Column("tag", "Tag", lambda it: it["tag"]),
    Column("size", "Size", lambda it: it["size"], "size"),
    Column("id", "Message id", lambda it: it["id"]),
]
_RECALL: Final[Column[dict[str, Any]]] = Column(
    "recall",
    "Change",
    lambda it: "Recall …" if it["recall"] else "",
    link=lambda it: it["recall"],
)

PAGES: Final = (
    Page(_SECTION, "Delayed messages", "delayed.html", overview, menu="Delayed"),
    Page("/delayed/level", "Delay level", "delay_level.html", of_level, section=_SECTION),
)
