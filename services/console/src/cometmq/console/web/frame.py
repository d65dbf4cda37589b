# SPDX-License-Identifier: Apache-2.0
"""The application: one route per page and action, and the answers to errors."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from cometmq.console.desk import Desk
from cometmq.console.login.drafts import UNKEPT, kept
from cometmq.console.login.gate import Gate, address_of, may
from cometmq.console.login.roles import Role, User
from cometmq.console.login.routes import LoginPages
from cometmq.console.login.sessions import Session
from cometmq.console.web.action import Action, Plan
from cometmq.console.web.assets import Assets
from cometmq.console.web.carrying import carry_out
from cometmq.console.web.guard import Guard, form_of
from cometmq.console.web.page import Page, View, address
from cometmq.console.web.problems import FormExpired, Problem, missing, of_cluster
from cometmq.console.web.rendering import Renderer, json_answer, wants_json
from cometmq.remoting.errors import CometError
from cometmq.remoting.transport.tasks import describe

_STATIC: Final = Path(__file__).with_name("static")
ASKING_S_MAX: Final = 60.0
"""How long one page may ask the cluster, also a broker that answers without an end."""
OTHER_SESSION: Final = (
    "The form is of a session that has ended: nothing was done. This is what you typed; look at it,"
    " and confirm it again."
)
DRAFT_BACK: Final = (
    "Your session had ended: nothing was done. This is what you typed; look at it, and confirm it."
)
DRAFT_CUT: Final = "What was too long to be kept is missing."
DRAFT_GONE: Final = (
    "what you typed is not here any more: it is kept for half an hour, for the user who typed it"
)
UNSENT: Final = (
    ": nothing was done; log in in another tab, then reload this page to see what you typed"
)
Handler = Callable[[Request], Awaitable[Response]]


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    limit = asyncio.timeout(ASKING_S_MAX)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        text = f"the cluster has not given the answer within {ASKING_S_MAX:.0f} s: try again later"
        raise Problem(
            HTTPStatus.GATEWAY_TIMEOUT, text, title="The cluster answers too slowly"
        ) from error


class _Sent(NamedTuple):
    """The arguments with which an action is asked for."""

    args: Mapping[str, list[str]]
    warning: str = ""
    status: HTTPStatus = HTTPStatus.OK
    is_preview: bool = False
    """Whether nothing may be done, although it is a POST."""


class Frame:
    """Serves pages and actions."""

    def __init__(
        self,
        desk: Desk,
        gate: Gate,
        renderer: Renderer,
        *,
        pages: Sequence[Page],
        actions: Sequence[Action],
        login: LoginPages,
    ) -> None:
        self._desk = desk
        self._gate = gate
        self._renderer = renderer
        self._sections = {page.path: page.section or page.path for page in pages}
        routes: list[BaseRoute] = [
            *(Route(it.path, self._timed(partial(self._page, it))) for it in pages),
            *(
                Route(it.path, self._timed(partial(self._action, it)), methods=["GET", "POST"])
                for it in actions
            ),
            *(
                Route(it.path, self._timed(it.endpoint), methods=list(it.methods or ()))
                for it in login.routes()
            ),
            Route("/healthz", _healthz),
            Route("/static/{name}", Assets(_STATIC).serve),
        ]
        app = Starlette(
            routes=routes,
            exception_handlers={HTTPException: self._http_error},
        )
        self.app: ASGIApp = Guard(app, desk.settings)

    def _timed(self, handler: Handler) -> Handler:
        async def timed(request: Request) -> Response:
            begin = time.perf_counter()
            try:
                response = await handler(request)
            except Problem as problem:
                response = self._problem(request, problem)
            except CometError as error:
                response = self._problem(request, of_cluster(error))
            except Exception as error:  # noqa: BLE001  # one page must not end the connection
                response = self._bug(request, error)
            passed_ms = (time.perf_counter() - begin) * 1_000
            response.headers["Server-Timing"] = f"app;dur={passed_ms:.1f}"
            response.headers["Vary"] = "Accept, Cookie"
            return response

        return timed

    async def _page(self, page: Page, request: Request) -> Response:
        user, session = self._gate.who(request)
        if not may(user, page.role):
            return self._forbidden(request, user, page.role)
        args = _arguments(request)
        view = View(self._desk, request, user, session, args)
        async with _in_time():
            shown = await page.view(view)
        if shown.download is not None:
            return Response(
                shown.download.data,
                headers={"Content-Disposition": f'attachment; filename="{shown.download.name}"'},
                media_type="application/octet-stream",
            )
        if wants_json(request):
            return json_answer(
                {
                    "data": shown.data,
                    "command": shown.command,
                    "as_of_ms": shown.as_of_ms,
                    "unanswered": shown.unanswered,
                }
            )
        return self._renderer.html(
            page.template,
            user=user,
            session=session,
            data=shown.data,
            title=shown.title or page.title,
            section=self._sections[page.path],
            command=shown.command,
            as_of_ms=shown.as_of_ms,
            unanswered=shown.unanswered,
            refresh_s=shown.refresh_s or 10,
            here=_here(request),
            may=partial(may, user),
            **shown.extra,
        )

    async def _action(self, action: Action, request: Request) -> Response:
        user, session = self._gate.who(request)
        if not may(user, action.role):
            is_sent = request.method == "POST" and not wants_json(request)
            if is_sent and user.is_anonymous and self._gate.has_ended(request):
                return await self._log_in_again(request)
            return self._forbidden(request, user, action.role)
        sent = await self._sent(request, user, session)
        view = View(self._desk, request, user, session, sent.args)
        async with _in_time():
            form = await action.prepare(view)
        plan = form.plan
        is_preview = sent.is_preview or (action.by_post and not view.raw("mark"))
        if request.method == "POST" and not is_preview:
            if plan is None:
                raise Problem(HTTPStatus.BAD_REQUEST, "the form is not filled in")
            return await carry_out(self._desk, action, plan, view, address_of(request))
        if wants_json(request):
            return json_answer(
                {
                    "action": action.name,
                    "risk": action.risk,
                    "fields": [field._asdict() for field in form.fields],
                    "plan": None if plan is None else _plan_data(plan, self._mark(plan)),
                }
            )
        return self._renderer.html(
            action.template,
            user=user,
            session=session,
            status=sent.status,
            action=action,
            form=form,
            plan=plan,
            mark="" if plan is None else self._mark(plan),
            args=[pair for pair in view.pairs() if pair[0] not in UNKEPT],
            warning=sent.warning,
            title=action.title,
            section=action.section,
            command=plan.command if plan is not None else "",
            here=_here(request),
        )

    async def _sent(self, request: Request, user: User, session: Session | None) -> _Sent:
        """Return the arguments of a form: as sent, or as typed before the session expired."""
        if request.method == "POST":
            args: Mapping[str, list[str]] = await form_of(request)
            try:
                self._gate.check_form(request, session, dict(args))
            except FormExpired:
                if session is None or wants_json(request):
                    raise
                return _Sent(kept(args), OTHER_SESSION, HTTPStatus.FORBIDDEN, is_preview=True)
            return _Sent(args)
        args = _arguments(request)
        if "draft" not in args:
            return _Sent(args)
        draft = self._gate.drafts.find(args["draft"][-1], user, request.url.path)
        if draft is None:
            raise missing(DRAFT_GONE)
        return _Sent(draft.args, DRAFT_BACK if draft.is_whole else f"{DRAFT_BACK} {DRAFT_CUT}")

    async def _log_in_again(self, request: Request) -> Response:
        """Keep what was typed into a form whose session has expired, and lead to the login."""
        draft = self._gate.keep_draft(request, await form_of(request))
        there = address("", request.url.path, {"draft": draft})
        return RedirectResponse(
            address(self._desk.prefix, "/login", {"next": there}), HTTPStatus.SEE_OTHER
        )

    def _mark(self, plan: Plan) -> str:
        return plan.mark(self._desk.audit.version(plan.subject))

    def _forbidden(self, request: Request, user: User, role: Role) -> Response:
        needed = role.name.lower()
        if user.is_anonymous and not wants_json(request) and request.method == "GET":
            there = self._desk.prefix + "/login?" + urlencode({"next": _here(request)})
            return RedirectResponse(there, HTTPStatus.SEE_OTHER)
        status = HTTPStatus.UNAUTHORIZED if user.is_anonymous else HTTPStatus.FORBIDDEN
        text = f"this needs the role {needed}; {user.name or 'an anonymous user'} is"
        hint = UNSENT if user.is_anonymous and request.method == "POST" else ""
        return self._problem(request, Problem(status, f"{text} {user.role.name.lower()}{hint}"))

    def _problem(self, request: Request, problem: Problem) -> Response:
        if problem.status == HTTPStatus.UNAUTHORIZED:
            problem.headers.setdefault("WWW-Authenticate", "Bearer")
        if wants_json(request):
            body = {"error": problem.title, "text": problem.text}
            return json_answer(body, problem.status, problem.headers)
        user, session = self._gate.known(request)
        return self._renderer.html(
            "problem.html",
            user=user,
            session=session,
            status=problem.status,
            headers=problem.headers,
            problem=problem,
            title=problem.title,
            here=_here(request),
        )

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        texts = {
            HTTPStatus.NOT_FOUND: "there is no page at this address",
            HTTPStatus.METHOD_NOT_ALLOWED: "the page does not accept this method",
        }
        return self._problem(request, Problem(status, texts.get(status, error.detail)))

    def _bug(self, request: Request, error: Exception) -> Response:
        """Answer a request that a bug has ended; the details are in the log only."""
        self._desk.log.error(
            "request.failed", path=request.url.path, error=describe(error), exc_info=error
        )
        text = "the console has a fault; its log has the details"
        return self._problem(request, Problem(HTTPStatus.INTERNAL_SERVER_ERROR, text))


def _plan_data(plan: Plan, mark: str) -> dict[str, Any]:
    kept = ("what", "subject", "before", "after", "command", "refusal", "details")
    return {
        **{name: getattr(plan, name) for name in kept},
        "consequences": [it.text for it in plan.consequences],
        "mark": mark,
    }


def _arguments(request: Request) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in request.query_params.multi_items():
        found.setdefault(name, []).append(value)
    return found


def _here(request: Request) -> str:
    """Return the path and the arguments of a request, without the prefix."""
    query = request.url.query
    return request.url.path + (f"?{query}" if query else "")


async def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")
