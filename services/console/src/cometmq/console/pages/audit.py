# SPDX-License-Identifier: Apache-2.0
"""The audit log: who changed what, the state before, and the outcome."""

from typing import Final

from cometmq.console.audit import Change, changes_of
from cometmq.console.login.roles import Role
from cometmq.console.web.page import Page, Shown, View
from cometmq.insight.views.view import Column
from cometmq.insight.words import command

PATH: Final = "/audit"
ENTRIES_MAX: Final = 4_000
_OUTCOMES: Final = {"done": "good", "failed": "bad", "begun": "warn"}


COLUMNS: Final[list[Column[Change]]] = [
    Column("at", "Time", lambda it: it.begun.at_ms, "moment"),
    Column("user", "Who", lambda it: it.begun.user),
    Column("how", "By", lambda it: it.begun.how),
    Column("address", "From", lambda it: it.begun.address),
    Column("action", "Change", lambda it: it.begun.action),
    Column("subject", "Of", lambda it: it.begun.subject),
    Column("outcome", "Outcome", lambda it: it.outcome, tone=lambda it: _OUTCOMES[it.outcome]),
    Column("text", "Text", lambda it: it.text),
    Column("before", "Before", lambda it: _short(it.begun.before)),
    Column("after", "After", lambda it: _short(it.begun.after)),
]


def _short(value: object) -> object:
    return value if value not in ({}, []) else None


async def audit(view: View) -> Shown:
    changes = changes_of(await view.desk.audit.newest(ENTRIES_MAX))
    table = view.table(
        changes, COLUMNS, default="-at",
        search=lambda it: f"{it.begun.user} {it.begun.action} {it.begun.subject} {it.outcome}",
    )  # fmt: skip
    return Shown(
        changes,
        command("audit", view.desk.folder),
        view.desk.clock.now_ms(),
        extra={"table": table},
    )


PAGES: Final = (Page(PATH, "Audit", "audit.html", audit, menu="Audit", role=Role.OPERATOR),)
