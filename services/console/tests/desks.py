# SPDX-License-Identifier: Apache-2.0
"""A console without a network: a snapshot, a client that records changes, and a browser."""

import re
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import httpx2

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.console.audit import Audit
from cometmq.console.desk import Desk
from cometmq.console.login.tokens import Tokens
from cometmq.console.settings import ConsoleSettings
from cometmq.console.site import site
from cometmq.console.web.guard import Known
from cometmq.insight.findings import Findings
from cometmq.insight.history import History
from cometmq.insight.model import Snapshot, Unknown
from cometmq.insight.reading import ReadingAdmin
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.settings import load
from cometmq.testing.runtime.clock import FakeClock

TOKENS = """\
boss admin admin-token-0123456789
ops operator operator-token-0123456789
eye viewer viewer-token-0123456789
"""
ADMIN, OPERATOR, VIEWER = (
    {"authorization": f"Bearer {role}-token-0123456789"} for role in ("admin", "operator", "viewer")
)
JSON = {"accept": "application/json"}
BASE = "http://localhost:8088"
NOTHING = Unknown("not asked")


def hidden(page, name):
    """Return the value of a hidden input."""
    return re.findall(rf'name="{name}" value="([^"]+)"', page.text)[0]


class NoHistory:
    async def lines(self, keys, begin_ms, end_ms):
        return {key: [] for key in keys}


class FakeAdmin:
    """Stands for the console's client; changes must be made by the action that a test defines."""

    options = ClientOptions(namesrv="n:9876")
    unanswered: ClassVar[dict[str, str]] = {}

    def for_page(self):
        return self


def reader(client):
    """Return the client for pages that shares the connections of an admin client."""
    if not isinstance(client, AdminClient):
        return client
    return ReadingAdmin.attached(client._running(), NO_LOG)


def snapshot(clock, **parts):
    empty = dict.fromkeys(
        ("topics", "groups", "producers", "half_messages", "delayed", "refusals"), NOTHING
    )
    given = {"brokers": [], **empty, **parts}
    return Snapshot(namesrv="n:9876", taken_ms=clock.now_ms(), took_ms=3, **given)


class Site:
    """An application, and a browser with its cookies."""

    def __init__(
        self, folder, stack, *, pages=None, actions=None, admin=None, oidc=None, **settings
    ):
        self.clock = FakeClock()
        given = {"namesrvAddr": "n:9876", "storePathRootDir": str(folder), **settings}
        loaded = load(ConsoleSettings, prefix="COMETMQ_TEST", env={}, cli=given)
        self.snapshot = snapshot(self.clock)
        self.audit = Audit(folder, mib_max=1, clock=self.clock, log=NO_LOG)
        stack.callback(self.audit.close)
        client: Any = admin or FakeAdmin()
        self.desk = Desk(
            loaded.value,
            admin=client,
            reader=reader(client),
            snapshot=self._snapshot,
            renew=lambda: None,
            findings=Findings(History()),
            history=NoHistory(),
            audit=self.audit,
            clock=self.clock,
            log=NO_LOG,
        )
        self.tokens_file = folder / "tokens"
        self.tokens_file.write_text(TOKENS, encoding="utf-8")
        self.tokens = Tokens(self.tokens_file, "tokenFile")
        chosen = {
            name: value
            for name, value in (("pages", pages), ("actions", actions))
            if value is not None
        }
        if oidc is not None:
            self.oidc = chosen["oidc"] = oidc(loaded.value, clock=self.clock)
            stack.push_async_callback(self.oidc.close)
        self._app = site(self.desk, self.tokens, known=Known(), **chosen)
        self._stack = stack
        self.web = self.browser("127.0.0.1")

    def browser(self, address):
        """Return a browser without cookies on another machine."""
        transport = httpx2.ASGITransport(app=self._app, client=(address, 1))
        web = httpx2.AsyncClient(transport=transport, base_url=BASE)
        self._stack.push_async_callback(web.aclose)
        return web

    async def _snapshot(self):
        return self.snapshot

    async def log_in(self, role="admin", web=None):
        browser = web or self.web
        page = await browser.get("/login")
        form = {"csrf": hidden(page, "csrf"), "token": f"{role}-token-0123456789", "next": "/"}
        return await browser.post("/login", data=form)


class Sites:
    """Builds consoles that a test uses, and closes them."""

    def __init__(self, folder, stack: AsyncExitStack):
        self._folder = folder
        self._stack = stack

    def __call__(self, **given):
        return Site(self._folder, self._stack, **given)
