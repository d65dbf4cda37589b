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
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.console.jobs import Job
from cometmq.console.login.roles import Role
from cometmq.console.web.page import View

TICKED: Final = frozenset({"1", "on", "true"})
"""The values of an argument that mean a ticked check box."""
_ENCODER: Final = msgspec.json.Encoder(enc_hook=str, order="deterministic")


class Risk(StrEnum):
    """What a change can cost."""

    LOW = "low"
    """It can be undone by another change."""
    MEDIUM = "medium"
    """Messages are delivered again, or clients reconnect."""
    HIGH = "high"
    """Messages can be lost; the user types the subject's name."""


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


class Consequence(NamedTuple):
    """One sentence about what a change does."""

    text: str
    tone: str = ""
    """`good`, `warn`, `bad` or empty."""


class Link(msgspec.Struct, frozen=True):
    """A link to a page of the console; a struct, because JSON has no names of a tuple's fields."""

    text: str
    href: str


class Plan(NamedTuple):
    """A change that is ready to be made."""

    what: str
    """The change, in one sentence."""
    subject: str
    """The name of the changed topic, group or other subject, for the audit log."""
    before: Any
    """The state that the change replaces; it must be the same when the change is made, unless
    `compared` is given.
    """
    after: Any
    consequences: Sequence[Consequence]
    command: str
    perform: Callable[[AdminClient], Awaitable[str]]
    """Make the change and return its outcome in one sentence."""
    leads_to: str
    """The page that shows the outcome, as from `View.href`."""
    refusal: str = ""
    """Why the change cannot be made now; empty if it can be made."""
    remedy: Link | None = None
    """The page where the user can remove the reason for the refusal."""
    details: Any = None
    """Further data for the template and for JSON, such as offsets per queue."""

    asks: Sequence[Field] = ()
    """Inputs that are sent only with the confirmation and never in a URL, such as secrets."""
    compared: Any = None
    """The state to compare instead of `before`, if `before` changes all the time."""
    job: Job | None = None
    """Set if `perform` may take longer than a request, and continues after the answer."""

    def mark(self, version: str) -> str:
        """Return a digest of the plan that the user sees, which differs if the state has changed
        meanwhile.

        `version` is the id of the subject's newest change in the audit log.
        """
        seen = self.before if self.compared is None else self.compared
        text = _ENCODER.encode([self.what, self.subject, seen, version])
        return hashlib.sha256(text).hexdigest()[:32]


class Form(NamedTuple):
    """The state of an action: its inputs, and the plan once they are filled in."""

    fields: Sequence[Field]
    plan: Plan | None = None
    intro: str = ""

    def mark(self, version: str) -> str:
        """Return the plan's mark, combined with a digest of the inputs of the plan."""
        if self.plan is None:
            return ""
        return f"{self.plan.mark(version)}.{self.typed}"

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
