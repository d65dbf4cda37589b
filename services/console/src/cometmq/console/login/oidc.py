# SPDX-License-Identifier: Apache-2.0
"""Logs in with an OpenID provider: authorization code flow with PKCE, state and nonce. Later checks
of the user use the refresh token.

The packages authlib and httpx2 come with the extra `oidc`.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from httpx2 import URL, HTTPError, InvalidURL
from joserfc import jwe, jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, OctKey

from cometmq.console.login.accounts import Refused
from cometmq.console.login.roles import Role, User, role_of
from cometmq.console.login.sessions import Grant
from cometmq.console.settings import ConsoleSettings
from cometmq.insight.words import lasting
from cometmq.remoting.errors import UNREADABLE_JSON, SettingsError
from cometmq.runtime.clock import Clock

SEALED: Final = {"alg": "dir", "enc": "A256GCM"}
THERE_MAX: Final = 1_000
TIMEOUT_S: Final = 10.0
STANDING_TIMEOUT_S: Final = 3.0
"""How long a page waits for the provider when it checks the user of a session again."""
NOT_ABOUT_USERS: Final = frozenset({"invalid_client", "server_error", "temporarily_unavailable"})
"""Errors of a provider that do not mean that the user is refused."""
LEEWAY_S: Final = 60
ALGORITHMS: Final = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"]
"""The accepted signatures. Symmetric ones are missing, so a provider that signs with the client's
secret is refused.
"""
NAME_MAX: Final = 200
_UNUSABLE: Final = (
    *(HTTPError, InvalidURL, ValueError, RecursionError),
    *(LookupError, TypeError, AttributeError, ArithmeticError),
)
"""Raised if there is no answer, or if its JSON or that of a cookie is unreadable or has values of
other types; authlib and joserfc have no errors of their own for the latter.
"""


class _Metadata(msgspec.Struct, frozen=True):
    """The metadata that a provider publishes."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class _Tokens(msgspec.Struct, frozen=True):
    """A provider's answer to a code or a refresh token; authlib keeps the access token."""

    id_token: str | None = None
    access_token: str | None = None
    refresh_token: str | None = None


class _Pending(msgspec.Struct, frozen=True):
    """A login in progress at the provider.

    It is stored in a sealed cookie, not in memory, so logins that strangers begin cannot evict it.
    """

    state: str
    verifier: str
    nonce: str
    there: str
    begun_ms: int


