# SPDX-License-Identifier: Apache-2.0
"""Logging in with an OpenID provider, which this test runs."""

import base64
import hashlib
import json
import secrets
import socket
import time
from contextlib import AsyncExitStack
from http import HTTPStatus
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx2
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from cometmq.console.login.accounts import Refused
from cometmq.console.login.oidc import Oidc
from cometmq.console.web.rendering import json_answer, redirect
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.http.server import HttpServer
from cometmq.testing.remoting.hostile_json import hostile

from .desks import Site

PUBLIC = "https://mq.example"


def real_s():
    return int(time.time())  # noqa: TID251  # as the provider's clock


class Provider:
    """An OpenID provider with one user; its attributes change what it says."""

    def __init__(self):
        self.now_s = real_s
        self.gives_refresh_tokens = True
        self.gives_id_tokens = True
        self.subject = "7"
        self.refused = None
        """The answer to refresh tokens, and its status."""
        self.refresh_tokens = set()
        self.refreshed = 0
        self.hostile = {}
        """Bodies, by the path of the request, that are sent instead of the right ones."""
        self.key = RSAKey.generate_key(2048, parameters={"kid": "one"})
        self.claims = {"preferred_username": "ann", "groups": ["staff", "mq-ops"]}
        self.signing = self.key
        self.audience = "console"
        self.nonce = None
        self.codes = {}
        self.url = ""

    async def start(self, stack):
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        every = Route("/{path:path}", self._answer, methods=["GET", "POST"])
        server = HttpServer(Starlette(routes=[every]), log=NO_LOG)
        await server.start(listener)
        self.stop = server.stop
        stack.push_async_callback(server.stop)

    async def _answer(self, request):
        pages = {
            "/.well-known/openid-configuration": self._metadata,
            "/authorize": self._authorize,
            "/token": self._token,
            "/keys": self._keys,
        }
        if (body := self.hostile.get(request["path"])) is not None:
            return Response(body, media_type="application/json")
        return await pages[request["path"]](request)

    async def _metadata(self, _request):
        return json_answer(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
            }
        )

    async def _authorize(self, request):
        asked = request.query_params
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(8)
        self.codes[code] = asked["code_challenge"], asked["nonce"]
        return redirect(f"{asked['redirect_uri']}?code={code}&state={asked['state']}")

    async def _token(self, request):
        form = parse_qs((await request.body()).decode())
        assert request.headers["authorization"].startswith("Basic ")
        if form["grant_type"] == ["refresh_token"]:
            return self._refresh(form["refresh_token"][0])
        found = self.codes.pop(form.get("code", [""])[0], None)
        if found is None:
            return json_answer({"error": "invalid_grant"}, HTTPStatus.BAD_REQUEST)
        challenge, nonce = found
        digest = hashlib.sha256(form["code_verifier"][0].encode()).digest()
        assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == challenge
        return self._tokens(nonce=self.nonce or nonce)

    def _refresh(self, given):
        self.refreshed += 1
        if self.refused is not None:
            return json_answer(*self.refused)
        assert given in self.refresh_tokens
        self.refresh_tokens.remove(given)  # each works once
        return self._tokens()

    def _tokens(self, **more):
        now = self.now_s()
        claims = {
            "iss": self.url, "aud": self.audience, "sub": self.subject, "iat": now,
            "exp": now + 60, **more, **self.claims,
        }  # fmt: skip
        answer = {"access_token": "a", "token_type": "Bearer"}
        if more or self.gives_id_tokens:
            answer["id_token"] = jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.signing)
        if self.gives_refresh_tokens:
            answer["refresh_token"] = secrets.token_urlsafe(8)
            self.refresh_tokens.add(answer["refresh_token"])
        return json_answer(answer)

    async def _keys(self, _request):
        return json_answer({"keys": [self.key.as_dict(private=False)]})


@pytest.fixture
async def stack():
    async with AsyncExitStack() as found:
        yield found


@pytest.fixture
async def provider(stack):
    found = Provider()
    await found.start(stack)
    return found


@pytest.fixture
def console(provider, stack, tmp_path):
    site = Site(
        tmp_path, stack, oidc=Oidc, publicUrl=PUBLIC, oidcIssuer=provider.url,
        oidcClientId="console", oidcClientSecret="secret",
        oidcRoles="mq-ops=operator;mq-admins=admin",
    )  # fmt: skip
    site.clock.jump(real_s() * 1_000)
    provider.now_s = lambda: site.clock.now_ms() // 1_000
    site.web.base_url = PUBLIC
    return site


async def log_in(console, there="/"):
    """Do what a browser does; return the answer of the callback."""
    begun = await console.web.get("/login/oidc", params={"next": there})
    assert begun.status_code == 303
    async with httpx2.AsyncClient(trust_env=False) as browser:
        back = await browser.get(begun.headers["location"])
    callback = urlsplit(back.headers["location"])
    assert (
        f"{callback.scheme}://{callback.netloc}{callback.path}" == f"{PUBLIC}/login/oidc/callback"
    )
    return callback, lambda: console.web.get(f"{callback.path}?{callback.query}")


