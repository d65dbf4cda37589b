# SPDX-License-Identifier: Apache-2.0
"""Definitions: exports topics, groups and rights of the cluster as one file, and imports such a
file.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Final, NamedTuple

from msgspec import UNSET

from cometmq.client.admin import AdminClient
from cometmq.client.errors import InvalidArgument
from cometmq.console.login.roles import Role
from cometmq.console.web.action import Action, Consequence, Done, Field, Form, Plan, Risk
from cometmq.console.web.page import Download, Page, Shown, View
from cometmq.console.web.problems import bad
from cometmq.console.web.tables import Column
from cometmq.insight.definitions.form import Definitions, decode, encode, name_of
from cometmq.insight.definitions.importing import (
    Incomplete,
    carry_out,
    is_whole,
    read_secrets,
    summary,
)
from cometmq.insight.definitions.planning import Fate, described, plan
from cometmq.insight.definitions.planning import Plan as ImportPlan
from cometmq.insight.definitions.state import State, read_state
from cometmq.insight.words import counted, listed

PATH: Final = "/definitions"
SHOWN_MAX: Final = 500
"""The most rows of a preview that are shown; its counts include all rows."""
CHANGES_MAX: Final = 2_000
"""The most changes of one import in the console; the command line has no such limit."""


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


async def prepare_import(view: View) -> Form:
    text, skips = view.raw("file"), view.is_set("skip")
    fields = [
        Field("file", "Definitions, as JSON", "file", text, is_needed=True,
              help="What an export has written, whole or in part."),
        Field("skip", "Import the rest if something is refused", "check", "1" if skips else ""),
    ]  # fmt: skip
    intro = "Nothing is deleted, and what the file does not name stays as it is."
    if not text.strip():
        return Form(fields, intro=intro)
    try:
        wanted = decode(text.encode())
    except InvalidArgument as error:
        raise bad(str(error)) from error
    state = await read_state(view.admin())
    found = plan(state, wanted)
    asks = []
    if found.lacking:
        names = listed(found.lacking)
        asks.append(
            Field("secret", f"Secret keys of {names}: a line ACCESS_KEY SECRET_KEY each", "area",
                  is_needed=True, help="Brokers do not show them, and each change needs them.")
        )  # fmt: skip
    return Form(
        fields,
        Plan(
            what=f"Import definitions: {found.sentence}",
            subject="definitions",
            before=_states(found, is_after=False),
            after=_states(found, is_after=True),
            compared=[[row.kind, row.name, row.place, row.fate, row.text] for row in found.rows],
            consequences=_consequences(found),
            command="cometmq definitions import FILE",
            perform=_importing(view, state, found),
            leads_to=view.href(PATH),
            refusal=_refusal(found, skips=skips),
            details=_details(found),
            asks=asks,
        ),
        intro=intro,
    )


def _importing(
    view: View, state: State, found: ImportPlan
) -> Callable[[AdminClient], Awaitable[Done]]:
    lines = view.raw("secret").splitlines()

    async def perform(admin: AdminClient) -> Done:
        secrets = read_secrets(lines, "the secret keys")
        imported = await carry_out(admin, state, found, secrets)
        if not is_whole(imported):
            raise Incomplete(f"{summary(imported)}. Import the file again for the rest.")
        return Done(f"{summary(imported)}.")

    return perform


def _states(found: ImportPlan, *, is_after: bool) -> list[str]:
    """Return a line per change for the audit log: the previous settings or, if `is_after`, the
    change.
    """
    return [
        f"{row.kind} {row.name} at {row.place}: "
        + (
            row.text
            if is_after
            else "; ".join(f"{it.setting} {it.before}" for it in row.differences) or "nothing"
        )
        for row in found.changes
    ]


def _details(found: ImportPlan) -> dict[str, object]:
    rows = [row for row in found.rows if row.fate is not Fate.EQUAL]
    return {
        "counts": found.counts,
        "untouched": found.untouched,
        "rows": [
            {"kind": it.kind, "name": it.name, "place": it.place, "fate": it.fate, "text": it.text}
            for it in rows[:SHOWN_MAX]
        ],
        "left_out": max(0, len(rows) - SHOWN_MAX),
    }


def _consequences(found: ImportPlan) -> list[Consequence]:
    rows = [
        Consequence(f"{counted(len(found.changes), 'change')} at brokers and name servers, one"
                    " after another; a change that fails does not undo the others, and is named."),
    ]  # fmt: skip
    if found.refused:
        rows.append(Consequence(f"{counted(len(found.refused), 'definition')} refused.", "bad"))
    return rows


def _refusal(found: ImportPlan, *, skips: bool) -> str:
    if found.refused and not skips:
        return "A part is refused: mend the file, or tick that the rest is imported."
    if not found.changes:
        return "The cluster is already like this."
    if len(found.changes) > CHANGES_MAX:
        return (
            f"{len(found.changes):,} changes are too many for one request of a browser (at most"
            f" {CHANGES_MAX:,}): use the command below, which shows its progress"
        )
    return ""


PAGES: Final = (Page(PATH, "Definitions", "definitions.html", definitions, menu="Definitions"),)
ACTIONS: Final = (
    Action(
        "definitions.import", "/definitions/import", "Import", Role.ADMIN, Risk.MEDIUM,
        prepare_import, section=PATH, template="import.html", by_post=True,
    ),
)  # fmt: skip
