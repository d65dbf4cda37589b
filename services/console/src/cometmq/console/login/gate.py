# SPDX-License-Identifier: Apache-2.0
"""Finds the user of a request, logs users in and out, checks the tokens of forms, and limits failed
logins per name, per address and in total.
"""

import hmac
import secrets
from http import HTTPStatus
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.login.roles import Role, User, role_of
from cometmq.console.login.sessions import Proof, Session, Sessions
from cometmq.console.login.tokens import INVALID, Tokens
from cometmq.console.settings import ConsoleSettings
from cometmq.console.web.guard import Known, check_origin, client_of, is_secure
from cometmq.console.web.problems import FormExpired, Problem
from cometmq.remoting.log import Log
from cometmq.runtime.clock import Clock
from cometmq.runtime.http.server import network_of

_BEARER: Final = "bearer "
PER_NAME_MAX: Final = 5
PER_ADDRESS_MAX: Final = 20
TOTAL_MAX: Final = 200
PERIOD_MS: Final = 60_000
KEYS_MAX: Final = 10_000


class Gate:
    """Finds the users of requests, and begins and ends their sessions."""

    def __init__(
        self, settings: ConsoleSettings, tokens: Tokens, *, known: Known, clock: Clock, log: Log
    ) -> None:
        self._settings = settings
        self._tokens = tokens
        self._log = log
        self.known_networks = known
        self.attempts = Attempts(clock, known)
        self.sessions = Sessions(
            clock, idle_ms=settings.session_idle, life_ms=settings.session_life
        )
        role = settings.anonymous_role or ("none" if settings.access_key else "viewer")
        self._anonymous = User("", role_of(role, "anonymousRole"), "")
        name = f"cometmq_console_{settings.listen_port}"  # cookies do not distinguish ports
        self._cookie, self._form_cookie = name, f"{name}_form"

    @property
    def is_closed(self) -> bool:
        """Return whether pages need a login, not only changes."""
        return self._anonymous.role is Role.NONE

    def who(self, request: Request) -> tuple[User, Session | None]:
        """Return the user of a request; raise Problem for an invalid bearer token."""
        given = request.headers.get("authorization", "")
        if given.lower().startswith(_BEARER):
            return self._bearer(given[len(_BEARER) :].strip(), request), None
        session = self.sessions.find(request.cookies.get(self._cookie, ""))
        if session is not None and session.token:
            user = self._tokens.user_of(session.token)
            if user is None:
                self.revoke(request, session)
                session = None
            else:
                session.user = user
        return (self._anonymous, None) if session is None else (session.user, session)

    def known(self, request: Request) -> tuple[User, Session | None]:
        """Return the user of a request for a page about an error, without checking a bearer
        token.
        """
        if request.headers.get("authorization", "").lower().startswith(_BEARER):
            return User("", Role.NONE, ""), None
        return self.who(request)

    def check_form(
        self, request: Request, session: Session | None, form: dict[str, list[str]]
    ) -> None:
        """Raise Problem unless the form has the token that the console gave to this browser."""
        if request.headers.get("authorization", "").lower().startswith(_BEARER):
            return  # browsers do not add this header by themselves
        check_origin(request, self._settings)
        wanted = session.csrf if session is not None else self._form_token(request)
        given = (form.get("csrf") or [""])[-1]
        if not wanted or not hmac.compare_digest(given.encode(), wanted.encode()):
            raise FormExpired

    def begin(self, request: Request, response: Response, user: User, proof: Proof) -> None:
        """Log a user in; the session that the browser had before ends."""
        self.sessions.end(request.cookies.get(self._cookie, ""))
        cookie = self.sessions.begin(user, proof)
        self._set(response, self._cookie, cookie, self._settings.session_life // 1_000)
        self._log.info("login.accepted", user=user.name, role=user.role.name.lower(), how=user.how)

    def revoke(self, request: Request, session: Session) -> None:
        """End the session of a user whose account, token or provider no longer permits the
        login.
        """
        self.sessions.end(request.cookies.get(self._cookie, ""))
        self._log.warning("login.revoked", user=session.user.name)

    def end(self, request: Request, response: Response) -> None:
        self.sessions.end(request.cookies.get(self._cookie, ""))
        self._set(response, self._cookie, "", 0)

    def begin_attempt(self, name: str, request: Request) -> None:
        """Raise Problem if there were too many failed logins; count this one until it succeeds."""
        self.check_attempts(name, request)
        self.attempts.begin(name, client_of(request))

    def check_attempts(self, name: str, request: Request) -> None:
        wait_s = self.attempts.wait_s(name, client_of(request))
        if wait_s:
            problem = Problem(
                HTTPStatus.TOO_MANY_REQUESTS, f"too many failed logins: try again in {wait_s} s"
            )
            problem.headers["Retry-After"] = str(wait_s)
            raise problem

    def refuse(self, name: str, request: Request) -> None:
        self._log.warning("login.refused", user=name[:100], address=client_of(request))

    def form_token(self, request: Request, response_cookies: dict[str, str]) -> str:
        """Return the token for the login form; add a cookie for the answer to `response_cookies` if
        needed.
        """
        cookie = request.cookies.get(self._form_cookie, "")
        if not cookie:
            cookie = secrets.token_urlsafe(32)
            response_cookies[self._form_cookie] = cookie
        return self.sessions.form_token(cookie)

    def set_short(self, response: Response, name: str, value: str, life_s: int = 3_600) -> None:
        """Set a cookie that is needed only while a login is in progress."""
        self._set(response, name, value, life_s)

    def _form_token(self, request: Request) -> str:
        cookie = request.cookies.get(self._form_cookie, "")
        return self.sessions.form_token(cookie) if cookie else ""

    def _bearer(self, token: str, request: Request) -> User:
        self.begin_attempt("", request)
        user = self._tokens.find(token)
        if user is None:
            self.refuse("", request)
            raise Problem(HTTPStatus.UNAUTHORIZED, INVALID)
        self.attempts.withdraw("", client_of(request))
        self.known_networks.add(client_of(request))
        return user

    def _set(self, response: Response, name: str, value: str, life_s: int) -> None:
        response.set_cookie(
            name,
            value,
            max_age=life_s,
            path=self._path,
            secure=is_secure(self._settings),
            httponly=True,
        )

    @property
    def _path(self) -> str:
        return self._settings.prefix or "/"


def may(user: User, role: Role) -> bool:
    return user.role >= role


class Attempts:
    """Counts failed logins, and logins in progress, in the current period of each key.

    An attempt counts as failed from its beginning, because many attempts can wait for brokers at
    the same time. A name is locked only for the addresses that fail with it, so that a stranger
    cannot lock its owner out. For the same reason, the total does not lock addresses from which a
    user has logged in: strangers with many addresses would otherwise lock out everybody.
    """

    def __init__(self, clock: Clock, known: Known) -> None:
        self._clock = clock
        self._known = known
        self._failures: dict[tuple[str, ...], tuple[int, int]] = {}
        """The start of the period and the count, by key."""

    def wait_s(self, name: str, address: str) -> int:
        """Return the seconds until the next attempt may be made; 0 if it may be made now."""
        keys = _keys(name, address)
        if address in self._known:
            del keys[_TOTAL]
        return -(-max(self._wait_ms(key, limit) for key, limit in keys.items()) // 1_000)

    def begin(self, name: str, address: str) -> None:
        """Count an attempt as failed."""
        now_ms = self._clock.monotonic_ms()
        for key in _keys(name, address):
            begin_ms, count = self._failures.pop(key, (now_ms, 0))
            if now_ms - begin_ms >= PERIOD_MS:
                begin_ms, count = now_ms, 0
            self._failures[key] = begin_ms, count + 1
        while len(self._failures) > KEYS_MAX:  # the oldest keys; the total is always recent
            del self._failures[next(iter(self._failures))]

    def withdraw(self, name: str, address: str) -> None:
        """Subtract an attempt that did not fail."""
        for key in _keys(name, address):
            begin_ms, count = self._failures.get(key, (0, 0))
            if count:
                self._failures[key] = begin_ms, count - 1

    def succeeded(self, name: str, address: str) -> None:
        """Forget the failures of this name from this address, and do not count this attempt."""
        self.withdraw(name, address)
        self._failures.pop(_name_key(name, address), None)
        self._known.add(address)

    def _wait_ms(self, key: tuple[str, ...], limit: int) -> int:
        begin_ms, count = self._failures.get(key, (0, 0))
        if count < limit:
            return 0
        return max(0, begin_ms + PERIOD_MS - self._clock.monotonic_ms())


_Key = tuple[str, ...]
_TOTAL: Final[_Key] = ("total",)


def _name_key(name: str, address: str) -> _Key:
    return "name", name, network_of(address)


def _keys(name: str, address: str) -> dict[_Key, int]:
    return {
        _name_key(name, address): PER_NAME_MAX,
        ("address", network_of(address)): PER_ADDRESS_MAX,
        _TOTAL: TOTAL_MAX,
    }
