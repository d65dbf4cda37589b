# SPDX-License-Identifier: Apache-2.0
"""Inputs that are changed after a plan was shown are not ignored: a new plan is shown, and nothing
is done.
"""

import re

import pytest

from cometmq.console.pages import ACTIONS
from cometmq.console.web.frame import OTHER_PLAN
from cometmq.peers.long_forms import IS_LONG

from .desks import JSON
from .shelf import Shelf

INPUT = re.compile(r'<input type="(?:hidden|text|number)" name="([^"]*)" value="([^"]*)">')


def confirming(page):
    """Return what a browser without scripts sends with the button that confirms a plan."""
    (form,) = re.findall(r'<form method="post">.*?</form>', page.text, re.DOTALL)
    assert form.count("<button") == 2, "the fields and both buttons are one form"
    found = INPUT.findall(form)
    assert len(found) == len(dict(found)), "no value is sent twice"
    return {**dict(found), "confirm": "shelf"}


STEP = 1 if IS_LONG else 7
"""`make test` tries only every STEP-th action; their forms share the code."""


@pytest.fixture(params=ACTIONS[::STEP], ids=lambda it: it.name)
async def planned(request, sites):
    """Return the page of each action of the site with a plan, and what its form sends."""
    shelf = Shelf()
    action = request.param._replace(prepare=shelf.prepare, template="action.html")
    site = sites(actions=[action])
    await site.log_in()
    page = await site.web.get(action.path, params={"value": "new", "more": "kept"})
    return site, shelf, action.path, confirming(page)


async def test_what_was_typed_is_planned_and_confirmed_again(planned):
    site, shelf, path, sent = planned
    assert sent["more"] == "kept"
    again = await site.web.post(path, data={**sent, "value": "other"})
    assert again.status_code == 409
    assert OTHER_PLAN in again.text
    assert "Put other on the shelf" in again.text
    assert shelf.calls == 0
    assert (await site.web.post(path, data=confirming(again))).status_code == 303
    assert shelf.value == "other"


async def test_an_unchanged_form_is_carried_out(planned):
    site, shelf, path, sent = planned
    assert (await site.web.post(path, data=sent)).status_code == 303
    assert shelf.value == "new"


async def test_the_upper_button_only_plans(planned):
    site, shelf, path, sent = planned
    for typed in ("other", "new"):
        page = await site.web.post(path, data={**sent, "value": typed, "preview": "1"})
        assert page.status_code == 200
        assert f"Put {typed} on the shelf" in page.text
        sent = confirming(page)
    assert shelf.calls == 0
    assert (await site.web.post(path, data=sent)).status_code == 303


async def test_programs_are_told_that_their_mark_is_of_other_values(planned):
    site, shelf, path, sent = planned
    answer = await site.web.post(path, data={**sent, "value": "other"}, headers=JSON)
    assert answer.status_code == 409
    assert answer.json()["text"] == OTHER_PLAN
    assert shelf.calls == 0
