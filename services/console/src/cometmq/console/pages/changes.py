# SPDX-License-Identifier: Apache-2.0
"""The forms of the catalogue of changes: fields from arguments, and the plan once they are
filled in.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any, Final

import msgspec

from cometmq.client.admin.removals import NotWaiting
from cometmq.client.errors import InvalidArgument
from cometmq.console.login.roles import Role
from cometmq.console.web.action import TICKED, Action, Field, Form
from cometmq.console.web.page import View
from cometmq.console.web.problems import bad, missing
from cometmq.insight.changes.catalogue import CHANGES
from cometmq.insight.changes.change import (
    Argument,
    Change,
    Consequence,
    Link,
    Only,
    Plan,
    arguments,
)
from cometmq.insight.changes.groups import NoGroup

SECTIONS: Final[Mapping[str, str]] = {
    "topic": "/topics", "group": "/groups", "client": "/connections", "delayed": "/delayed",
    "dead-letters": "/dead-letters", "transaction": "/transactions",
    "definitions": "/definitions",
}  # fmt: skip
"""The path of the menu entry to which the forms of a noun belong."""
VALUES_MAX: Final = 500
_YES_NO: Final = (("yes", "yes"), ("no", "no"))


def action_of(kind: type[Change]) -> Action:
    """Return the form of a kind of change."""
    noun, _, verb = kind.name.partition(".")
    return Action(
        kind.name,
        f"/{noun}/{verb}",
        f"{verb.capitalize()} {noun.replace('-', ' ')}",
        Role[kind.needs.upper()],
        kind.risk,
        partial(prepare, kind),
        SECTIONS[noun],
        by_post=kind.is_long,
    )


async def prepare(kind: type[Change], view: View) -> Form:
    """Return the form, with a plan if all that is needed is given."""
    offered = [it for it in arguments(kind) if it.only is not Only.COMMANDS]
    inputs = [it for it in offered if it.only is None]
    first = inputs[0]
    if not kind.is_new:
        view.needed(first.name)
    suggested = await kind.suggested(view.admin(), view.given())
    fields = [one for it in inputs for one in _fields(view, it, suggested.get(it.name, ""))]
    if not kind.is_new:
        fields[0] = fields[0]._replace(kind="hidden")
    has_choice = not kind.either or any(view.text(it) for it in kind.either)
    if not has_choice or not all(view.raw(it.name).strip() for it in inputs if it.is_needed):
        return Form(fields, intro=f"{kind.about().partition(';')[0].rstrip('.')}.")
    change = kind(**{it.name: value_of(view, it) for it in offered})
    try:
        plan = await change.plan(view.admin())
    except InvalidArgument as error:
        text = str(error)
        seen = (it.name for it in fields if it.kind != "hidden" and it.value in text)
        name = next((it for it in seen if view.text(it)), "")
        raise bad(f"{name}: {text}" if name else text, field=name) from error
    except (NoGroup, NotWaiting) as error:
        raise missing(str(error)) from error
    return Form(fields, planned(view, kind, plan))


def planned(view: View, kind: type[Change], plan: Plan) -> Plan:
    """Return a plan as pages show it, with the address of the page that shows its outcome."""
    noun = kind.name.partition(".")[0]
    there = plan.leads_to or SECTIONS[noun]
    if not plan.leads_to and plan.after is not None and noun in {"topic", "group"}:
        there = view.href(f"/{noun}", name=plan.subject).removeprefix(view.desk.prefix)
    prefix, remedy = view.desk.prefix, plan.remedy
    return plan._replace(
        what=f"{plan.what[:1].upper()}{plan.what[1:]}",
        consequences=[*plan.consequences, *(Consequence(it, "warn") for it in plan.notes)],
        refusal=plan.refusal or plan.idle,
        remedy=None if remedy is None else Link(remedy.text, prefix + remedy.href),
        before=_flat(plan.before),
        after=_flat(plan.after),
        compared=plan.before if plan.compared is None else plan.compared,
        asks=[
            *(Field(name, "", "hidden", it) for name, it in plan.confirms.items()),
            *(Field(name, it, "area", is_needed=True) for name, it in plan.labels.items()),
        ],
        leads_to=prefix + there,
    )


def _flat(state: Any) -> Any:
    """Return settings by broker as one table."""
    if not (isinstance(state, list) and all(type(it) is dict and "broker" in it for it in state)):
        return state
    return {
        f"{row['broker']}: {name.replace('_', ' ')}": it
        for row in state
        for name, it in row.items()
        if name != "broker"
    }


def _fields(view: View, it: Argument, suggested: str | Sequence[str]) -> list[Field]:
    if it.kind is tuple:
        return [Field(it.name, "", "hidden", one) for one in _many(view, it)]
    if it.is_file:
        return [Field(it.name, it.label, "file", view.raw(it.name), (), it.help, it.is_needed)]
    text, default = view.text(it.name), it.default
    options = list(it.choices.items())
    if not isinstance(suggested, str):
        options, suggested = [(one, one) for one in suggested], _only(suggested)
    kind, is_plain = "text", default in {None, msgspec.NODEFAULT}
    if it.kind is bool and default is False:
        kind, text = "check", "1" if text in TICKED else ""
    elif it.kind is bool:
        options, text = list(_YES_NO), text or ("yes" if default else "")
    elif it.kind is int:
        kind, text = "number", text or ("" if is_plain else str(default))
    elif not is_plain:
        text = text or str(default)
    kind = "select" if options else kind
    return [Field(it.name, it.label, kind, text or suggested, options, it.help, it.is_needed)]


def _only(names: Sequence[str]) -> str:
    """Return the first of the names if the others, such as the retry topic of a group, are rare."""
    usual = [it for it in names if not it.startswith("%")]
    return usual[0] if len(usual) == 1 else ""


def _many(view: View, it: Argument) -> list[str]:
    return [one for one in view.many(it.name, count_max=VALUES_MAX) if one]


def value_of(view: View, it: Argument) -> Any:
    """Return the value of an argument in a request; raise Problem if it is wrong."""
    name = it.name
    if it.kind is tuple:
        return tuple(_many(view, it))
    if it.kind is bool:
        return view.is_set(name) if it.default is False or view.text(name) else it.default
    if it.only is not None or it.is_file:
        return view.raw(name) or it.default
    text = view.text(name)
    if it.choices and text and text not in it.choices:
        raise bad(f"{name} must be one of {', '.join(it.choices)}", field=name)
    if not text:
        return "" if it.is_needed else it.default
    if it.kind in {int, float}:
        high = 2**31 - 1 if it.high is None else it.high
        return view.number(name, 0, low=ceil(it.low or 0), high=high)
    return text


OWN: Final = frozenset({"dead-letters.replay", "definitions.import"})
"""The changes whose forms are more than derived."""
ACTIONS: Final = tuple(action_of(it) for it in CHANGES if it.has_form and it.name not in OWN)
