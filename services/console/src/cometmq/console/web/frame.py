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
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from cometmq.console.desk import Desk
from cometmq.console.login.gate import Gate, may
from cometmq.console.login.roles import Role, User
from cometmq.console.login.routes import LoginPages
from cometmq.console.login.sessions import Session
from cometmq.console.web.action import Action, Form
from cometmq.console.web.carrying import carry_out
from cometmq.console.web.guard import Guard, client_of, form_of
from cometmq.console.web.page import Page, View
from cometmq.console.web.problems import FormExpired, Problem, no_page, of_cluster
from cometmq.console.web.rendering import Renderer, json_answer, redirect, wants_json
from cometmq.insight.changes.change import Plan
from cometmq.insight.views.view import address
from cometmq.remoting.errors import CometError
from cometmq.remoting.transport.tasks import describe

Handler = Callable[[Request], Awaitable[Response]]
_STATIC: Final = Path(__file__).with_name("static")
TYPED: Final = frozenset({"text", "number", "area", "file"})
"""Kinds of fields that keep what was typed although it is wrong."""
NO_INPUT: Final = frozenset({"csrf", "mark", "confirm", "preview", "json", "secret"})
"""Arguments of a form that its user has not typed, or that are not shown again."""
FAULTS_MAX: Final = 20
"""Wrong fields of one form."""
ADDRESS_MAX: Final = 2_000
"""The most characters of a link to a form with its values."""
ASKING_S_MAX: Final = 60.0
"""Time limit for all requests of one page to the cluster; some broker might answer without
an end.
"""
OTHER_SESSION: Final = (
    "The form is of a session that has ended: nothing was done. This is what you typed; look at it,"
    " and confirm it again."
)
OTHER_PLAN: Final = (
    "The page had planned something else: nothing was done. This is what you typed; look at it, and"
    " confirm it again."
)
UNSENT: Final = (
    ": nothing was done; log in in another tab, then reload this page to see what you typed"
)


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
    """What a user has sent to an action, and how it is answered."""

    args: Mapping[str, list[str]]
    warning: str = ""
    status: HTTPStatus = HTTPStatus.OK
    is_preview: bool = False
    """Whether the request only asks for the plan, although it is a POST."""


class Frame:
    """Routes requests to pages and actions, and turns errors into answers."""

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
        self._login = login
        self._sections = {page.path: page.section or page.path for page in pages}
        routes: dict[str, tuple[Handler, str]] = {
            **{it.path: (partial(self._page, it), "GET") for it in pages},
            **{it.path: (partial(self._action, it), "GET POST") for it in actions},
            **login.routes(),
            "/healthz": (_healthz, "GET"),
        }
        self.methods = {path: methods.split() for path, (_, methods) in routes.items()}
        """The methods of each path."""
        app = Starlette(
            routes=[
                *(
                    Route(path, self._answering(handler), methods=self.methods[path])
                    for path, (handler, _) in routes.items()
                ),
                Mount("/static", StaticFiles(directory=_STATIC)),
            ],
            exception_handlers={HTTPException: self._no_route},
        )
        app.router.redirect_slashes = False  # to an address without the prefix
        self.app: ASGIApp = Guard(app, desk.settings)

    async def _no_route(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path = request["path"].rstrip("/")
        if error.status_code == HTTPStatus.NOT_FOUND and path in self.methods:
            return redirect(self._desk.prefix + path)
        if error.status_code == HTTPStatus.NOT_FOUND:
            return self._problem(request, no_page())
        problem = Problem(HTTPStatus(error.status_code), "the page does not accept this method")
        problem.headers.update(error.headers or {})
        return self._problem(request, problem)

    def _answering(self, handler: Handler) -> Handler:
        async def answer(request: Request) -> Response:
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

        return answer

    async def _page(self, page: Page, request: Request) -> Response:
        user, session = await self._login.who(request)
        if not may(user, page.role):
            return self._forbidden(request, user, page.role)
        args = _args(request)
        view = View(self._desk, request, user, session, args)
        async with _in_time():
            try:
                shown = await page.view(view)
            except Problem as problem:
                if problem.field:
                    others = view.without(problem.field).given()
                    problem.back = self._desk.prefix + address(page.path, **others)
                raise
        unanswered = {**view.unanswered, **shown.unanswered}
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
                    "command": self._renderer.reaching(shown.command),
                    "as_of_ms": shown.as_of_ms,
                    "unanswered": unanswered,
                }
            )
        return self._renderer.html(
            page.template,
            user=user,
            session=session,
            data=shown.data,
            title=shown.title or page.title,
            section=self._sections[page.path],
            command=self._renderer.reaching(shown.command),
            as_of_ms=shown.as_of_ms,
            unanswered=unanswered,
            refresh_s=shown.refresh_s or 10,
            here=_here(request),
            may=partial(may, user),
            **shown.extra,
        )

    async def _action(self, action: Action, request: Request) -> Response:
        user, session = await self._login.who(request)
        if not may(user, action.role):
            return self._forbidden(request, user, action.role)
        sent = await self._sent(request, session)
        view = View(self._desk, request, user, session, sent.args)
        async with _in_time():
            form, sent = await _prepared(action, view, sent)
        plan = form.plan
        is_preview = (
            sent.is_preview or view.is_set("preview") or (action.by_post and not view.raw("mark"))
        )
        if request.method == "POST" and not is_preview and _is_typed_anew(view, form):
            if wants_json(request):
                raise Problem(HTTPStatus.CONFLICT, OTHER_PLAN)
            sent = sent._replace(warning=OTHER_PLAN, status=HTTPStatus.CONFLICT)
        elif request.method == "POST" and not is_preview:
            try:
                return await carry_out(self._desk, action, form, view, client_of(request))
            except Problem as problem:
                problem.back = _form_again(view, action, form)
                raise
        if wants_json(request):
            return json_answer(
                {
                    "action": action.name,
                    "risk": action.risk,
                    "fields": [field._asdict() for field in form.fields],
                    "plan": None if plan is None else self._plan_data(plan, form),
                }
            )
        of = next((it.value for it in form.fields if it.kind == "hidden"), "")
        return self._renderer.html(
            action.template,
            user=user,
            session=session,
            status=sent.status,
            action=action,
            form=form,
            plan=plan,
            mark="" if plan is None else self._mark(plan, form),
            args=_further(view, form),
            warning=sent.warning,
            title=f"{action.title}: {of}" if of else action.title,
            section=action.section,
            command=self._renderer.reaching(plan.command) if plan is not None else "",
            here=_here(request),
        )

    async def _sent(self, request: Request, session: Session | None) -> _Sent:
        """Return the arguments of a form."""
        if request.method == "POST":
            args: Mapping[str, list[str]] = await form_of(request)
            try:
                self._gate.check_form(request, session, dict(args))
            except FormExpired:
                if session is None or wants_json(request):
                    raise
                return _Sent(_input_of(args), OTHER_SESSION, HTTPStatus.FORBIDDEN, is_preview=True)
            return _Sent(args)
        return _Sent(_args(request))

    def _mark(self, plan: Plan, form: Form) -> str:
        return form.mark(self._desk.audit.version(plan.subject))

    def _plan_data(self, plan: Plan, form: Form) -> dict[str, Any]:
        kept = ("what", "subject", "before", "after", "refusal", "remedy", "details")
        return {
            **{name: getattr(plan, name) for name in kept},
            "command": self._renderer.reaching(plan.command),
            "consequences": [it.text for it in plan.consequences],
            "mark": self._mark(plan, form),
        }

    def _forbidden(self, request: Request, user: User, role: Role) -> Response:
        needed = role.name.lower()
        if user.is_anonymous and not wants_json(request) and request.method == "GET":
            there = self._desk.prefix + "/login?" + urlencode({"next": _here(request)})
            return redirect(there)
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

    def _bug(self, request: Request, error: Exception) -> Response:
        """Answer a request that failed by a bug, and log the exception; the answer contains no
        details.
        """
        self._desk.log.error(
            "request.failed", path=request["path"], error=describe(error), exc_info=error
        )
        text = "the console has a fault; its log has the details"
        return self._problem(request, Problem(HTTPStatus.INTERNAL_SERVER_ERROR, text))


