# SPDX-License-Identifier: Apache-2.0
"""The tools of the catalogue of changes: a call makes a plan, and performs it if it is confirmed.

The change is written to the audit log before it is made, and again with its outcome.
"""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from cometmq.cli.access import check_namespace
from cometmq.cli.mcp.tool import Session, Tool, arguments_of, said, shown
from cometmq.client.errors import ClientError
from cometmq.console.audit import AuditEntry
from cometmq.insight.changes.catalogue import CHANGES
from cometmq.insight.changes.change import Change, Plan, Risk, arguments

DRY_RUN: Final = "this was a dry run: nothing was changed; to do it, call again with confirm=true"
ASKING: Final = "A dry run unless confirm=true; show its result to the user first."
MESSAGES_MAX: Final = 1_000
"""The most messages that one call sends; the command line has no such limit."""
SECONDS_MAX: Final = 60
CONFIRM: Final = (
    "confirm",
    Annotated[
        bool, said("True makes the change; otherwise the answer only says what it would do.")
    ],
    False,
)


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did, or would do."""

    what: str
    risk: Risk
    changed: bool
    outcome: str
    before: Any
    after: Any
    consequences: Sequence[str]


def tool_of(kind: type[Change]) -> Tool:
    """Return the tool that makes a kind of change."""
    offered = [it for it in arguments(kind) if it.only is None]
    wanted_type = arguments_of(kind, offered, [CONFIRM])

    async def run(session: Session, wanted: Any) -> Changed:
        given = {it.name: getattr(wanted, it.name) for it in offered}
        if "count_max" in given:
            given["count_max"] = min(given["count_max"] or MESSAGES_MAX, MESSAGES_MAX)
        change = kind(**given)
        async with session.changing:
            plan = await change.plan(session.admin)
            _check(change, plan)
            outcome = DRY_RUN
            if wanted.confirm:
                outcome = await _carry_out(session, kind.name, plan)
        return Changed(
            what=plan.what,
            risk=kind.risk,
            changed=wanted.confirm,
            outcome=outcome,
            before=plan.before,
            after=plan.after,
            consequences=[*(it.text for it in plan.consequences), *plan.notes],
        )

    text = f"{kind.about()} Risk: {kind.risk}. {ASKING}"
    return Tool(kind.tool(), text, wanted_type, Changed, run, kind.risk)


def _check(change: Change, plan: Plan) -> None:
    if plan.topic:
        check_namespace(plan.topic, getattr(change, next(iter(arguments(type(change)))).name))
    refusal = plan.refusal or plan.idle
    rate = getattr(change, "rate", None)
    if rate and plan.job is not None and len(plan.job.wanted) / rate > SECONDS_MAX:
        refusal = f"it would take longer than {SECONDS_MAX} s: raise the rate, or select fewer"
    if refusal:
        raise ClientError(f"nothing was changed: {refusal}")


async def _carry_out(session: Session, name: str, plan: Plan) -> str:
    audit = session.audit
    entry = AuditEntry(
        at_ms=audit.now_ms(),
        id=secrets.token_hex(8),
        user=session.user,
        how="mcp",
        address=shown(session.client, 200),
        action=name,
        subject=plan.subject,
        outcome="begun",
        before=plan.before,
        after=plan.after,
    )
    try:
        async with audit.noted(entry) as outcome:
            outcome.text = (await plan.perform(session.admin)).text
    finally:
        session.renew()
    return outcome.text


TOOLS: Final = tuple(tool_of(it) for it in CHANGES)