class Oidc:
    """One provider."""

    COOKIE: Final = "cometmq_console_oidc"
    COOKIE_S: Final = 600

    def __init__(self, settings: ConsoleSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._roles = roles_of(settings.oidc_roles)
        self._seal = OctKey.generate_key(256)
        self._metadata: _Metadata | None = None
        self._client = AsyncOAuth2Client(
            settings.oidc_client_id,
            settings.oidc_client_secret or None,
            scope=settings.oidc_scopes,
            redirect_uri=f"{settings.public_url}{settings.prefix}/login/oidc/callback",
            code_challenge_method="S256",
            token_endpoint_auth_method="client_secret_basic"
            if settings.oidc_client_secret
            else "none",
            timeout=TIMEOUT_S,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def begin(self, there: str) -> tuple[str, str]:
        """Return the provider's URL to which the browser is redirected, and the cookie with the
        login's state.

        `there` is the path to open after the login; if it is long, the home page is opened instead.
        """
        metadata = await self._provider()
        verifier, nonce = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
        url, state = self._client.create_authorization_url(
            metadata.authorization_endpoint,
            state=secrets.token_urlsafe(32),
            code_verifier=verifier,
            nonce=nonce,
        )
        there = there if len(there) <= THERE_MAX else "/"
        pending = _Pending(state, verifier, nonce, there, self._clock.monotonic_ms())
        return url, jwe.encrypt_compact(SEALED, msgspec.json.encode(pending), self._seal)

    async def end(self, answer: Mapping[str, str], cookie: str) -> tuple[User, Grant, str]:
        """Return the user, the provider's grant, and the path to open; raise Refused for
        any fault.
        """
        pending = self._opened(cookie)
        if (
            pending is None
            or pending.state != answer.get("state")
            or self._clock.monotonic_ms() - pending.begun_ms >= self.COOKIE_S * 1_000
        ):
            raise Refused("the login has expired, or began in another browser: try again")
        if "error" in answer:
            raise Refused(f"the provider refuses the login: {answer['error'][:NAME_MAX]}")
        metadata = await self._provider()
        try:
            answered = await self._client.fetch_token(
                metadata.token_endpoint,
                code=answer.get("code", ""),
                code_verifier=pending.verifier,
            )
            tokens = msgspec.convert(dict(answered), _Tokens)
            nonce: jwt.ClaimsOption = {"essential": True, "value": pending.nonce}
            claims = await self._claims(tokens.id_token or "", nonce=nonce)
        except (AuthlibBaseError, JoseError, *_UNUSABLE) as error:
            raise Refused(
                f"the provider's answer cannot be used: {type(error).__name__}"
            ) from error
        grant = Grant(claims["sub"], tokens.refresh_token or "", self._clock.monotonic_ms())
        return self._user(claims), grant, pending.there

    async def standing_user(self, grant: Grant, user: User) -> User:
        """Return the user of a session with the role that the provider gives now.

        If the provider does not answer, the user keeps the role for a limited time, because
        operators need the console during an outage. Raise Refused after that, or if the provider
        refuses the user.
        """
        if grant.refresh_token:
            try:
                return await self._renewed(grant, user)
            except JoseError as error:
                text = f"the provider's answer cannot be used: {type(error).__name__}"
                raise Refused(f"{text}; log in again") from error
            except AuthlibBaseError as error:
                reason = str(error.error)[:NAME_MAX]
                if reason not in NOT_ABOUT_USERS:
                    text = f"the OpenID provider does not accept {user.name} any more"
                    raise Refused(f"{text} ({reason}): log in again") from error
            except _UNUSABLE:
                pass  # it does not answer, or something else does
        since_ms = self._clock.monotonic_ms() - grant.confirmed_ms
        if since_ms >= self._settings.oidc_unconfirmed:
            raise Refused(
                f"the OpenID provider has not confirmed {user.name} for"
                f" {lasting(since_ms / 1_000)}: log in again"
            )
        return user

    async def _renewed(self, grant: Grant, user: User) -> User:
        metadata = await self._provider()
        answered = await self._client.refresh_token(
            metadata.token_endpoint,
            refresh_token=grant.refresh_token,
            timeout=STANDING_TIMEOUT_S,
        )
        tokens = msgspec.convert(dict(answered), _Tokens)
        if tokens.refresh_token:
            grant.refresh_token = tokens.refresh_token  # the old one may not work again
        if tokens.id_token:
            subject: jwt.ClaimsOption = {"essential": True, "value": grant.subject}
            user = self._user(await self._claims(tokens.id_token, sub=subject))
        elif not tokens.access_token:
            raise KeyError("access_token")
        grant.confirmed_ms = self._clock.monotonic_ms()
        return user

    def _opened(self, cookie: str) -> _Pending | None:
        """Return the login that `begin` has sealed in a cookie; None if the cookie is not valid."""
        try:
            opened = jwe.decrypt_compact(cookie, self._seal, algorithms=list(SEALED.values()))
            return msgspec.json.decode(opened.plaintext or b"", type=_Pending)
        except (JoseError, *_UNUSABLE):
            return None

    async def _claims(self, id_token: str, **more: jwt.ClaimsOption) -> dict[str, Any]:
        """Return the claims of an ID token after checking it; `more` are further requirements."""
        metadata = await self._provider()
        keys = await self._client.request("GET", metadata.jwks_uri, withhold_token=True)
        keys.raise_for_status()
        decoded = jwt.decode(id_token, KeySet.import_key_set(keys.json()), algorithms=ALGORITHMS)
        needed: dict[str, jwt.ClaimsOption] = {
            "iss": {"essential": True, "value": metadata.issuer},
            "aud": {"essential": True, "value": self._settings.oidc_client_id},
            "exp": {"essential": True},
            "sub": {"essential": True},
            **more,
        }
        now_s = self._clock.now_ms() // 1_000
        jwt.JWTClaimsRegistry(now=now_s, leeway=LEEWAY_S, **needed).validate(decoded.claims)
        claims = dict(decoded.claims)
        if not isinstance(claims["sub"], str):
            raise TypeError("the subject is no text")
        return claims

    def _user(self, claims: Mapping[str, Any]) -> User:
        name = claims.get(self._settings.oidc_name_claim) or claims["sub"]
        found: Any = claims
        for key in self._settings.oidc_role_claim.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        several = found if isinstance(found, list) else [found]
        values = {it for it in several if isinstance(it, str)}
        roles = [role for value, role in self._roles.items() if value == "*" or value in values]
        role = max(roles, default=Role.NONE)
        if role is Role.NONE:
            raise Refused(f"{str(name)[:NAME_MAX]} has no role for the console")
        return User(str(name)[:NAME_MAX], role, "oidc")

    async def _provider(self) -> _Metadata:
        """Return the provider's metadata, fetched once."""
        if self._metadata is not None:
            return self._metadata
        issuer = self._settings.oidc_issuer.rstrip("/")
        url = f"{issuer}/.well-known/openid-configuration"
        try:
            answer = await self._client.request("GET", url, withhold_token=True)
            answer.raise_for_status()
        except (HTTPError, InvalidURL) as error:
            raise Refused(f"the OpenID provider does not answer: {type(error).__name__}") from error
        try:
            metadata = msgspec.json.decode(answer.content, type=_Metadata)
            endpoints = {name: _endpoint(getattr(metadata, name)) for name in _ENDPOINTS}
        except (*UNREADABLE_JSON, InvalidURL, ValueError) as error:
            raise Refused(f"the OpenID provider's {url} cannot be used: {error}") from error
        if metadata.issuer.rstrip("/") != issuer:
            raise Refused("the OpenID provider names another issuer than oidcIssuer")
        self._metadata = msgspec.structs.replace(metadata, **endpoints)
        return self._metadata


def _endpoint(text: str) -> str:
    """Return an address as a browser and a client can use it; raise InvalidURL or ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError(f"{text[:NAME_MAX]!r} is no address of a page")
    return str(URL(text))


def roles_of(text: str) -> dict[str, Role]:
    """Parse `value=role;value=role`."""
    found: dict[str, Role] = {}
    for part in filter(None, (it.strip() for it in text.split(";"))):
        value, equals, role = part.rpartition("=")
        if not equals or not value.strip():
            raise SettingsError(f"oidcRoles={text}: give value=role;value=role")
        found[value.strip()] = role_of(role, f"oidcRoles={text}")
    return found
