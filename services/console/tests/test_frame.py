# SPDX-License-Identifier: Apache-2.0
"""Pages in general: answers, logins, and what protects them."""

import asyncio
import re

import pytest

from cometmq.console.login.accounts import Refused
from cometmq.console.login.roles import Role, User
from cometmq.console.login.sessions import SESSIONS_PER_USER_MAX, Sessions
from cometmq.console.web import frame
from cometmq.console.web.page import Shown
from cometmq.remoting.errors import ConnectFailed
from cometmq.testing.runtime.clock import FakeClock

from .desks import JSON, VIEWER, hidden
from .shelf import EXTRA, PAGE, Shelf, action

NASTY = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}\u202e"


async def test_a_page_is_also_json_with_its_command_and_age(sites):
    site = sites(pages=[PAGE])
    answer = await site.web.get("/thing?name=a", headers=JSON)
    assert answer.json() == {
        "data": {"name": "a"},
        "command": "cometmq -n n:9876 topic a",
        "as_of_ms": 5,
        "unanswered": {},
    }
    assert (await site.web.get("/thing?name=a&json=1")).json() == answer.json()


async def test_what_did_not_answer_for_one_reason_is_named_together(sites):
    async def view(_view):
        silent = {"a:0": "SQL92 is off", "b:0": "<b>hangs", "a:1": "SQL92 is off"}
        return Shown({}, "cometmq", None, silent, EXTRA)

    site = sites(pages=[PAGE._replace(view=view)])
    text = (await site.web.get("/thing?name=a")).text
    assert "<li>a:0, a:1: SQL92 is off</li><li>b:0: &lt;b&gt;hangs</li>" in text


async def test_home_shows_a_cluster_of_which_nothing_is_known(sites):
    site = sites()
    page = await site.web.get("/")
    assert page.status_code == 200
    assert "unknown" in page.text
    assert "cometmq -n n:9876 doctor" in page.text


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
    kept = sessions.begin(User("boss", Role.ADMIN, "account"), "digest")
    for _ in range(SESSIONS_PER_USER_MAX + 1):
        sessions.begin(User("boss", Role.VIEWER, "oidc"), "digest")
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
    "settings", [{"anonymousRole": "none"}, {"accessKey": "a", "secretKey": "b"}]
)
async def test_pages_can_demand_a_login(sites, settings):
    site = sites(pages=[PAGE], **settings)
    answer = await site.web.get("/thing?name=a")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login?next=%2Fthing%3Fname%3Da"
    assert "All pages need a login" in (await site.web.get("/login")).text
    assert (await site.web.get("/thing", headers=JSON)).status_code == 401
    assert (await site.web.get("/thing", headers={**VIEWER, **JSON})).status_code == 200


async def test_addresses_with_a_slash_at_the_end_and_other_methods(sites):
    site = sites(pages=[PAGE], prefix="/cometmq")
    answer = await site.web.get("/cometmq/thing/")
    assert (answer.status_code, answer.headers["location"]) == (303, "/cometmq/thing")
    for path in ("//evil.example/", "//"):
        assert "evil" not in (await site.web.get(path)).headers.get("location", "")
    refused = await site.web.delete("/cometmq/thing", headers=JSON)
    assert refused.status_code == 405
    assert set(refused.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert (await site.web.head("/cometmq/thing?name=a")).status_code == 200


@pytest.mark.parametrize(
    ("namesrv", "shown", "told"),
    [
        ("127.0.0.1:9876", "cometmq one && cometmq two", "cometmq audit /d"),
        ("n:9876", "cometmq -n n:9876 one && cometmq -n n:9876 two", "cometmq audit /d"),
        ("a:1;b:2", "cometmq -n 'a:1;b:2' one && cometmq -n 'a:1;b:2' two", "cometmq audit /d"),
    ],
)
async def test_commands_reach_the_cluster_of_the_console(sites, namesrv, shown, told):
    async def view(request):
        return Shown({}, request.needed("command"), 0)

    site = sites(pages=[PAGE._replace(path="/commands", view=view)], namesrvAddr=namesrv)
    for command, wanted in (("cometmq one && cometmq two", shown), ("cometmq audit /d", told)):
        answer = await site.web.get("/commands", params={"command": command}, headers=JSON)
        assert answer.json()["command"] == wanted


@pytest.mark.parametrize("has_accounts", [False, True])
async def test_a_page_says_once_that_its_commands_need_an_account(sites, has_accounts):
    account = {"accessKey": "chief", "secretKey": "12345678"} if has_accounts else {}
    site = sites(**account)
    await site.log_in()  # with accounts, nobody else sees a page
    page = await site.web.get("/")
    assert page.text.count("cometmq --credentials FILE") == has_accounts
