# SPDX-License-Identifier: Apache-2.0
"""Forged forms, redirects to other sites and markup of peers, on every route that the site has."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from markupsafe import escape

from cometmq.client.admin import AdminClient
from cometmq.console import pages
from cometmq.console import site as site_module
from cometmq.console.login.roles import Role, User
from cometmq.console.login.sessions import Grant
from cometmq.console.pages import ACTIONS, PAGES
from cometmq.console.web.frame import Frame
from cometmq.console.web.guard import local_path
from cometmq.console.web.rendering import json_answer
from cometmq.insight.snapshot import look
from cometmq.peers.ports import free_port
from cometmq.remoting.log import NO_LOG

from .desks import ADMIN, JSON, OPERATOR, hidden
from .marked import READERS, marked_messages
from .test_hostile_names import NAMES, Inspector, hostile

WITH_CLIENTS_OR_JOBS = {"/group/member", "/dead-letters/progress"}
"""Pages that need a running client or job; test_on_a_suite.py and test_replaying.py cover them."""
SOURCES = Path(pages.__file__).parent.glob("*.py")
READ = re.compile(r"""\bview\.\w+\(\s*"(\w+)\"""")
ARGUMENTS = sorted(
    {"next", "find", "sort"}.union(*(READ.findall(it.read_text()) for it in SOURCES))
)
"""All arguments that pages read: each route gets all, and ignores those of others."""
ELSEWHERE = (
    "//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example/x",
    "javascript:alert(1)", "/a\r\nLocation: https://evil.example", "/\t/evil.example",
    "https:evil.example", "evil.example", "@evil.example", " //evil.example",
)  # fmt: skip
FOREIGN = (
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"origin": "https://evil.example"},
    {"origin": "https://localhost.evil.example:8088"},
)
AUTH = "https://provider.example/auth"
MARK = "zq8mark"
NASTY = f"{MARK}<script>alert(1)</script>\"'><svg/onload=alert(2)>{{{{7777*7777}}}}\u202e"


@pytest.fixture
def routes(monkeypatch):
    """Return the routes of the sites that the test makes, each with its methods."""
    found = {}

    class Noted(Frame):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            found.update(self.methods)

    monkeypatch.setattr(site_module, "Frame", Noted)
    return found


@pytest.fixture
async def away():
    """Return a client of a cluster that does not answer."""
    async with AdminClient(f"127.0.0.1:{free_port()}", log=NO_LOG) as admin:
        yield admin


@pytest.fixture
def carried_out(monkeypatch):
    """Return the changes that forms begin."""
    begun = []

    async def carry_out(_desk, action, *_more):
        begun.append(action.name)

    monkeypatch.setattr("cometmq.console.web.frame.carry_out", carry_out)
    return begun


def test_the_routes_are_those_of_all_pages_and_actions(sites, routes):
    sites()
    assert {*(it.path for it in PAGES), *(it.path for it in ACTIONS)} < routes.keys()
    assert {path for path, methods in routes.items() if "POST" in methods} == {
        "/login", "/logout", *(it.path for it in ACTIONS),
    }  # fmt: skip


