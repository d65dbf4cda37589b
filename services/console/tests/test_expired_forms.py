# SPDX-License-Identifier: Apache-2.0
"""A form that is sent after its session has ended is shown again, filled in; nothing is done."""

import pytest

from cometmq.console.login import drafts as drafts_module
from cometmq.console.login.drafts import Drafts
from cometmq.console.login.roles import Role, User
from cometmq.console.login.sessions import ENDED_MAX, Sessions
from cometmq.console.web.action import Action, Field, Form, Plan, Risk
from cometmq.testing.runtime.clock import FakeClock

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
            return "The text is up."

        asks = [Field("secret", "Secret", "password")]
        return Form(fields, Plan("Put it up", "board", {}, {"text": text}, [], "", perform,
                                 view.href("/"), asks=asks))  # fmt: skip


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


async def log_in_again(site, answer, token="operator-token-0123456789"):
    assert answer.status_code == 303
    address = answer.headers["location"]
    assert address.startswith("/login?next=")
    assert "much" not in address
    page = await site.web.get(address)
    assert "Your session has ended" in page.text
    form = {"csrf": hidden(page, "csrf"), "next": hidden(page, "next"), "token": token}
    return await site.web.post("/login", data=form)


async def test_after_the_login_the_form_is_filled_in(site, board):
    form = await plan(site)
    site.clock.advance(IDLE_MS)
    answer = await log_in_again(site, await site.web.post("/board", data=form))
    page = await site.web.get(answer.headers["location"])
    assert "This is what you typed" in page.text
    assert ">\n&lt;b&gt;much work&lt;/b&gt;\n\nin lines</textarea>" in page.text
    assert "a-secret" not in page.text
    assert board.calls == []
    again = {**form, "csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    done = await site.web.post(answer.headers["location"], data=again)
    assert done.status_code == 303
    assert board.calls == [(TYPED, "a-secret")]


async def test_another_user_does_not_see_it(site):
    form = await plan(site)
    site.clock.advance(IDLE_MS)
    answer = await site.web.post("/board", data=form)
    answer = await log_in_again(site, answer, "admin-token-0123456789")
    page = await site.web.get(answer.headers["location"])
    assert page.status_code == 404
    assert "much work" not in page.text
    assert "for the user who typed it" in page.text


@pytest.mark.parametrize(
    ("change", "headers"),
    [
        ({"csrf": "0" * 64}, {}),
        ({"csrf": "ü"}, {}),
        ({}, {"origin": "https://evil.example"}),
        ({}, {"sec-fetch-site": "cross-site"}),
    ],
)
async def test_forms_of_others_leave_no_draft(site, change, headers):
    form = await plan(site, **change)
    site.clock.advance(IDLE_MS)
    answer = await site.web.post("/board", data=form, headers=headers)
    assert answer.status_code == 403


async def test_a_stranger_leaves_no_draft(site):
    form = await plan(site)
    site.web.cookies.clear()
    answer = await site.web.post("/board", data=form)
    assert answer.status_code == 401
    assert "reload this page to see what you typed" in answer.text


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


# -- bounds ---------------------------------------------------------------------------------------


ADA = User("ada", Role.OPERATOR, "token")


def test_drafts_end_and_are_bounded(monkeypatch):
    clock = FakeClock()
    drafts = Drafts(clock)
    ids = [drafts.keep(ADA, "/a", {"text": [str(number)]}) for number in range(7)]
    assert [drafts.find(it, ADA, "/a") is not None for it in ids] == [False] * 2 + [True] * 5
    assert drafts.find(ids[-1], ADA, "/b") is None
    clock.advance(drafts_module.LIFE_MS)
    assert drafts.find(ids[-1], ADA, "/a") is None

    monkeypatch.setattr(drafts_module, "TOTAL_CHARS_MAX", 100)
    users = [User(str(number), Role.OPERATOR, "token") for number in range(200)]
    ids = [drafts.keep(it, "/a", {"text": ["x" * 20]}) for it in users]
    left = [drafts.find(id_, user, "/a") for id_, user in zip(ids, users, strict=True)]
    assert [it is not None for it in left] == [False] * 196 + [True] * 4
    ids = [drafts.keep(it, "/a", {}) for it in users]
    left = [drafts.find(id_, user, "/a") for id_, user in zip(ids, users, strict=True)]
    assert sum(it is not None for it in left) == drafts_module.COUNT_MAX


def test_an_argument_that_is_too_long_is_left_out():
    drafts = Drafts(FakeClock())
    args = {"file": ["x" * (drafts_module.ARGUMENT_CHARS_MAX + 1)], "name": ["a"], "csrf": ["t"]}
    found = drafts.find(drafts.keep(ADA, "/a", args), ADA, "/a")
    assert found == ({"name": ["a"]}, False)


def test_the_memory_of_ended_sessions_is_bounded():
    clock = FakeClock()
    sessions = Sessions(clock, idle_ms=1_000, life_ms=10_000)
    first = sessions.begin(ADA, "digest")
    clock.advance(1_000)
    assert sessions.find(first) is None
    remembered = sessions.ended(first)
    assert remembered is not None
    assert remembered.user == ADA
    token = ""
    for number in range(ENDED_MAX):
        token = sessions.begin(User(str(number), Role.VIEWER, "token"), "digest")
        clock.advance(1_000)
        assert sessions.find(token) is None
    assert sessions.ended(first) is None
    assert sessions.ended(token) is not None
    logged_out = sessions.begin(ADA, "digest")
    sessions.end(logged_out)
    assert sessions.ended(logged_out) is None
