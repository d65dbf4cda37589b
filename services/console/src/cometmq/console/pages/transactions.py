# SPDX-License-Identifier: Apache-2.0
"""Transactions: lists open ones, and shows one with its message."""

from typing import Any, Final

from cometmq.client.clock import wall_ms
from cometmq.console.pages.bodies import body_of, format_of, schema_of
from cometmq.console.web.page import Page, Shown, View
from cometmq.insight.decode import Format
from cometmq.insight.transactions import asked_by_rocketmq, facts_of, find_transaction
from cometmq.insight.views.messages import place_of
from cometmq.insight.words import command

_SECTION: Final = "/transactions"


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
        ("Half message", place_of(half), "text"),
        ("Asked by RocketMQ", asked_by_rocketmq(half) or None, "number"),
    ]
    return Shown(
        {**facts, "decoded": body.decoded},
        command("txn show", place_of(half)),
        wall_ms(),
        extra={"facts": shown, "body": body, "state": state.value, "place": place_of(half),
               "formats": Format},
        title=f"Transaction {half.message.message_id}",
    )  # fmt: skip


PAGES: Final = (
    Page("/transactions/one", "Transaction", "transaction.html", one, section=_SECTION),
)