@pytest.mark.parametrize("csrf", [None, "", "0" * 64, "of another session"])
async def test_no_route_takes_a_form_without_the_token_of_the_session(
    sites, routes, away, carried_out, csrf
):
    other = sites()
    await other.log_in()
    if csrf == "of another session":
        csrf = hidden(await other.web.get("/topic/create", params={"topic": "x"}), "csrf")
    site = sites(admin=away)
    await site.log_in()
    form = dict.fromkeys(ARGUMENTS, "x") | ({} if csrf is None else {"csrf": csrf})
    for path, methods in routes.items():
        answer = await site.web.post(path, data=form, headers=JSON)
        assert answer.status_code == (403 if "POST" in methods else 405), path
        assert "POST" not in methods or "the form has expired" in answer.text, path
        answer = await site.web.post(path, data=form)  # shows what was typed, and does nothing
        assert answer.status_code >= 400, path
    assert carried_out == []
    assert "boss" in (await site.web.get("/definitions")).text, "the session goes on"


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_no_route_takes_a_form_of_another_site(sites, routes, away, carried_out, headers):
    """Even with the right token: the origin is a second check."""
    site = sites(admin=away)
    stranger = sites()
    tokens = {"/login": hidden(await stranger.web.get("/login"), "csrf")}
    await site.log_in()
    csrf = hidden(await site.web.get("/definitions"), "csrf")
    for path in [path for path, methods in routes.items() if "POST" in methods]:
        web = stranger.web if path in tokens else site.web
        form = dict.fromkeys(ARGUMENTS, "x") | {"csrf": tokens.get(path, csrf)}
        answer = await web.post(path, data=form, headers=headers)
        assert answer.status_code == 403, path
        assert "another site" in answer.text, path
    assert carried_out == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE"])
async def test_nothing_but_a_post_changes_anything(sites, routes, away, carried_out, method):
    site = sites(admin=away)
    await site.log_in()
    for path, methods in routes.items():
        answer = await site.web.request(method, path, params=dict.fromkeys(ARGUMENTS, "x"))
        is_allowed = method in {"GET", "HEAD"} and "GET" in methods
        assert (answer.status_code == 405) is not is_allowed, path
    assert carried_out == []


class Provider:
    """An OpenID provider that sends users to wherever they wanted, whatever that is."""

    COOKIE, COOKIE_S = "oidc", 60

    def __init__(self, place):
        self.place = place
        self.asked = []

    async def begin(self, there):
        self.asked.append(there)
        return AUTH, "state"

    async def end(self, _args, _cookie):
        return User("ann", Role.ADMIN, "oidc"), Grant("ann", "refresh", 0), self.place

    async def close(self):
        pass


def is_local(place):
    parts = urlsplit(place)
    return place.startswith("/") and not (parts.scheme or parts.netloc or "\\" in place)


@pytest.mark.parametrize("role", [None, "admin"])
@pytest.mark.parametrize("place", ELSEWHERE)
async def test_no_route_leads_to_another_site(sites, routes, away, place, role):
    assert local_path(place) == "/"
    asked = Provider(place)
    site = sites(admin=away, oidc=lambda *_, **__: asked, anonymousRole="none")
    if role:
        await site.log_in(role)
    args = dict.fromkeys(ARGUMENTS, place)
    led = 0
    for path, methods in list(routes.items()):
        for method in methods:
            page = await site.web.get("/login") if path == "/login" else None
            csrf = "" if page is None else hidden(page, "csrf")
            form = {**args, "csrf": csrf, "token": "admin-token-0123456789"}
            sent = {"data": form} if method == "POST" else {"params": args}
            for at in (path, f"{path}/", f"{path}//evil.example"):
                if at != path and method == "POST":
                    continue
                there = (await site.web.request(method, at, **sent)).headers.get("location", "/")
                led += there != "/"
                assert is_local(there) or (path, there) == ("/login/oidc", AUTH), (at, there)
    assert led > len(routes) * (role is None)
    assert set(asked.asked) == {"/"}


@pytest.mark.parametrize("name", NAMES)
async def test_hostile_names_are_only_text_on_every_page_and_form(sites, routes, away, name):
    """Arguments come from links that anybody may send to a user."""
    site = sites(admin=away)
    site.snapshot = hostile(site.clock, name)
    for path, methods in routes.items():
        if "GET" not in methods:
            continue
        args = dict.fromkeys(ARGUMENTS, name[:300])
        answer = await site.web.get(path, params=args, headers=ADMIN)
        assert answer.status_code != 500, (path, answer.text)
        kind = answer.headers["content-type"].partition(";")[0]
        assert kind in {"text/html", "text/plain"}, path
        assert answer.headers["x-content-type-options"] == "nosniff", path
        if kind == "text/html":
            inspector = Inspector()
            inspector.feed(answer.text)
            assert inspector.faults == [], path


