# SPDX-License-Identifier: Apache-2.0
"""Puts the parts of the web application together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from cometmq.console.desk import Desk
from cometmq.console.login.gate import Gate
from cometmq.console.login.routes import LoginPages
from cometmq.console.login.tokens import Tokens
from cometmq.console.pages import ACTIONS, PAGES
from cometmq.console.web.action import Action
from cometmq.console.web.frame import Frame
from cometmq.console.web.guard import Known
from cometmq.console.web.page import Page
from cometmq.console.web.rendering import Renderer
from cometmq.runtime.version import VERSION

if TYPE_CHECKING:
    from cometmq.console.login.oidc import Oidc


def site(
    desk: Desk,
    tokens: Tokens,
    *,
    known: Known,
    oidc: "Oidc | None" = None,
    has_generated_token: bool = False,
    pages: Sequence[Page] = PAGES,
    actions: Sequence[Action] = ACTIONS,
) -> ASGIApp:
    """Return the application; with `has_generated_token`, its login page says where that is."""
    gate = Gate(desk.settings, tokens, known=known, clock=desk.clock, log=desk.log)
    renderer = Renderer(
        prefix=desk.prefix,
        clock=desk.clock,
        menu=[page for page in pages if page.menu],
        version=VERSION,
        cluster=desk.settings.namesrv_addr,
        has_accounts=bool(desk.settings.access_key),
    )
    login = LoginPages(
        desk, gate, tokens, renderer, oidc=oidc, has_generated_token=has_generated_token
    )
    return Frame(desk, gate, renderer, pages=pages, actions=actions, login=login).app
