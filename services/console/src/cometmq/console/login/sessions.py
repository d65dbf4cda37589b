# SPDX-License-Identifier: Apache-2.0
"""Sessions of users who logged in: bounded in number, and expiring.

A browser holds a random token; the console keeps only its digest. A restart ends all sessions.
"""

import hashlib
import hmac
import secrets
from typing import Final

from cometmq.console.login.roles import User
from cometmq.remoting.signature import SessionCredentials
from cometmq.runtime.clock import Clock

SESSIONS_MAX: Final = 1_000
SESSIONS_PER_USER_MAX: Final = 20
"""The oldest session of a user with more sessions ends, so that one user cannot evict all
others.
"""
ASKED_AGAIN_MS: Final = 10_000
"""Interval of asking brokers about an account: a session may outlive the account, or its rights, by
this time.
"""
PROVIDER_ASKED_AGAIN_MS: Final = 60_000
"""Interval of asking an OpenID provider about a user; it is longer because providers may limit the
rate.
"""


class Grant:
    """An OpenID provider's confirmation of a user, and the refresh token for later checks."""

    __slots__ = ("confirmed_ms", "refresh_token", "subject")

    def __init__(self, subject: str, refresh_token: str, now_ms: int) -> None:
        """`refresh_token` is empty if the provider gives none."""
        self.subject = subject
        self.refresh_token = refresh_token
        self.confirmed_ms = now_ms
        """When the provider last confirmed the user."""


class Session:
    """One login of a user in one browser."""

    __slots__ = (
        "asked_ms",
        "begun_ms",
        "credentials",
        "csrf",
        "grant",
        "notice",
        "seen_ms",
        "token",
        "user",
    )

    def __init__(self, user: User, proof: "Proof", now_ms: int) -> None:
        self.user = user
        self.credentials = proof if isinstance(proof, SessionCredentials) else None
        """The user's own account, with which changes are sent; None for the console's account."""
        self.token = proof if isinstance(proof, str) else ""
        """The digest of the token with which the user logged in; the session ends if the token is
        removed.
        """
        self.grant = proof if isinstance(proof, Grant) else None
        self.csrf = secrets.token_urlsafe(32)
        self.begun_ms = now_ms
        self.asked_ms = now_ms
        """When the brokers or the provider were last asked about the user."""
        self.seen_ms = now_ms
        self.notice = ""
        """The outcome of the last change, which is shown on the next page only."""


Proof = SessionCredentials | Grant | str
"""Proves who a user is: an account, a provider's grant, or the digest of a token."""


class Sessions:
    """All sessions, the least recently used first."""

    def __init__(self, clock: Clock, *, idle_ms: int, life_ms: int) -> None:
        self._clock = clock
        self._idle_ms = idle_ms
        self._life_ms = life_ms
        self._sessions: dict[bytes, Session] = {}
        self._key = secrets.token_bytes(32)

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: User, proof: Proof) -> str:
        """Return the token of a new session; the oldest of too many sessions ends."""
        self._expire()
        who = user.name, user.how  # an OpenID user may choose the name of an account
        own = [key for key, it in self._sessions.items() if (it.user.name, it.user.how) == who]
        for key in own[: max(0, len(own) + 1 - SESSIONS_PER_USER_MAX)]:
            del self._sessions[key]
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(32)
        self._sessions[_digest(token)] = Session(user, proof, self._clock.monotonic_ms())
        return token

    def find(self, token: str) -> Session | None:
        """Return the session of a token, and count the call as its use; None if it has expired."""
        if not token:
            return None
        key = _digest(token)
        session = self._sessions.get(key)
        now_ms = self._clock.monotonic_ms()
        if session is None:
            return None
        del self._sessions[key]
        if self._has_expired(session, now_ms):
            return None
        session.seen_ms = now_ms
        self._sessions[key] = session  # now the most recently used
        return session

    def is_due(self, session: Session) -> bool:
        """Return whether the brokers or the provider must be asked about the user of a session now.

        After True, it returns False for the interval, so that only one request asks.
        """
        if session.token:
            return False
        pause_ms = ASKED_AGAIN_MS if session.grant is None else PROVIDER_ASKED_AGAIN_MS
        now_ms = self._clock.monotonic_ms()
        is_due = now_ms - session.asked_ms >= pause_ms
        if is_due:
            session.asked_ms = now_ms
        return is_due

    def end(self, token: str) -> None:
        """End the session of a token, if there is one."""
        self._sessions.pop(_digest(token), None)

    def form_token(self, cookie: str) -> str:
        """Return the token of a form for a browser without a session, bound to its cookie."""
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()

    def _expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        expired = [key for key, it in self._sessions.items() if self._has_expired(it, now_ms)]
        for key in expired:
            del self._sessions[key]

    def _has_expired(self, session: Session, now_ms: int) -> bool:
        is_idle = now_ms - session.seen_ms >= self._idle_ms
        return is_idle or now_ms - session.begun_ms >= self._life_ms


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
