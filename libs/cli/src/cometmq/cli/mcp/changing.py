# SPDX-License-Identifier: Apache-2.0
"""How a tool changes something: it makes a plan, and performs it unless the call is a dry run.

The change is written to the audit log before it is made, and again with its outcome.
"""

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from cometmq.cli.mcp.tool import Arguments, Risk, Session, Tool, said, shown
from cometmq.client.errors import ClientError
from cometmq.console.audit import AuditEntry

DRY_RUN: Final = "this was a dry run: nothing was changed; to do it, call again with confirm=true"
ASKING: Final = "A dry run unless confirm=true; show its result to the user first."


Confirm = Annotated[
    bool, said("True makes the change; otherwise the answer only says what it would do.")
]


class ChangeArguments(Arguments, frozen=True, kw_only=True):
    """The arguments of a tool that changes something."""

    confirm: Confirm = False


class Plan(NamedTuple):
    """A change that is ready to be made."""

    what: str
    """The change, in one sentence."""
    subject: str
    """The name of the changed topic, group or message, for the audit log."""
    before: Any
    after: Any
    consequences: Sequence[str]
    perform: Callable[[], Awaitable[str]]
    """Make the change and return its outcome in one sentence."""
    refusal: str = ""
    """Why the change cannot be made now; empty if it can be made."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did, or would do."""

    what: str
    risk: Risk
    changed: bool
    outcome: str
    before: Any
    after: Any
    consequences: Sequence[str]


def changing(
    name: str,
    description: str,
    risk: Risk,
    arguments: type[Arguments],
    plan_of: Callable[[Session, Any], Awaitable[Plan]],
) -> Tool:
    """Return the tool that carries plans out."""

    async def run(session: Session, wanted: Any) -> Change:
        async with session.changing:
            plan = await plan_of(session, wanted)
            if plan.refusal:
                raise ClientError(f"nothing was changed: {plan.refusal}")
            outcome = await _carry_out(session, name, plan) if wanted.confirm else DRY_RUN
        return Change(
            what=plan.what,
            risk=risk,
            changed=wanted.confirm,
            outcome=outcome,
            before=plan.before,
            after=plan.after,
            consequences=plan.consequences,
        )

    return Tool(name, f"{description} Risk: {risk}. {ASKING}", arguments, Change, run, risk)


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
            outcome.text = await plan.perform()
    finally:
        session.renew()
    return outcome.text