async def test_a_user_logs_in_with_the_highest_role(console):
    assert "Single sign-on" in (await console.web.get("/login")).text
    _, finish = await log_in(console, "/topics")
    answer = await finish()
    assert (answer.status_code, answer.headers["location"]) == (303, "/topics")
    page = await console.web.get("/")
    assert "operator, by oidc" in page.text
    assert ">ann<" in page.text


async def test_an_answer_works_once_and_in_its_own_browser_only(console):
    _, finish = await log_in(console)
    assert (await finish()).status_code == 303
    assert (await finish()).status_code == 403
    _, finish = await log_in(console)
    console.web.cookies.clear()  # the address was opened in another browser
    assert (await finish()).status_code == 403


async def test_logins_that_strangers_begin_push_out_nobodys(console):
    _, finish = await log_in(console)
    mine = dict(console.web.cookies)
    for _ in range(1_100):
        assert (await console.web.get("/login/oidc")).status_code == 303
    console.web.cookies = mine
    assert (await finish()).status_code == 303


def encoded(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


FORGED_HEADERS = [
    *(b"", b"x", b"{}", b"[]", b"[" * 2_000, b'{"alg":"dir","enc":{}}', b'{"alg":[]}'),
    *(b'{"alg":"dir","enc":"A256GCM","crit":%s}' % it for it in (b"5", b"[[]]", b'["b64"]')),
]


@pytest.mark.parametrize(
    "forged",
    [
        *("", "x", "a.b.c.d.e", "x" * 3_000),
        *(f"{encoded(it)}..AA.AA.AA" for it in FORGED_HEADERS),
    ],
)
async def test_a_forged_cookie_is_refused(console, forged):
    console.web.cookies = {Oidc.COOKIE: forged}
    answer = await console.web.get("/login/oidc/callback?state=&code=c")
    assert answer.status_code == 403
    assert "began in another browser" in answer.text


async def test_a_login_ends_in_time_and_a_long_path_leads_home(console):
    _, finish = await log_in(console, "/topics?" + "x" * 2_000)
    assert (await finish()).headers["location"] == "/"
    _, finish = await log_in(console)
    console.clock.advance(Oidc.COOKIE_S * 1_000)
    assert (await finish()).status_code == 403


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("claims", {"preferred_username": "eve", "groups": ["staff"]}),
        ("claims", {"groups": "mq-admins-not"}),
        ("claims", {"groups": 7}),
        ("claims", {"groups": [{}]}),
        ("claims", {"groups": [None]}),
        ("subject", 7),
        ("subject", ""),
        ("claims", {"groups": ["mq-ops"], "exp": 1}),
        ("claims", {"groups": ["mq-ops"], "iss": "https://evil.example"}),
        ("audience", "other"),
        ("nonce", "replayed"),
        ("signing", RSAKey.generate_key(2048, parameters={"kid": "one"})),
    ],
)
async def test_other_answers_are_refused(console, provider, name, value):
    setattr(provider, name, value)
    _, finish = await log_in(console)
    answer = await finish()
    assert answer.status_code == 403
    assert "Login refused" in answer.text
    assert "by oidc" not in (await console.web.get("/")).text


async def test_roles_may_be_nested(provider, stack, tmp_path):
    provider.claims = {"realm": {"roles": ["boss"]}}
    site = Site(
        tmp_path, stack, oidc=Oidc, publicUrl=PUBLIC, oidcIssuer=provider.url,
        oidcClientId="console", oidcClientSecret="s", oidcRoles="*=viewer;boss=admin",
        oidcRoleClaim="realm.roles",
    )  # fmt: skip
    site.clock.jump(real_s() * 1_000)
    site.web.base_url = PUBLIC
    _, finish = await log_in(site)
    assert (await finish()).status_code == 303
    assert "admin, by oidc" in (await site.web.get("/")).text


async def test_a_silent_provider_is_named(stack, tmp_path):
    site = Site(
        tmp_path, stack, oidc=Oidc, publicUrl=PUBLIC, oidcIssuer="http://127.0.0.1:1",
        oidcClientId="c", oidcRoles="*=viewer",
    )  # fmt: skip
    site.web.base_url = PUBLIC
    answer = await site.web.get("/login/oidc")
    assert answer.status_code == 502
    assert "the OpenID provider does not answer" in answer.text


METADATA = {"issuer": "", "authorization_endpoint": "", "token_endpoint": "", "jwks_uri": ""}


async def test_hostile_metadata_is_one_clear_line(console, provider):
    sample = {name: f"{provider.url}/{name}" for name in METADATA} | {"issuer": provider.url}
    bodies = dict(hostile(sample)) | {
        "script": json.dumps(sample | {"authorization_endpoint": "javascript:alert(1)"}).encode(),
        "not ASCII": json.dumps(sample | {"authorization_endpoint": "http://€ ü\n/"}).encode(),
        "no host": json.dumps(sample | {"token_endpoint": "http:///token"}).encode(),
    }
    assert len(bodies) > 100
    for name, body in bodies.items():
        provider.hostile = {"/.well-known/openid-configuration": body}
        answer = await console.web.get("/login/oidc")
        assert answer.status_code == 502, name
        assert "the OpenID provider" in answer.text, name


