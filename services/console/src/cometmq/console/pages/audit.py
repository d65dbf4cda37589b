# SPDX-License-Identifier: Apache-2.0
"""The audit log: who changed what, what it was before, and how it ended."""

from typing import Final

import msgspec

from cometmq.console.audit import AuditEntry
from cometmq.console.login.roles import Role
from cometmq.console.web.page import Page, Shown, View
from cometmq.console.web.tables import Column

PATH: Final = "/audit"
ENTRIES_MAX: Final = 4_000
_OUTCOMES: Final = {"done": "good", "failed": "bad", "begun": "warn"}


class Change(msgspec.Struct, frozen=True):
    """One change: its begin and, once it has ended, its outcome."""

    begun: AuditEntry
    outcome: str
    text: str


def changes_of(entries: list[AuditEntry]) -> list[Change]:
    """Join the two entries of each change; the newest is first."""
    ends = {it.id: it for it in entries if it.outcome != "begun"}
    return [
        Change(it, end.outcome if (end := ends.get(it.id)) else "begun", end.text if end else "")
        for it in entries
        if it.outcome == "begun"
    ]


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
    """List changes."""
    changes = changes_of(await view.desk.audit.newest(ENTRIES_MAX))
    table = view.table(
        changes, COLUMNS, default="-at",
        search=lambda it: f"{it.begun.user} {it.begun.action} {it.begun.subject} {it.outcome}",
    )  # fmt: skip
    return Shown(
        changes,
        f"tail -f {view.desk.settings.store_path_root_dir}/audit.log",
        view.desk.clock.now_ms(),
        extra={"table": table},
    )


PAGES: Final = (Page(PATH, "Audit", "audit.html", audit, menu="Audit", role=Role.OPERATOR),)
