# SPDX-License-Identifier: Apache-2.0
"""Changes are planned, confirmed, permitted by roles, and audited."""

import asyncio

import pytest

from cometmq.client.errors import InvalidArgument
from cometmq.insight.changes.change import Risk

from .desks import ADMIN, JSON, OPERATOR, VIEWER, hidden
from .shelf import PAGE, Shelf, action, posted


async def test_a_change_shows_its_consequences_and_is_audited(sites):
    shelf = Shelf()
    site = sites(pages=[PAGE], actions=[action(shelf)])
    await site.log_in("operator")
    page = await site.web.get("/shelf", params={"value": "new"})
    assert "What was there falls down." in page.text
    assert "cometmq -n n:9876 shelf put new" in page.text
    assert shelf.value == "old"
    answer = await posted(site, {"value": "new"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/thing"
    assert shelf.value == "new"
    assert "The shelf holds new now." in (await site.web.get("/thing")).text
    assert "The shelf holds new now." not in (await site.web.get("/thing")).text
    done, begun = await site.audit.newest(10)
    assert (begun.outcome, begun.user, begun.how, begun.action) == (
        "begun", "ops", "token", "shelf.put",
    )  # fmt: skip
    assert begun.before == {"value": "old"}
    assert begun.after == {"value": "new"}
    assert (done.outcome, done.id, done.text) == ("done", begun.id, "The shelf holds new now.")


async def test_a_failed_change_is_audited_too(sites):
    shelf = Shelf()
    shelf.error = InvalidArgument("no such shelf")
    site = sites(actions=[action(shelf)])
    await site.log_in()
    answer = await posted(site, {"value": "new"})
    assert answer.status_code == 400
    assert "no such shelf" in answer.text
    assert [it.outcome for it in await site.audit.newest(2)] == ["failed", "begun"]


async def test_nothing_is_changed_if_it_cannot_be_audited(sites, monkeypatch):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    await site.log_in()

    def full(_line):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(site.audit, "_append", full)
    answer = await posted(site, {"value": "new"})
    assert answer.status_code == 503
    assert "nothing was changed" in answer.text
    assert shelf.calls == 0


async def test_the_second_of_two_people_is_told(sites):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    await site.log_in()
    page = await site.web.get("/shelf", params={"value": "mine"})
    shelf.value = "theirs"
    tokens = {"csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    answer = await site.web.post("/shelf", data={"value": "mine", **tokens})
    assert answer.status_code == 409
    assert "has changed since" in answer.text
    assert '<a href="/shelf?value=mine">Look at it again</a>' in answer.text
    assert shelf.value == "theirs"
    long = {"value": "m" * 3_000, **tokens}
    assert "Look at it again" not in (await site.web.post("/shelf", data=long)).text


async def test_a_change_that_is_confirmed_twice_at_a_time_is_made_once(sites):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    await site.log_in()
    page = await site.web.get("/shelf", params={"value": "mine"})
    form = {"value": "mine", "csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    async with asyncio.TaskGroup() as group:
        tries = [group.create_task(site.web.post("/shelf", data=form)) for _ in range(5)]
    assert sorted(it.result().status_code for it in tries) == [303] + [409] * 4
    assert shelf.calls == 1


@pytest.mark.parametrize(
    "change",
    [
        {"csrf": ""},
        {"csrf": "0" * 64},
        {"csrf": "ü"},
    ],
)
async def test_forms_without_their_token_are_refused(sites, change):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    await site.log_in()
    answer = await posted(site, {"value": "new"}, **change)
    assert answer.status_code == 403
    assert shelf.calls == 0


@pytest.mark.parametrize(
    "headers",
    [
        *({"origin": it} for it in ("https://evil.example", "file://", "http://", "evil.example")),
        {"sec-fetch-site": "cross-site"},
    ],
)
async def test_forms_from_other_sites_are_refused(sites, headers):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    await site.log_in()
    site.web.headers.update(headers)
    assert (await posted(site, {"value": "new"})).status_code == 403
    assert shelf.calls == 0


async def test_the_token_of_another_session_is_refused(sites):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    await site.log_in()
    page = await site.web.get("/shelf", params={"value": "new"})
    stolen = {"csrf": hidden(page, "csrf"), "mark": hidden(page, "mark")}
    site.web.cookies.clear()
    await site.log_in("operator")
    answer = await site.web.post("/shelf", data={"value": "new", **stolen})
    assert answer.status_code == 403


async def test_a_program_that_sends_no_mark_is_told_so(sites):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    answer = await site.web.post("/shelf", data={"value": "new"}, headers={**ADMIN, **JSON})
    assert answer.status_code == 400
    assert "the mark is missing" in answer.json()["text"]
    assert shelf.calls == 0


@pytest.mark.parametrize(
    ("headers", "status"), [({}, 401), (VIEWER, 403), (OPERATOR, 200), (ADMIN, 200)]
)
async def test_roles_decide_about_changes(sites, headers, status):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    plan = await site.web.get("/shelf?value=new", headers={**ADMIN, **JSON})
    form = {"value": "new", "mark": plan.json()["plan"]["mark"]}
    answer = await site.web.post("/shelf", data=form, headers={**headers, **JSON})
    assert answer.status_code == status
    assert shelf.calls == (status == 200)


async def test_a_risky_change_needs_the_name_typed(sites):
    shelf = Shelf()
    site = sites(actions=[action(shelf, Risk.HIGH)])
    await site.log_in()
    assert (await posted(site, {"value": "new"})).status_code == 400
    assert (await posted(site, {"value": "new"}, confirm="shelve")).status_code == 400
    assert shelf.calls == 0
    assert (await posted(site, {"value": "new"}, confirm="shelf")).status_code == 303


@pytest.mark.parametrize("path", ["/login", "/logout"])
async def test_the_forms_of_strangers_are_small(sites, path):
    page = await sites().web.post(path, data={"a": "A" * (65 << 10)})
    assert page.status_code == 400
    assert "64 KiB" in page.text


async def test_forms_are_bounded(sites):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    large = "value=" + "x" * (9 << 20)
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert (
        await site.web.post("/shelf", content=large, headers={**ADMIN, **kind})
    ).status_code == 400
    many = "&".join(f"a{number}=1" for number in range(6_000))
    assert (
        await site.web.post("/shelf", content=many, headers={**ADMIN, **kind})
    ).status_code == 400
    other = {"content-type": "multipart/form-data; boundary=x"}
    assert (
        await site.web.post("/shelf", content="", headers={**ADMIN, **other})
    ).status_code == 400