async def _prepared(action: Action, view: View, sent: _Sent) -> tuple[Form, _Sent]:
    """Return the form of an action; one with a wrong field has no plan, and says what is wrong."""
    try:
        return await action.prepare(view), sent
    except Problem as problem:
        if not problem.field or wants_json(view.request):
            raise
        form = await _corrected(problem, action, view)
        if form is None:
            raise
        status = HTTPStatus.BAD_REQUEST
        return form, sent._replace(warning=problem.text, status=status, is_preview=True)


async def _corrected(problem: Problem, action: Action, view: View) -> Form | None:
    """Return the form of an action with all that was typed, but no plan, and name the wrong field
    as the form does; None if the form cannot be shown.
    """
    rest, wrong = view, problem.field
    for _ in range(FAULTS_MAX):
        rest = rest.without(wrong)
        try:
            form = await action.prepare(rest)
        except Problem as other:  # the first problem is said
            wrong = other.field
        except CometError:
            return None
        else:
            break
        if not wrong:
            return None
    else:
        return None
    fields = [
        it._replace(value=view.raw(it.name) or it.value) if it.kind in TYPED else it
        for it in form.fields
    ]
    labels = {it.name: it.label for it in fields}
    if label := labels.get(problem.field):
        problem.text = label + problem.text.removeprefix(problem.field)
    return form._replace(fields=fields, plan=None)


def _form_again(view: View, action: Action, form: Form) -> str:
    """Return the address of a form with the values that it was sent with; empty if it would be too
    long.
    """
    if action.by_post or any(it.kind in {"area", "file", "password"} for it in form.fields):
        return ""
    found = view.href(action.path, **{it.name: it.value for it in form.fields})
    return found if len(found) <= ADDRESS_MAX else ""


def _is_typed_anew(view: View, form: Form) -> bool:
    """Return whether the inputs of a confirmed form differ from those of the plan that was
    shown.
    """
    _, _, planned = view.raw("mark").partition(".")
    return form.plan is not None and bool(planned) and planned != form.typed


def _input_of(args: Mapping[str, list[str]]) -> dict[str, list[str]]:
    return {name: values for name, values in args.items() if name not in NO_INPUT}


def _further(view: View, form: Form) -> list[tuple[str, str]]:
    """Return the arguments of a request that are not inputs of its form."""
    asks = () if form.plan is None else form.plan.asks
    inputs = {it.name for it in (*form.fields, *asks)}
    return [pair for pair in view.pairs() if pair[0] not in NO_INPUT | inputs]


def _args(request: Request) -> dict[str, list[str]]:
    given = request.query_params
    return {name: given.getlist(name) for name in given}


def _here(request: Request) -> str:
    """Return the path and the arguments of a request, without the prefix."""
    query = request["query_string"].decode("ascii")
    return str(request["path"]) + (f"?{query}" if query else "")


async def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")
