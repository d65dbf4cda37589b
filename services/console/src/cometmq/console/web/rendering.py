# SPDX-License-Identifier: Apache-2.0
"""Renders answers as HTML from templates, or as JSON."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from shlex import quote as quote_word
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from cometmq.console.login.roles import Role, User
from cometmq.console.login.sessions import Session
from cometmq.console.web import cells
from cometmq.console.web.cells import templates
from cometmq.console.web.page import Page
from cometmq.console.web.tables import cells_of
from cometmq.insight.views.view import address
from cometmq.insight.words import lasting
from cometmq.runtime.clock import Clock

_ENCODER: Final = msgspec.json.Encoder(enc_hook=str)
DEFAULTS: Final = {
    "section": "",
    "command": "",
    "unanswered": {},
    "refresh_s": 0,
    "as_of_ms": None,
}
"""The default values of the template that all pages extend."""
DEFAULT_NAMESRV: Final = "127.0.0.1:9876"
"""The name server that commands ask without an option."""
_ASKS: Final = re.compile(r"(?:^|(?<= && ))cometmq(?! (?:audit|explain|ha)\b)(?= )")
"""The beginning of a command that asks name servers, and not a folder or an elector."""
STALE_MS: Final = 60_000
"""Data older than this is marked as stale."""


class Renderer:
    """Renders the templates of this package."""

    def __init__(
        self,
        *,
        prefix: str,
        clock: Clock,
        menu: Sequence[Page],
        version: str,
        cluster: str,
        has_accounts: bool = False,
    ) -> None:
        """`cluster` are the addresses of its name servers; `has_accounts` says whether commands
        need an account, as the console does.
        """
        self._clock = clock
        self._prefix = prefix
        self._option = "" if cluster == DEFAULT_NAMESRV else f" -n {quote_word(cluster)}"
        self._templates = templates(
            Path(__file__).with_name("templates"),
            {
                **cells.FORMATS,
                "cell": cells.cell,
                "cells_of": cells_of,
                "numeric": cells.NUMERIC,
                "root": prefix,
                "href": self._href,
                "query": _query,
                "prefixed": _prefixed,
                "ago": self.ago,
                "by_reason": _by_reason,
                "menu": menu,
                "version": version,
                "cluster": cluster,
                "has_accounts": has_accounts,
                "reaching": self.reaching,
                "Role": Role,
            },
        )

    def ago(self, at_ms: float) -> str:
        """Return how long ago something happened, as text."""
        passed_s = (self._clock.now_ms() - at_ms) / 1_000
        return "just now" if passed_s < 1 else f"{lasting(int(passed_s))} ago"

    def reaching(self, command: str) -> str:
        """Return a command that asks the console's cluster wherever it is run."""
        return _ASKS.sub(lambda found: f"{found[0]}{self._option}", command)

    def html(  # everything that the frame of a page shows
        self,
        template: str,
        *,
        user: User,
        session: Session | None,
        status: HTTPStatus = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Response:
        """Return a page; the notice of the session is shown once."""
        notice = ""
        if session is not None:
            notice, session.notice = session.notice, ""
        as_of_ms = values.get("as_of_ms")
        given = {
            "user": user,
            "csrf": session.csrf if session is not None else "",
            "notice": notice,
            "is_stale": as_of_ms is not None and self._clock.now_ms() - as_of_ms > STALE_MS,
            **DEFAULTS,
            **values,
        }
        body = self._templates.get_template(template).render(given)
        return Response(body, status, headers, "text/html")

    def _href(self, path: str, **args: object) -> str:
        return self._prefix + address(path, **args)


def _by_reason(unanswered: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return each reason once, with the brokers to which it applies."""
    found: dict[str, list[str]] = {}
    for name, why in unanswered.items():
        found.setdefault(why, []).append(name)
    return list(found.items())


def _query(path: str, args: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(args, quote_via=quote)}" if args else path


def _prefixed(prefix: str, args: Mapping[str, str]) -> dict[str, str]:
    """Put a table's prefix before the names of the arguments."""
    own = {"sort", "find", "page", "size"}
    return {f"{prefix}{key}" if key in own else key: text for key, text in args.items()}


def redirect(url: str) -> Response:
    """Redirect the browser to another page, which it requests with GET."""
    return RedirectResponse(url, HTTPStatus.SEE_OTHER)


def json_answer(
    data: Any, status: HTTPStatus = HTTPStatus.OK, headers: Mapping[str, str] | None = None
) -> Response:
    """Return `data` as a JSON answer."""
    return Response(_ENCODER.encode(data) + b"\n", status, headers, "application/json")


def wants_json(request: Request) -> bool:
    """Return whether the client prefers JSON: it accepts it and not HTML, or asks with `json=1`."""
    if request.query_params.get("json") == "1":
        return True
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted
