# SPDX-License-Identifier: Apache-2.0
"""Pages and actions in general: answers, logins, forms, and what protects them."""

import asyncio
import re
from types import SimpleNamespace

import pytest

from cometmq.client.errors import InvalidArgument
from cometmq.console.login.accounts import Refused
from cometmq.console.login.roles import Role, User
from cometmq.console.login.sessions import SESSIONS_PER_USER_MAX, Sessions
from cometmq.console.web import frame
from cometmq.console.web.action import Action, Consequence, Field, Form, Plan, Risk
from cometmq.console.web.guard import local_path
from cometmq.console.web.page import Page, Shown
from cometmq.remoting.errors import ConnectFailed
from cometmq.runtime.clock import FakeClock

from .desks import ADMIN, JSON, OPERATOR, VIEWER, hidden

NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}\u202e"


EXTRA = {"problem": SimpleNamespace(text="a thing", status=200)}


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
            return f"The shelf holds {wanted} now."

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


async def test_a_page_is_also_json_with_its_command_and_age(sites):
    site = sites(pages=[PAGE])
    answer = await site.web.get("/thing?name=a", headers=JSON)
    assert answer.json() == {
        "data": {"name": "a"},
        "command": "cometmq topic a",
        "as_of_ms": 5,
        "unanswered": {},
    }
    assert (await site.web.get("/thing?name=a&json=1")).json() == answer.json()


async def test_home_shows_a_cluster_of_which_nothing_is_known(sites):
    site = sites()
    page = await site.web.get("/")
    assert page.status_code == 200
    assert "unknown" in page.text
    assert "cometmq doctor" in page.text


async def test_every_answer_has_the_security_headers(sites):
    site = sites(pages=[PAGE])
    for path in ("/thing?fail=1", "/nothing", "/static/console.css", "/healthz", "/login"):
        headers = (await site.web.get(path)).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert "server" not in headers


async def test_pages_have_no_inline_script_or_style(sites):
    site = sites()
    await site.log_in()
    for path in ("/", "/login"):
        text = (await site.web.get(path)).text
        assert not re.search(r"<script(?! src=)|<style| style=| on\w+=|javascript:", text)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/thing?fail=1", 503, "10.0.0.1:9876: refused"),
        ("/thing?bug=1", 500, "the console has a fault"),
        ("/nothing", 404, "no page at this address"),
    ],
)
async def test_errors_are_pages_and_json(sites, path, status, text):
    site = sites(pages=[PAGE])
    page = await site.web.get(path)
    assert page.status_code == status
    assert text in page.text
    assert "secret detail" not in page.text
    answer = await site.web.get(path, headers=JSON)
    assert answer.status_code == status
    assert text in answer.json()["text"]


async def test_a_page_does_not_ask_the_cluster_for_ever(sites, monkeypatch):
    async def hangs(_view):
        await asyncio.Event().wait()

    monkeypatch.setattr(frame, "ASKING_S_MAX", 0.01)
    put = action(Shelf())._replace(prepare=hangs)
    site = sites(pages=[PAGE._replace(view=hangs)], actions=[put])
    await site.log_in()
    for path in ("/thing", "/shelf"):
        async with asyncio.timeout(60):
            answer = await site.web.get(path, headers=JSON)
        assert answer.status_code == 504
        assert "has not given the answer within" in answer.json()["text"]


async def test_names_are_escaped_everywhere(sites):
    shelf = Shelf()
    site = sites(actions=[action(shelf)])
    await site.log_in()
    page = await site.web.get("/shelf", params={"value": NASTY})
    assert "<script>alert" not in page.text
    assert "<img" not in page.text
    assert "{{7*7}}" in page.text, "a name is no template"
    assert "&lt;script&gt;" in page.text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8088", "localhost.evil.example", "[::1]evil"]
)
async def test_a_console_on_loopback_refuses_foreign_host_names(sites, host):
    site = sites()
    assert (await site.web.get("/", headers={"host": host})).status_code == 421
    for own in ("127.0.0.1:8088", "localhost", "[::1]:8088"):
        assert (await site.web.get("/", headers={"host": own})).status_code == 200


@pytest.mark.parametrize("address", ["::1", "127.1.2.3", "localhost"])
async def test_every_loopback_address_refuses_foreign_host_names(sites, address):
    site = sites(bindAddress=address)
    assert (await site.web.get("/", headers={"host": "evil.example"})).status_code == 421


async def test_allowed_hosts_and_the_public_url_are_served(sites):
    site = sites(allowedHosts="mq.example", publicUrl="https://public.example")
    for host, status in (("mq.example", 200), ("public.example", 200), ("evil.example", 421)):
        assert (await site.web.get("/", headers={"host": host})).status_code == status


async def test_the_prefix_is_served_with_and_without_a_stripping_proxy(sites):
    site = sites(prefix="/cometmq")
    for path in ("/cometmq/", "/cometmq", "/"):
        page = await site.web.get(path)
        assert page.status_code == 200
        assert 'href="/cometmq/static/console.css' in page.text
    assert (await site.web.get("/cometmq/static/console.css")).status_code == 200
    style = await site.web.get("/cometmq/static/console.css")
    assert style.headers["content-type"].startswith("text/css")
    again = {"if-none-match": style.headers["etag"]}
    same = await site.web.get("/cometmq/static/console.css", headers=again)
    assert (same.status_code, same.content) == (304, b"")
    assert (await site.web.get("/cometmq/static/%2e%2e%2fframe.py")).status_code == 404
    assert (await site.web.get("/cometmqx")).status_code == 404


# -- logins -------------------------------------------------------------------------------------


async def test_a_login_and_a_logout(sites):
    site = sites()
    answer = await site.log_in("operator")
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    page = await site.web.get("/")
    assert "ops" in page.text
    await site.web.post("/logout", data={"csrf": hidden(page, "csrf")})
    assert "Log in" in (await site.web.get("/")).text


async def test_a_login_ends_the_session_that_the_browser_had(sites):
    site = sites()
    csrf = hidden(await site.web.get("/login"), "csrf")
    await site.log_in()
    before = dict(site.web.cookies)
    form = {"csrf": csrf, "token": "operator-token-0123456789", "next": "/"}
    await site.web.post("/login", data=form)
    assert "ops" in (await site.web.get("/")).text
    site.web.cookies.clear()
    site.web.cookies.update(before)
    assert "Log in" in (await site.web.get("/")).text


def test_only_sessions_of_the_same_kind_of_login_make_room_for_each_other():
    sessions = Sessions(FakeClock(), idle_ms=1_000, life_ms=1_000)
    kept = sessions.begin(User("boss", Role.ADMIN, "account"))
    for _ in range(SESSIONS_PER_USER_MAX + 1):
        sessions.begin(User("boss", Role.VIEWER, "oidc"))
    assert sessions.find(kept) is not None
    assert len(sessions) == SESSIONS_PER_USER_MAX + 1


async def test_cookies_are_for_tls_only_behind_https(sites):
    site = sites(publicUrl="https://public.example")
    site.web.base_url = "https://public.example"
    answer = await site.log_in()
    assert "Secure" in answer.headers["set-cookie"]
    assert "max-age" in answer.headers["strict-transport-security"]


async def test_sessions_expire(sites):
    site = sites(sessionIdle="10000", sessionLife="25000")
    await site.log_in()
    for _ in range(2):
        site.clock.advance(9_000)
        assert "boss" in (await site.web.get("/")).text
    site.clock.advance(9_000)  # longer than sessionLife in all
    assert "boss" not in (await site.web.get("/")).text


async def test_failed_logins_are_limited_per_name_and_address(sites):
    site = sites()
    page = await site.web.get("/login")
    form = {"csrf": hidden(page, "csrf"), "token": "wrong-token", "next": "/"}
    codes = [(await site.web.post("/login", data=form)).status_code for _ in range(7)]
    assert codes == [401] * 5 + [429] * 2
    refused = await site.web.post("/login", data=form)
    assert int(refused.headers["retry-after"]) > 0
    site.clock.advance(60_000)
    assert (await site.log_in()).status_code == 303


async def test_logins_at_the_same_time_are_limited_too(sites, monkeypatch):
    """While a broker checks one secret, hundreds of others could be on their way."""
    decided = asyncio.Event()

    async def check(*_args, **_more):
        await decided.wait()
        raise Refused("the secret key is wrong")

    monkeypatch.setattr("cometmq.console.login.routes.account_user", check)
    site = sites()
    page = await site.web.get("/login")
    form = {"csrf": hidden(page, "csrf"), "access_key": "chief", "secret_key": "guess"}
    async with asyncio.TaskGroup() as group:
        logins = [group.create_task(site.web.post("/login", data=form)) for _ in range(12)]
        while sum(it.done() for it in logins) < 7:  # noqa: ASYNC110  # the others wait
            await asyncio.sleep(0.001)
        decided.set()
    assert sorted(it.result().status_code for it in logins) == [401] * 5 + [429] * 7
    assert (await site.log_in()).status_code == 303


async def test_logins_that_nobody_could_check_are_not_counted(sites, monkeypatch):
    async def check(*_args, **_more):
        raise ConnectFailed("b:10911: refused")

    monkeypatch.setattr("cometmq.console.login.routes.account_user", check)
    site = sites()
    page = await site.web.get("/login")
    form = {"csrf": hidden(page, "csrf"), "access_key": "chief", "secret_key": "right"}
    codes = {(await site.web.post("/login", data=form)).status_code for _ in range(30)}
    assert codes == {401}


async def test_guessed_bearer_tokens_are_limited_too(sites):
    site = sites(pages=[PAGE])
    wrong = {"authorization": "Bearer guess-guess-guess-guess", **JSON}
    codes = [(await site.web.get("/thing", headers=wrong)).status_code for _ in range(6)]
    assert codes == [401] * 5 + [429]
    for path, status in (("/thing", 429), ("/missing", 404)):
        page = await site.web.get(path, headers={"authorization": wrong["authorization"]})
        assert page.status_code == status
        assert "text/html" in page.headers["content-type"]


@pytest.mark.parametrize(
    "there",
    ["//evil.example", "https://evil.example", "/\\evil.example", "\\evil", "javascript:alert(1)",
     "/a\r\nSet-Cookie: x=1", "/\tx", "", " /x", "/" + "x" * 3000],
)  # fmt: skip
async def test_a_login_leads_only_to_pages_of_the_console(sites, there):
    assert local_path(there) == "/"
    site = sites()
    page = await site.web.get("/login", params={"next": there})
    form = {"csrf": hidden(page, "csrf"), "token": "admin-token-0123456789", "next": there}
    answer = await site.web.post("/login", data=form)
    assert answer.headers["location"] == "/"


@pytest.mark.parametrize(
    "settings", [{"anonymousRole": "none"}, {"accessKey": "a", "secretKey": "b"}]
)
async def test_pages_can_demand_a_login(sites, settings):
    site = sites(pages=[PAGE], **settings)
    answer = await site.web.get("/thing?name=a")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fthing%3Fname%3Da"
    assert (await site.web.get("/thing", headers=JSON)).status_code == 401
    assert (await site.web.get("/thing", headers={**VIEWER, **JSON})).status_code == 200


# -- changes ------------------------------------------------------------------------------------


async def test_a_change_shows_its_consequences_and_is_audited(sites):
    shelf = Shelf()
    site = sites(pages=[PAGE], actions=[action(shelf)])
    await site.log_in("operator")
    page = await site.web.get("/shelf", params={"value": "new"})
    assert "What was there falls down." in page.text
    assert "cometmq shelf put new" in page.text
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
    assert shelf.value == "theirs"


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
    [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}],
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
