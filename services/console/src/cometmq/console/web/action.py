# SPDX-License-Identifier: Apache-2.0
"""What a change is: a form, a plan that shows its consequences, and the change itself.

These requests show the form and, once it is filled in, the plan: GET, a POST with `preview`, and a
POST without a mark if the form is too long for a URL.

Any other POST makes the plan again. It is carried out if the inputs and the state that it replaces
are still those that the user saw. Otherwise an error is shown, and nothing changes. Clients with a
token do the same with JSON.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from cometmq.console.login.roles import Role
from cometmq.console.web.page import View
from cometmq.insight.changes.change import Plan, Risk

TICKED: Final = frozenset({"1", "on", "true"})
"""The values of an argument that mean a ticked check box."""
_ENCODER: Final = msgspec.json.Encoder(enc_hook=str, order="deterministic")


class Field(NamedTuple):
    """One input of a form."""

    name: str
    label: str
    kind: str = "text"
    """`text`, `number`, `select`, `check`, `area`, `file`, `password` or `hidden`."""
    value: str = ""
    options: Sequence[tuple[str, str]] = ()
    """The values and texts of a select."""
    help: str = ""
    is_needed: bool = False


class Form(NamedTuple):
    """The state of an action: its inputs, and the plan once they are filled in."""

    fields: Sequence[Field]
    plan: Plan | None = None
    intro: str = ""

    def mark(self, version: str) -> str:
        """Return a digest of the plan that the user sees, which differs if the state has changed
        meanwhile, and one of the inputs.

        `version` is the id of the subject's newest change in the audit log.
        """
        plan = self.plan
        if plan is None:
            return ""
        seen = plan.before if plan.compared is None else plan.compared
        text = _ENCODER.encode([plan.what, plan.subject, seen, version])
        return f"{hashlib.sha256(text).hexdigest()[:32]}.{self.typed}"

    @property
    def typed(self) -> str:
        """A digest of the inputs, which differs if the user edits them after the plan was shown."""
        text = _ENCODER.encode([(it.name, _as_sent(it)) for it in self.fields])
        return hashlib.sha256(text).hexdigest()[:32]


def _as_sent(field: Field) -> str:
    """Return a value in the form that a browser sends back, so that both have the same digest."""
    if field.kind == "check":
        return "1" if field.value in TICKED else ""
    return "\n".join(field.value.splitlines())


class Action(NamedTuple):
    """A kind of change that the console offers, such as deleting a topic."""

    name: str
    """The name in the audit log, such as `topic.delete`."""
    path: str
    title: str
    role: Role
    risk: Risk
    prepare: Callable[[View], Awaitable[Form]]
    section: str = ""
    """The path of the menu entry to which the action belongs."""
    template: str = "action.html"
    by_post: bool = False
    """Whether the form is too long for an address: a POST without a mark shows the plan."""
