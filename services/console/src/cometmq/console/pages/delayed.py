# SPDX-License-Identifier: Apache-2.0
"""Delayed messages: what waits in each level, and which are due next."""

import re
from typing import Any, Final

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.message import MessageExt
from cometmq.console.web.page import Page, Shown, View, silent_brokers
from cometmq.console.web.problems import missing
from cometmq.console.web.tables import Column
from cometmq.insight.model import DelayLevel, Unknown, known
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import SCHEDULE_TOPIC

SHOWN_MAX: Final = 200
_SECTION: Final = "/delayed"
_DELAY: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def delay_ms(text: str) -> int | Unknown:
    """Return the delay of a level, such as `10s`."""
    found = _DELAY.fullmatch(text)
    if found is None:
        return Unknown("the broker's messageDelayLevel does not have this level")
    return int(found[1]) * _UNIT_MS[found[2]]


async def overview(view: View) -> Shown:
    """Show the levels in which messages wait."""
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
        "cometmq check broker",
        snapshot.taken_ms,
        silent_brokers(snapshot),
        {"table": table, "reason": reason, "total": sum(it.waiting for it in levels)},
    )


def _seconds(text: str) -> float | Unknown:
    found = delay_ms(text)
    return found if isinstance(found, Unknown) else found / 1_000


async def of_level(view: View) -> Shown:
    """Show the next messages of one level of one broker, by the time at which they are due."""
    name, level = view.needed("broker"), view.number("level", 1, low=1, high=100_000)
    masters = await view.admin().masters()
    if name not in masters:
        raise missing(f"there is no broker {name} with a master")
    master = masters[name]
    text = await _delay_text(master, level)
    delay = delay_ms(text)
    messages = await _waiting(master, level)
    rows = [_row(view, it, delay) for it in messages]
    table = view.table(
        rows, _COLUMNS, default="due", search=lambda it: f"{it['topic']} {it['id']}",
        keep=("broker", "level"),
    )  # fmt: skip
    return Shown(
        [{key: it[key] for key in ("due", "stored", "topic", "tag", "size", "id")} for it in rows],
        f"cometmq mqadmin queryCq -t {SCHEDULE_TOPIC} -q {level - 1} -i 0 -b {master.address}",
        wall_ms(),
        extra={
            "table": table,
            "is_cut": len(messages) >= SHOWN_MAX,
            "shown_max": SHOWN_MAX,
            "delay": delay,
        },
        title=f"Delay level {level}{f' ({text})' if text else ''} of {name}",
    )


async def _delay_text(master: BrokerAdmin, level: int) -> str:
    texts = (await master.config()).get("messageDelayLevel", "").split()
    return texts[level - 1] if level <= len(texts) else ""


async def _waiting(master: BrokerAdmin, level: int) -> list[MessageExt]:
    place = (SCHEDULE_TOPIC, level - 1)
    offsets = (await master.delay_offsets()).offset_table
    offset = max(offsets.get(level, 0), await master.min_offset(*place))
    end = await master.max_offset(*place)
    found: list[MessageExt] = []
    while offset < end and len(found) < SHOWN_MAX:
        pulled = await master.pull(*place, offset)
        found += pulled.messages
        if pulled.next_offset <= offset:
            break
        offset = pulled.next_offset
    return found[:SHOWN_MAX]


def _row(view: View, message: MessageExt, delay: int | Unknown) -> dict[str, Any]:
    topic = message.properties.get(PropertyKey.REAL_TOPIC, "")
    own = delay if isinstance(delay, Unknown) else message.store_timestamp + delay
    return {
        "due": own,
        "stored": message.store_timestamp,
        "topic": topic,
        "tag": message.tag or "",
        "size": len(message.body),
        "id": message.message_id,
        "link": view.href("/message", topic=topic, id=message.offset_message_id),
    }


_COLUMNS: Final[list[Column[dict[str, Any]]]] = [
    Column("due", "Due", lambda it: it["due"], "moment", link=lambda it: it["link"]),
    Column("stored", "Stored", lambda it: it["stored"], "moment"),
    Column("topic", "Topic", lambda it: it["topic"]),
    Column("tag", "Tag", lambda it: it["tag"]),
    Column("size", "Size", lambda it: it["size"], "size"),
    Column("id", "Message id", lambda it: it["id"]),
]

PAGES: Final = (
    Page(_SECTION, "Delayed messages", "delayed.html", overview, menu="Delayed"),
    Page("/delayed/level", "Delay level", "delay_level.html", of_level, section=_SECTION),
)