async def test_hostile_answers_to_a_login_are_one_clear_line(console, provider):
    callback, finish = await log_in(console)
    query = dict(parse_qsl(callback.query))
    cookie, codes = console.web.cookies[Oidc.COOKIE], dict(provider.codes)
    jwk = provider.key.as_dict(private=False)
    samples = {
        "/token": {"access_token": "a", "id_token": "x.y.z", "expires_in": 9},
        "/keys": {"keys": [{name: jwk[name] for name in ("kty", "n", "kid")}]},
    }
    for path, sample in samples.items():
        for name, body in hostile(sample):
            provider.codes = dict(codes)
            provider.hostile = {path: body}
            with pytest.raises(Refused, match=r"^the provider's answer cannot be used: "):
                pytest.fail(f"{path} {name}: {await console.oidc.end(query, cookie)}")
    provider.hostile = {"/token": b"[" * 9_000}
    answer = await finish()
    assert answer.status_code == 403
    assert "the provider&#39;s answer cannot be used: " in answer.text


MINUTE_MS = 60_000


@pytest.fixture
async def ann(console):
    """The page of ann, an operator."""
    _, finish = await log_in(console)
    assert (await finish()).status_code == 303

    async def page_after(minutes):
        console.clock.advance(minutes * MINUTE_MS)
        return await console.web.get("/")

    assert "operator, by oidc" in (await page_after(0)).text
    return page_after


async def test_a_disabled_user_is_logged_out_within_a_minute(provider, ann):
    provider.refused = {"error": "invalid_grant"}, HTTPStatus.BAD_REQUEST
    assert "operator, by oidc" in (await ann(0)).text
    ended = await ann(1)
    assert ended.status_code == 401
    assert "the OpenID provider does not accept ann any more (invalid_grant)" in ended.text
    assert "by oidc" not in (await ann(0)).text


async def test_a_role_follows_the_claims(provider, ann):
    provider.claims = {"preferred_username": "ann", "groups": ["mq-admins"]}
    assert "admin, by oidc" in (await ann(1)).text
    assert "admin, by oidc" in (await ann(1)).text
    assert "admin, by oidc" in (await ann(0)).text
    assert provider.refreshed == 2  # not for each page
    provider.claims = {"preferred_username": "ann", "groups": ["staff"]}
    ended = await ann(1)
    assert (ended.status_code, "ann has no role for the console" in ended.text) == (401, True)


async def test_a_provider_may_confirm_a_user_without_claims(provider, ann):
    provider.gives_id_tokens = False
    for _ in range(70):
        assert "operator, by oidc" in (await ann(1)).text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subject", "8"),
        ("audience", "other"),
        ("signing", RSAKey.generate_key(2048, parameters={"kid": "one"})),
    ],
)
async def test_claims_of_others_end_the_session(provider, ann, name, value):
    setattr(provider, name, value)
    assert (await ann(1)).status_code == 401
    assert "by oidc" not in (await ann(0)).text


@pytest.mark.parametrize(
    "answer",
    [
        ({"error": "temporarily_unavailable"}, HTTPStatus.BAD_REQUEST),
        ({"error": "invalid_client"}, HTTPStatus.UNAUTHORIZED),
        ({}, HTTPStatus.OK),
        ({}, HTTPStatus.BAD_GATEWAY),
        None,
    ],
)
async def test_an_outage_of_the_provider_is_tolerated_for_an_hour(provider, ann, answer):
    provider.refused = answer
    if answer is None:
        await provider.stop()
    for minutes in (1, 29, 29):
        assert "operator, by oidc" in (await ann(minutes)).text
    if answer is not None:
        provider.refused = None
        assert "operator, by oidc" in (await ann(2)).text
        provider.refused = answer
        assert "operator, by oidc" in (await ann(29)).text
        assert "operator, by oidc" in (await ann(29)).text
    ended = await ann(2)
    assert ended.status_code == 401
    assert "the OpenID provider has not confirmed ann for 1 h" in ended.text
    assert "by oidc" not in (await ann(0)).text


async def test_hostile_answers_to_a_refresh_token_are_like_an_outage(provider, ann):
    for name, body in hostile({"access_token": "a", "expires_in": 9}):
        provider.hostile = {"/token": body}
        shown = await ann(1)
        assert "operator, by oidc" in shown.text, name
    assert provider.refreshed == 0
    provider.hostile = {}
    assert "operator, by oidc" in (await ann(1)).text
    assert provider.refreshed == 1


async def test_without_a_refresh_token_a_session_lasts_an_hour(console, provider):
    provider.gives_refresh_tokens = False
    _, finish = await log_in(console)
    assert (await finish()).status_code == 303
    for _ in range(2):
        console.clock.advance(29 * MINUTE_MS)
        assert "operator, by oidc" in (await console.web.get("/")).text
    console.clock.advance(2 * MINUTE_MS)
    assert (await console.web.get("/")).status_code == 401
    assert provider.refreshed == 0
