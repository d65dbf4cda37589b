# SPDX-License-Identifier: Apache-2.0
"""Transactions: lists open ones, and shows one with its message."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from cometmq.client.admin.broker_messages import HalfMessage, HalfState
from cometmq.client.clock import wall_ms
from cometmq.console.pages.bodies import body_of, format_of, schema_of
from cometmq.console.web.page import NOT_READABLE, Page, Shown, View, silent_brokers
from cometmq.console.web.tables import Column
from cometmq.insight.decode import Format
from cometmq.insight.model import Unknown
from cometmq.insight.transactions import asked_by_rocketmq, facts_of, find_transaction
from cometmq.insight.words import command
from cometmq.remoting.errors import CometError, TopicNotExist

SHOWN_MAX: Final = 200
"""The most open transactions of a broker that a page reads, the oldest first."""
_CONTENT: Final = ("tag", "keys", "properties", "body", "body_base64")
_SECTION: Final = "/transactions"


async def overview(view: View) -> Shown:
    """Show the open transactions of each broker, oldest first."""
    snapshot = await view.snapshot()
    silent = silent_brokers(snapshot)
    halves, notes = await _open_halves(view, silent)
    now_ms, found = wall_ms(), snapshot.half_messages
    readable = await view.readable_only({it.topic for it in halves})
    table = view.table(
        halves,
        _columns(view, readable, now_ms),
        default="stored",
        search=lambda it: f"{it.group} {it.topic} {it.message.message_id}",
    )
    waiting = found if isinstance(found, Unknown) else sum(it.waiting_max for it in found)
    return Shown(
        _facts(halves, readable),
        f"cometmq txn list --max {SHOWN_MAX}",
        now_ms,
        silent,
        {"table": table, "notes": notes, "waiting": waiting},
    )


async def _open_halves(view: View, silent: dict[str, str]) -> tuple[list[HalfMessage], list[str]]:
    """Return the open half messages, and notes on what is left out.

    Brokers that do not answer are added to `silent`, with the reasons.
    """
    halves: list[HalfMessage] = []
    notes: list[str] = []
    for master in (await view.admin().masters()).values():
        count = 0
        if master.name in silent:
            continue
        try:
            async for half in master.open_transactions():
                count += 1
                if count > SHOWN_MAX:
                    notes.append(f"of {master.name}, only the oldest {SHOWN_MAX} are shown")
                    break
                halves.append(half)
        except TopicNotExist:
            continue  # the broker has never had a transaction
        except CometError as error:
            silent[master.name] = str(error) or type(error).__name__
    return halves, notes


def _columns(view: View, readable: Collection[str], now_ms: int) -> list[Column[HalfMessage]]:
    def link(half: HalfMessage) -> str:
        return view.href("/transactions/one", id=_place(half))

    def open_s(half: HalfMessage) -> float:
        return max(0, now_ms - half.message.store_timestamp) / 1_000

    def tag(half: HalfMessage) -> str | Unknown:
        return (half.message.tag or "") if half.topic in readable else NOT_READABLE

    return [
        Column("stored", "Stored", lambda it: it.message.store_timestamp, "moment", link=link),
        Column("age", "Open for", open_s, "duration"),
        Column("group", "Producer group", lambda it: it.group, "id"),
        Column("topic", "Topic", lambda it: it.topic, "id"),
        Column("tag", "Tag", tag),
        Column("place", "Half message", _place),
        Column(
            "asked",
            "Asked",
            lambda it: asked_by_rocketmq(it) or None,
            "number",
            help="How often RocketMQ's broker has asked; a txn-checker counts for itself",
        ),
        Column("id", "Transaction", lambda it: it.message.message_id, "id"),
    ]


def _facts(halves: Sequence[HalfMessage], readable: Collection[str]) -> list[dict[str, Any]]:
    """Return the transactions, without the messages that the user may not read."""
    rows = []
    for half in halves:
        facts = facts_of(half, HalfState.OPEN)
        hidden = () if half.topic in readable else _CONTENT
        rows.append({name: it for name, it in facts.items() if name not in hidden})
    return rows


def _place(half: HalfMessage) -> str:
    return f"{half.broker}:{half.offset}"


async def one(view: View) -> Shown:
    place = view.needed("id")
    master, half = await find_transaction(view.admin(), place)
    await view.check_readable(half.topic)
    state = await master.state(half)
    facts = facts_of(half, state)
    body = body_of(half.message.body, format_of(view), schema_of(view))
    shown: list[tuple[str, Any, str]] = [
        ("State", state.value, "text"),
        ("Producer group", half.group, "text"),
        ("Topic", half.topic, "text"),
        ("Queue", half.queue_id, "number"),
        ("Tag", half.message.tag or "", "text"),
        ("Keys", facts["keys"], "text"),
        ("Stored", half.message.store_timestamp, "moment"),
        ("Producer", half.message.born_host, "text"),
        ("Half message", _place(half), "text"),
        ("Asked by RocketMQ", asked_by_rocketmq(half) or None, "number"),
    ]
    return Shown(
        {**facts, "decoded": body.decoded},
        command("txn show", _place(half)),
        wall_ms(),
        extra={"facts": shown, "body": body, "state": state.value, "place": _place(half),
               "formats": Format},
        title=f"Transaction {half.message.message_id}",
    )  # fmt: skip


PAGES: Final = (
    Page(_SECTION, "Transactions", "transactions.html", overview, menu="Transactions"),
    Page("/transactions/one", "Transaction", "transaction.html", one, section=_SECTION),
)
