# SPDX-License-Identifier: Apache-2.0
"""The pages of logging in and out."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from cometmq.console.desk import Desk
from cometmq.console.login.accounts import Refused, account_user, standing_user
from cometmq.console.login.gate import Gate
from cometmq.console.login.roles import Role, User, role_of
from cometmq.console.login.sessions import Proof, Session
from cometmq.console.login.tokens import INVALID, Tokens, digest_in
from cometmq.console.web.guard import client_of, form_of, local_path
from cometmq.console.web.problems import Problem
from cometmq.console.web.rendering import Renderer, redirect
from cometmq.remoting.errors import CometError
from cometmq.remoting.signature import SessionCredentials

if TYPE_CHECKING:
    from cometmq.console.login.oidc import Oidc

LENGTH_MAX = 1_000
FORM_BYTES_MAX = 64 << 10
"""The largest login form. Anybody may send these forms, and decoding a large one takes a second."""


class LoginPages:
    """Logs users in with a token, an account, or an OpenID provider."""

    def __init__(
        self,
        desk: Desk,
        gate: Gate,
        tokens: Tokens,
        renderer: Renderer,
        *,
        oidc: "Oidc | None",
        has_generated_token: bool,
    ) -> None:
        self._desk = desk
        self._gate = gate
        self._tokens = tokens
        self._renderer = renderer
        self._oidc = oidc
        self._has_generated_token = has_generated_token

    def routes(self) -> dict[str, tuple[Callable[[Request], Awaitable[Response]], str]]:
        """Return the handlers by path, with their methods; the frame turns errors into pages."""
        found: dict[str, tuple[Callable[[Request], Awaitable[Response]], str]] = {
            "/login": (self._login, "GET POST"),
            "/logout": (self._logout, "POST"),
        }
        if self._oidc is not None:
            found["/login/oidc"] = self._oidc_begin, "GET"
            found["/login/oidc/callback"] = self._oidc_end, "GET"
        return found

    async def who(self, request: Request) -> tuple[User, Session | None]:
        """Return the user of a request.

        At intervals, the brokers or the provider are asked whether the user still has the role. If
        they refuse the user, end the session and raise Problem.
        """
        user, session = self._gate.who(request)
        if session is None or not self._gate.sessions.is_due(session):
            return user, session
        try:
            session.user = await self._standing(session)
        except Refused as error:
            self._gate.revoke(request, session)
            title = "Your login has ended"
            raise Problem(HTTPStatus.UNAUTHORIZED, str(error), title=title) from error
        except CometError:
            return user, session  # no name server answers
        return session.user, session

    async def _standing(self, session: Session) -> User:
        """Return the user of a session with the role that the brokers or the provider give now."""
        if session.credentials is not None:
            return await standing_user(
                self._desk.admin.options,
                session.credentials,
                session.user,
                role=role_of(self._desk.settings.account_role, "accountRole"),
                log=self._desk.log,
            )
        assert self._oidc is not None
        assert session.grant is not None
        return await self._oidc.standing_user(session.grant, session.user)

    async def _login(self, request: Request) -> Response:
        if request.method != "POST":
            return self._form(request, local_path(request.query_params.get("next", "/")))
        form = await form_of(request, FORM_BYTES_MAX)
        self._gate.check_form(request, None, form)
        values = {name: items[-1][:LENGTH_MAX] for name, items in form.items() if items}
        there = local_path((form.get("next") or ["/"])[-1])
        name = values.get("access_key", "").strip()
        self._gate.begin_attempt(name, request)
        try:
            user, proof = await self._user(values, name)
        except Refused as error:
            self._gate.refuse(name, request)
            return self._form(request, there, fault=str(error))
        except CometError as error:
            self._gate.attempts.withdraw(name, client_of(request))
            return self._form(request, there, fault=str(error))
        self._gate.attempts.succeeded(name, client_of(request))
        response = redirect(self._desk.prefix + there)
        self._gate.begin(request, response, user, proof)
        return response

    async def _user(self, values: dict[str, str], name: str) -> tuple[User, Proof]:
        """Return the user of a login form, and the proof of the login."""
        if "token" in values:
            digest = digest_in(values["token"])
            user = self._tokens.user_of(digest)
            if user is None:
                raise Refused(INVALID)
            return user, digest
        settings = self._desk.settings
        if not settings.account_login:
            raise Refused("accounts of the cluster may not log in here")
        credentials = SessionCredentials(name, values.get("secret_key", "").strip())
        role = role_of(settings.account_role, "accountRole")
        options = self._desk.admin.options
        user = await account_user(options, credentials, role=role, log=self._desk.log)
        if user.role is Role.NONE:
            raise Refused(f"the account {name} may not use the console")
        return user, credentials

    def _form(self, request: Request, there: str, fault: str = "") -> Response:
        cookies: dict[str, str] = {}
        token = self._gate.form_token(request, cookies)
        user, session = self._gate.who(request)
        response = self._renderer.html(
            "login.html",
            user=user,
            session=session,
            status=HTTPStatus.UNAUTHORIZED if fault else HTTPStatus.OK,
            title="Log in",
            here=there,
            there=there,
            fault=fault,
            form_token=token,
            is_closed=self._gate.is_closed,
            has_accounts=self._desk.settings.account_login,
            has_oidc=self._oidc is not None,
            has_generated_token=self._has_generated_token,
        )
        for name, value in cookies.items():
            self._gate.set_short(response, name, value)
        return response

    async def _logout(self, request: Request) -> Response:
        _, session = self._gate.who(request)
        self._gate.check_form(request, session, await form_of(request, FORM_BYTES_MAX))
        response = redirect(self._desk.prefix + "/")
        self._gate.end(request, response)
        return response

    async def _oidc_begin(self, request: Request) -> Response:
        assert self._oidc is not None
        there = local_path(request.query_params.get("next", "/"))
        try:
            url, cookie = await self._oidc.begin(there)
        except Refused as error:
            raise Problem(HTTPStatus.BAD_GATEWAY, str(error)) from error
        response = redirect(url)
        self._gate.set_short(response, self._oidc.COOKIE, cookie, life_s=self._oidc.COOKIE_S)
        return response

    async def _oidc_end(self, request: Request) -> Response:
        assert self._oidc is not None
        self._gate.check_attempts("", request)  # there is no secret to guess at the same time
        try:
            user, grant, there = await self._oidc.end(
                dict(request.query_params),
                request.cookies.get(self._oidc.COOKIE, ""),
            )
        except Refused as error:
            self._gate.attempts.begin("", client_of(request))
            self._gate.refuse("", request)
            raise Problem(HTTPStatus.FORBIDDEN, str(error), title="Login refused") from error
        self._gate.known_networks.add(client_of(request))
        response = redirect(self._desk.prefix + local_path(there))
        self._gate.set_short(response, self._oidc.COOKIE, "", life_s=0)
        self._gate.begin(request, response, user, grant)
        return response
