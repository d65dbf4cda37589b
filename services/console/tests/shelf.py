# SPDX-License-Identifier: Apache-2.0
"""A page and a change of the frame's tests."""

from types import SimpleNamespace

from cometmq.console.login.roles import Role
from cometmq.console.web.action import Action, Field, Form
from cometmq.console.web.page import Page, Shown
from cometmq.insight.changes.change import Consequence, Done, Plan, Risk
from cometmq.remoting.errors import ConnectFailed

from .desks import hidden

EXTRA = {"problem": SimpleNamespace(text="a thing", status=200, back="")}


async def show(view):
    if view.text("fail"):
        raise ConnectFailed("10.0.0.1:9876: refused")
    if view.text("bug"):
        raise RuntimeError("a secret detail")
    return Shown({"name": view.text("name")}, f"cometmq topic {view.text('name')}", 5, extra=EXTRA)


class Shelf:
    """Something that actions change."""

    def __init__(self):
        self.value = "old"
        self.error = None
        self.calls = 0

    async def prepare(self, view):
        wanted = view.text("value")
        fields = [Field("value", "Value", value=wanted)]
        if not wanted:
            return Form(fields)

        async def perform(_admin):
            self.calls += 1
            if self.error:
                raise self.error
            self.value = wanted
            return Done(f"The shelf holds {wanted} now.")

        return Form(
            fields,
            Plan(
                what=f"Put {wanted} on the shelf",
                subject="shelf",
                before={"value": self.value},
                after={"value": wanted},
                consequences=[Consequence("What was there falls down.", "warn")],
                command=f"cometmq shelf put {wanted}",
                perform=perform,
                leads_to=view.href("/thing"),
            ),
        )


PAGE = Page("/thing", "Thing", "problem.html", show, menu="Thing")


def action(shelf, risk=Risk.LOW, role=Role.OPERATOR):
    return Action("shelf.put", "/shelf", "Put it there", role, risk, shelf.prepare)


async def posted(site, form, **more):
    page = await site.web.get("/shelf", params=form)
    tokens = {"csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    return await site.web.post("/shelf", data={**form, **tokens, **more})