def unnamed(data):
    """Return the types of named tuples in data: JSON has them as arrays, without names."""
    if isinstance(data, Mapping):
        return {name for it in data.values() for name in unnamed(it)}
    if isinstance(data, msgspec.Struct):
        return unnamed({it: getattr(data, it) for it in data.__struct_fields__})
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        own = {type(data).__name__} if hasattr(data, "_fields") else set()
        return own.union(*map(unnamed, data))
    return set()


async def test_json_names_the_fields_of_everything(sites, routes, away, monkeypatch):
    found = []

    def answered(data, *more):
        found.append(unnamed(data))
        return json_answer(data, *more)

    monkeypatch.setattr("cometmq.console.web.frame.json_answer", answered)
    site = sites(admin=away)
    site.snapshot = hostile(site.clock, "x")
    for path in [path for path, methods in routes.items() if "GET" in methods]:
        await site.web.get(path, params=dict.fromkeys(ARGUMENTS, "x"), headers={**ADMIN, **JSON})
    assert len(found) > len(PAGES)
    assert set().union(*found) == set()


async def test_each_page_has_a_twin_and_a_command(plain_suite, plain_admin, sites):
    cases = await marked_messages(plain_suite, plain_admin, "Twins", MARK)
    site = sites(admin=plain_admin)
    site.snapshot = await look(plain_admin)
    told = set()
    for path in [it.path for it in PAGES]:
        for params in [*cases, {"name": "disk-full.md"}, {"name": cases[1]["broker"]}]:
            page = await site.web.get(path, params=params, headers=OPERATOR)
            twin = await site.web.get(path, params=params, headers={**OPERATOR, **JSON})
            assert twin.status_code == page.status_code, path
            if page.status_code == 200:
                answer = twin.json()
                assert answer.keys() == {"data", "command", "as_of_ms", "unanswered"}, path
                assert answer["command"].startswith("cometmq "), path
                assert escape(answer["command"]) in page.text, path
                told.add(path)
    assert {it.path for it in PAGES} - told == WITH_CLIENTS_OR_JOBS


async def test_all_links_and_forms_lead_below_the_prefix(plain_suite, plain_admin, sites):
    """Behind a proxy, what is outside the prefix belongs to another application."""
    cases = await marked_messages(plain_suite, plain_admin, "Prefixed", MARK)
    site = sites(admin=plain_admin, prefix="/mq")
    site.snapshot = await look(plain_admin)
    targets = set()
    for path in [it.path for it in PAGES] + [it.path for it in ACTIONS]:
        for params in cases:
            text = (await site.web.get(f"/mq{path}", params=params, headers=OPERATOR)).text
            targets |= {(path, it) for it in re.findall(r'(?:href|src|action)="(/[^"]*)', text)}
    assert ("/topics", "/mq/topics") in targets  # the form of its filter
    assert {it for it in targets if not it[1].startswith("/mq/")} == set()


async def test_hostile_messages_are_only_text_on_every_page_and_form(
    plain_suite, plain_admin, sites
):
    """The pages that show a part of a message are known, so none of them is asked in vain."""
    cases = await marked_messages(plain_suite, plain_admin, "Hostile", NASTY)
    site = sites(admin=plain_admin)
    site.snapshot = await look(plain_admin)
    shown = set()
    for path in [it.path for it in PAGES] + [it.path for it in ACTIONS]:
        for params in cases:
            text = (await site.web.get(path, params=params, headers=OPERATOR)).text
            inspector = Inspector()
            inspector.feed(text)
            assert inspector.faults == [], path
            assert "60481729" not in text, path  # the template of the mark, carried out
            answer = await site.web.get(path, params=params, headers={**OPERATOR, **JSON})
            assert answer.headers["content-type"] == "application/json", path
            shown |= {path} if MARK in text else set()
    assert shown == READERS
