# SPDX-License-Identifier: Apache-2.0
"""Requests to the console, with a form or the arguments of an address.

An input is a line with the method and the arguments, and the form. Its checksum selects the page or
the change, because few mutations would give another valid path. The console shows a small cluster
whose brokers answer nothing more.
"""

import asyncio
import functools
import tempfile
import zlib
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp

from cometmq.client.admin.figures import BrokerFigures
from cometmq.client.settings import ClientOptions
from cometmq.console.audit import Audit
from cometmq.console.desk import Desk
from cometmq.console.login.tokens import Tokens
from cometmq.console.pages import ACTIONS, PAGES
from cometmq.console.settings import ConsoleSettings
from cometmq.console.site import site
from cometmq.console.web.guard import Known
from cometmq.insight.findings import Findings
from cometmq.insight.history import History
from cometmq.insight.model import (
    Broker,
    BrokerState,
    Disk,
    Group,
    GroupTopic,
    Snapshot,
    Topic,
    TopicKind,
    Unknown,
)
from cometmq.remoting.errors import ConnectFailed, RemoteProtocolError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.settings import load
from cometmq.testing.runtime.clock import FakeClock

_TOKEN: Final = "admin-token-0123456789"
_PATHS: Final = ["/login", *(it.path for it in PAGES), *(it.path for it in ACTIONS)]
_PAUSE_MS: Final = 3_600_000
"""Time between two inputs, so that failed logins of one do not refuse the next."""
_clock: Final = FakeClock()
_loop: Final = asyncio.new_event_loop()
_kept: Final = ExitStack()  # until this process ends


class _Faults:
    """A log that raises the exception of a request that a bug has ended."""

    def error(self, _event: str, *, exc_info: Exception, **_: object) -> None:
        raise exc_info

    def info(self, *_: object, **__: object) -> None: ...

    warning = debug = info


class _Away:
    """Stands for the console's clients: no broker answers."""

    options = ClientOptions(namesrv="n:9876")
    unanswered: Final[dict[str, str]] = {}

    @property
    def namesrv(self) -> "_Away":
        return self

    def for_page(self) -> "_Away":
        return self

    def broker(self, *_: object, **__: object) -> "_Away":
        return self

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: _NoAnswer()


class _NoAnswer:
    """Stands for the answer to a request, or for messages that are read."""

    def __await__(self) -> Any:
        raise ConnectFailed("no broker answers")

    def __aiter__(self) -> Any:
        raise ConnectFailed("no broker answers")


class _NoHistory:
    async def lines(self, keys: Any, *_: int) -> dict[Any, list[Any]]:
        return {key: [] for key in keys}


def console_request(data: bytes) -> None:
    """Answer a request of a user who may do everything, by a list and by another page or form."""
    line, _, form = data.partition(b"\n")
    try:
        method, _, query = line.decode("ascii").partition(" ")
    except UnicodeDecodeError as error:  # h11 refuses it
        raise RemoteProtocolError("the address is not ASCII") from error
    check = zlib.crc32(data)
    _clock.advance(_PAUSE_MS)
    headers = [
        (b"host", b"localhost"),
        (b"authorization", f"Bearer {_TOKEN}".encode()),
        (b"content-type", b"application/x-www-form-urlencoded"),
        *([(b"accept", b"application/json")] if check % 2 else []),
    ]
    statuses = []
    usual = "/topic/create" if method == "POST" else "/topics"
    for path in (usual, _PATHS[check % len(_PATHS)]):
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "scheme": "http",
        }
        status, answered, body = _loop.run_until_complete(_asked(scope, form))
        assert body or status == HTTPStatus.SEE_OTHER, "an answer without a text"
        for name, value in answered:
            assert value.isascii(), f"the header {name!r} has {value!r}"
            assert value.decode().isprintable(), f"the header {name!r} has {value!r}"
        statuses.append(status)
    if all(400 <= status < 500 for status in statuses):  # the cluster causes others
        raise RemoteProtocolError(f"{statuses}")


async def _asked(scope: dict[str, Any], form: bytes) -> tuple[int, list[Any], bytes]:
    """Return the status, the headers and the body of an answer."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": form}

    async def send(message: Any) -> None:
        sent.append(message)

    await _site()(scope, receive, send)
    begin, *parts = sent
    return begin["status"], begin["headers"], b"".join(it.get("body", b"") for it in parts)


@functools.cache
def _site() -> ASGIApp:
    folder = Path(_kept.enter_context(tempfile.TemporaryDirectory()))
    log, client = _Faults(), _Away()
    given = {"namesrvAddr": "n:9876", "storePathRootDir": str(folder)}
    settings = load(ConsoleSettings, prefix="COMETMQ_TEST", env={}, cli=given).value
    audit = Audit(folder, mib_max=1, clock=_clock, log=NO_LOG)
    _kept.callback(audit.close)
    seen = _snapshot(_clock.now_ms())

    async def snapshot() -> Snapshot:
        return seen

    parts: dict[str, Any] = {"admin": client, "reader": client, "history": _NoHistory()}
    desk = Desk(
        settings,
        snapshot=snapshot,
        renew=lambda: None,
        findings=Findings(History()),
        audit=audit,
        clock=_clock,
        log=log,  # type: ignore[arg-type]
        **parts,
    )
    tokens = folder / "tokens"
    tokens.write_text(f"boss admin {_TOKEN}\n", encoding="utf-8")
    return site(desk, Tokens(tokens, "tokenFile"), known=Known())


def _snapshot(now_ms: int) -> Snapshot:
    own = GroupTopic("orders", 1, 0, 5, 3.0, lost=2)
    group = Group(
        "billing", False, 16, True, [], "CLUSTERING", "PUSH",
        [], [own], 5, Unknown("not asked"), 1.0, 3, 2, [], [],
    )  # fmt: skip
    nothing = Unknown("not asked")
    return Snapshot(
        namesrv="n:9876",
        taken_ms=now_ms,
        took_ms=3,
        brokers=[
            Broker("c", "broker-a", 0, "127.0.0.1:1", BrokerState(BrokerFigures(), Disk(0.5)))
        ],
        topics=[
            Topic("orders", TopicKind.NORMAL, 6, 4, 4, ["broker-a"], 1, 1, 0.0, 1, ["billing"])
        ],
        groups=[group],
        producers=nothing,
        half_messages=nothing,
        delayed=nothing,
        refusals=nothing,
    )


CONSOLE_TARGETS: Final = {console_request.__name__: console_request}
