# SPDX-License-Identifier: Apache-2.0
"""The pages of the catalogue of views: a table, and its rows as JSON."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from cometmq.client.clock import wall_ms
from cometmq.console.login.gate import may
from cometmq.console.login.roles import Role
from cometmq.console.pages.changes import value_of
from cometmq.console.web.page import NOT_READABLE, Page, Shown, View, silent_brokers
from cometmq.console.web.rendering import wants_json
from cometmq.insight.changes.change import arguments
from cometmq.insight.model import Unknown
from cometmq.insight.views import cluster, messages
from cometmq.insight.views.view import Column, Facts
from cometmq.insight.views.view import View as Kind


def page_of(
    kind: type[Kind],
    path: str,
    title: str,
    template: str = "list.html",
    *,
    menu: str = "",
    section: str = "",
) -> Page:
    """Return the page of a view."""
    return Page(path, title, template, partial(show, kind), menu, section)


async def show(kind: type[Kind], view: View) -> Shown:
    """Ask for the rows of a view, and return its table."""
    named = arguments(kind)
    wanted = kind(**{it.name: value_of(view, it) for it in named})
    found = await wanted.ask(Facts(view.admin(), view.snapshot))
    columns = await _columns(kind, view, found.rows)
    snapshot = found.snapshot
    listed = found.rows if wants_json(view.request) else ()
    fixed = {it.name for it in named if it.default is None and getattr(wanted, it.name) is not None}
    shown = [it for it in columns if it.key not in fixed]  # the others have one value
    return Shown(
        [kind.object_of(it, columns) for it in listed],
        wanted.command(),
        wall_ms() if snapshot is None else snapshot.taken_ms,
        {} if snapshot is None else silent_brokers(snapshot),
        {
            "table": view.table(
                found.rows, shown, default=kind.sort, search=kind.text_of,
                keep=tuple(it.name for it in named),
            ),
            "notes": found.notes,
            "empty": f"{found.empty[:1].upper()}{found.empty[1:]}.",
            "args": {it.name: getattr(wanted, it.name) for it in named},
            "choices": {it.name: list(it.choices) for it in named},
        },
    )  # fmt: skip


async def _columns(kind: type[Kind], view: View, rows: Sequence[Any]) -> list[Column[Any]]:
    """Return the columns that the user may see, without the content of unreadable messages."""
    found = [
        it
        for it in kind.columns
        if may(view.user, Role[it.needs.upper() or "NONE"])
        and not (it.is_rare and all(isinstance(it.value(row), Unknown) for row in rows))
    ]
    if not any(it.is_content for it in found):
        return found
    readable = await view.readable_only({kind.topic_of(it) for it in rows})

    def guarded(column: Column[Any]) -> Column[Any]:
        return column._replace(
            value=lambda row: column.value(row) if kind.topic_of(row) in readable else NOT_READABLE
        )

    return [guarded(it) if it.is_content else it for it in found]


PAGES: Final = {
    "topics": page_of(cluster.Topics, "/topics", "Topics", "topics.html", menu="Topics"),
    "groups": page_of(cluster.Groups, "/groups", "Consumer groups", "groups.html", menu="Groups"),
    "connections": page_of(cluster.Clients, "/connections", "Connections", menu="Connections"),
    "transactions": page_of(
        messages.OpenTransactions, "/transactions", "Transactions", menu="Transactions"
    ),
    "dead letters": page_of(
        messages.DeadLetterGroups, "/dead-letters", "Dead letters", menu="Dead letters"
    ),
    "delayed": page_of(messages.DelayLevels, "/delayed", "Delayed messages", menu="Delayed"),
    "delay level": page_of(
        messages.DelayedMessages, "/delayed/level", "Delay level", section="/delayed"
    ),
}
