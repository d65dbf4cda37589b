# SPDX-License-Identifier: Apache-2.0
"""A form of a session that has ended does nothing; after a login it is shown filled in."""

import pytest

from cometmq.console.login.roles import Role
from cometmq.console.web.action import Action, Field, Form
from cometmq.insight.changes.change import Done, Plan, Risk

from .desks import JSON, hidden

IDLE_MS = 31 * 60_000
TYPED = "<b>much work</b>\n\nin lines"


class Board:
    """A change with a long text and a secret."""

    def __init__(self):
        self.calls = []

    async def prepare(self, view):
        text = view.raw("text").replace("\r\n", "\n")
        fields = [Field("name", "Name", "hidden", view.needed("name")),
                  Field("text", "Text", "area", text)]  # fmt: skip
        if not text:
            return Form(fields)

        async def perform(_admin):
            self.calls.append((text, view.raw("secret")))
            return Done("The text is up.")

        asks = [Field("secret", "Secret", "password")]
        return Form(fields, Plan("Put it up", "board", {}, {"text": text}, perform,
                                 leads_to=view.href("/"), asks=asks))  # fmt: skip


@pytest.fixture
def board():
    return Board()


@pytest.fixture
async def site(sites, board):
    action = Action("board.put", "/board", "Put it up", Role.OPERATOR, Risk.LOW, board.prepare,
                    by_post=True)  # fmt: skip
    site = sites(actions=[action])
    await site.log_in("operator")
    return site


async def plan(site, **more):
    """Fill the form in and return the fields that a browser sends to confirm it."""
    page = await site.web.get("/board?name=wall")
    form = {"csrf": hidden(page, "csrf"), "name": "wall", "text": TYPED}
    page = await site.web.post("/board", data=form)
    assert "Put it up" in page.text
    return {**form, "mark": hidden(page, "mark"), "secret": "a-secret", **more}


async def test_without_a_session_nothing_is_done(site, board):
    form = await plan(site)
    site.clock.advance(IDLE_MS)
    answer = await site.web.post("/board", data=form)
    assert answer.status_code == 401
    assert "reload this page to see what you typed" in answer.text
    assert board.calls == []


async def test_a_form_of_an_older_session_is_shown_again(site, board):
    form = await plan(site)
    site.web.cookies.clear()
    await site.log_in("operator")  # in another tab, after a restart of the console
    page = await site.web.post("/board", data=form)
    assert page.status_code == 403
    assert "This is what you typed" in page.text
    assert "a-secret" not in page.text
    assert board.calls == []
    again = {**form, "csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    assert (await site.web.post("/board", data=again)).status_code == 303
    assert board.calls == [(TYPED, "a-secret")]


async def test_programs_get_the_error(site):
    form = await plan(site)
    site.clock.advance(IDLE_MS)
    answer = await site.web.post("/board", data=form, headers=JSON)
    assert answer.status_code == 401
    site.web.cookies.clear()
    await site.log_in("operator")
    answer = await site.web.post("/board", data=form, headers=JSON)
    assert answer.status_code == 403
    assert answer.json()["text"].startswith("the form has expired")
