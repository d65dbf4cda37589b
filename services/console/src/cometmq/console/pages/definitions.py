# SPDX-License-Identifier: Apache-2.0
"""Definitions: exports topics, groups and rights of the cluster as one file, and imports such a
file.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from msgspec import UNSET

from cometmq.console.login.roles import Role
from cometmq.console.pages.changes import action_of
from cometmq.console.web.page import Download, Page, Shown, View
from cometmq.insight.changes.definitions import ImportDefinitions, described
from cometmq.insight.definitions import Definitions, encode, name_of, read_state
from cometmq.insight.views.view import Column

PATH: Final = "/definitions"


class Row(NamedTuple):
    """An entry of the exported file, as the table of the page shows it."""

    kind: str
    name: str
    settings: str
    brokers: str


COLUMNS: Final[list[Column[Row]]] = [
    Column("name", "Name", lambda it: it.name),
    Column("kind", "Kind", lambda it: it.kind),
    Column("settings", "Settings", lambda it: it.settings),
    Column("brokers", "Brokers", lambda it: it.brokers),
]


def rows_of(found: Definitions) -> Iterator[Row]:
    kinds = {
        "topic": found.topics,
        "group": found.groups,
        "account": found.accounts,
        "addresses": found.addresses,
    }
    for kind, entries in kinds.items():
        for entry in entries:
            brokers = "all" if entry.brokers is UNSET else ", ".join(entry.brokers)
            yield Row(kind, name_of(entry) or "without an account", described(entry), brokers)
    for name, config in found.order_config.items():
        yield Row("order", name, config, "name servers")


async def definitions(view: View) -> Shown:
    """Show the content of an export, or send the file."""
    downloads = view.is_set("download")
    state = await read_state(view.admin(), is_whole=downloads)
    sees_accounts = view.user.role >= Role.OPERATOR
    found = state.definitions(with_accounts=sees_accounts)
    command = "cometmq definitions export"
    if downloads:
        return Shown(found, command, download=Download(encode(found), "definitions.json"))
    table = view.table(
        list(rows_of(found)), COLUMNS, default="kind", search=lambda it: f"{it.kind} {it.name}"
    )
    return Shown(
        found,
        command,
        view.desk.clock.now_ms(),
        extra={
            "table": table,
            "silent": state.silent if sees_accounts else {},
            "sees_accounts": sees_accounts,
        },
    )


PAGES: Final = (Page(PATH, "Definitions", "definitions.html", definitions, menu="Definitions"),)
ACTIONS: Final = (action_of(ImportDefinitions)._replace(template="import.html"),)
