# SPDX-License-Identifier: Apache-2.0
"""The HTTP port of every program: /metrics, /healthz, /readyz and /settings; / lists these pages.

The server is deliberately small: it answers GET and HEAD, and serves one request per connection.
The size of the request head, the time per request and the number of connections are limited. Above
the limit of connections, a connection of the address that has the most is closed: the oldest one
that has not sent its request or not read its answer. Such connections therefore cannot exclude
probes.

Messages wait while the event loop serves this port. So each turn of the loop accepts only a few
connections and answers one request, and addresses take turns. Counters are copied on the loop, a
few at a time, and rendered on a worker thread. Requests for a page that takes long share it, and it
is built during a limited part of the time.
"""

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from platform import python_version
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.incremental import IncrementalRunner
from cometmq.runtime.metrics import Registry, StatsCollector, build_families, loop_families
from cometmq.runtime.metrics.formats import as_openmetrics, format_of
from cometmq.runtime.places import listening
from cometmq.runtime.process.loop_lag import LoopLag
from cometmq.runtime.turn_lock import TurnLock
from cometmq.runtime.version import VERSION
from cometmq.runtime.worker import Worker

HEAD_BYTES_MAX = 8 * 1024
REQUEST_TIMEOUT_S = 5.0
STOP_S = 1.0
"""How long requests may finish when the program stops."""
CONNECTION_COUNT_MAX = 256
BACKLOG = 1024
"""Connections that the kernel queues; with fewer, a burst of them delays a probe by a second."""
ACCEPTED_AT_ONCE = 4
"""Connections that one turn of the loop accepts: each takes 0.2 ms."""
REST_FACTOR = 4
"""A page that takes long is not built again for this many times the time that it took."""
REST_S_MAX = 1.0

Check = Callable[[], str | None]
"""A health check returns None while healthy, otherwise a one-line reason."""

PAGES = {
    "/metrics": "metrics in Prometheus format",
    "/healthz": "200 while the process is healthy",
    "/readyz": "200 while the process can serve clients, otherwise 503 with the reasons",
    "/settings": "every setting with its source",
}

_ACCEPT = re.compile(rb"(?i)\r\naccept:([^\r\n]*)")
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


class Answer(NamedTuple):
    """Status, body and content type of one HTTP response."""

    status: HTTPStatus
    body: bytes
    content_type: str = _TEXT


@dataclass(slots=True)
class _Connection:
    writer: asyncio.StreamWriter
    host: str
    is_silent: bool = True
    """Whether its request has not arrived."""
    is_unread: bool = False
    """Whether its answer is written, but not read yet."""


class AdminHttp:
    """Serves the metrics, health checks and settings that a program's components register."""

    def __init__(self, registry: Registry | None = None, *, log: Log = NO_LOG) -> None:
        self.registry = registry or Registry()
        self.lag = LoopLag()
        self.registry.add(StatsCollector(loop_families(), lambda: self.lag))
        versions = VERSION, python_version()
        self.registry.add(StatsCollector(build_families(), lambda: versions))
        self._log = log
        self._ready: dict[str, Check] = {}
        self._warnings: dict[str, Check] = {}
        self._settings: dict[str, Callable[[], str]] = {}
        self._metrics_files: list[Path] = []
        self._incremental = IncrementalRunner()
        self._worker = Worker("metrics", pending_count_max=CONNECTION_COUNT_MAX)
        self._turns = TurnLock()
        self._server: asyncio.Server | None = None
        self._is_stopped = False
        self._served: dict[asyncio.Task[None], _Connection] = {}  # oldest first
        self._metrics_page = _SharedPage(self._metrics)
        self._pages: dict[str, Callable[[], Awaitable[Answer]]] = {
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            "/settings": _SharedPage(lambda _: self._settings_page()).get,
            "/": self._index,
        }

    def add_ready_check(self, name: str, check: Check) -> None:
        """Make /readyz fail while the check returns a reason, so that no traffic is routed here."""
        self._ready[name] = check

    def add_ready_warning(self, name: str, check: Check) -> None:
        """Show the reason that the check returns on /readyz, with status 200: clients are served,
        but an operator must act.

        A ready check of the same name takes precedence.
        """
        self._warnings[name] = check

    def add_settings(self, name: str, text: Callable[[], str]) -> None:
        """Show the result of `text()` under this heading on /settings."""
        self._settings[name] = text

    def add_metrics_file(self, path: Path) -> None:
        """Append a file in Prometheus' text format to /metrics, once it exists.

        The program that writes it must replace it as a whole, and name no metric of this program.
        """
        self._metrics_files.append(path)

    @property
    def port(self) -> int:
        """Return the port that the server is bound to."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(
        self, port: int, *, host: str | None = None, setting: str = "adminHttpPort"
    ) -> None:
        """Start listening; port 0 picks a free one. Raise SettingsError if the port is in use."""
        # If no host is given, one socket serves IPv4 and IPv6, because a kubelet may probe either.
        is_dual = not host and socket.has_dualstack_ipv6()
        with listening(host or "", port, setting=setting):
            listener = socket.create_server(
                (host or "", port),
                family=socket.AF_INET6 if is_dual or ":" in (host or "") else socket.AF_INET,
                dualstack_ipv6=is_dual,
            )
        self._server = await asyncio.start_server(
            self._serve, sock=listener, limit=HEAD_BYTES_MAX, backlog=ACCEPTED_AT_ONCE
        )
        listener.listen(BACKLOG)  # asyncio accepts as many at once as it tells the kernel to queue
        self.lag.start(asyncio.get_running_loop())

    async def stop(self) -> None:
        """Stop listening and give requests in flight STOP_S to finish."""
        self.lag.stop()
        if self._server is not None:
            self._server.close()  # which waits for no connection
        self._is_stopped = True
        for connection in self._served.values():
            if connection.is_silent:
                connection.writer.transport.abort()
        for timeout_s in (STOP_S, REQUEST_TIMEOUT_S):
            if self._served:
                await asyncio.wait(self._served, timeout=timeout_s)
            for connection in self._served.values():
                connection.writer.transport.abort()  # ends its request, see `_check_open`
        self._worker.close()

    async def answer(self, method: str, path: str, accept: str = "") -> Answer:
        """Answer one request; a query string in `path` is ignored. `accept` is the header of this
        name.
        """
        if method not in {"GET", "HEAD"}:
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET and HEAD only\n")
        path = path.partition("?")[0]
        if path == "/metrics":
            wanted = format_of(accept)
            found = await self._metrics_page.get(wanted.is_openmetrics)
            return found._replace(content_type=wanted.content_type)
        page = self._pages.get(path)
        if page is None:
            return Answer(HTTPStatus.NOT_FOUND, f"try {' '.join(PAGES)}\n".encode())
        return await page()

    async def _index(self) -> Answer:
        lines = [f"{page:<9} {text}\n" for page, text in PAGES.items()]
        return Answer(HTTPStatus.OK, "".join(lines).encode())

    async def _metrics(self, is_openmetrics: bool) -> Answer:
        text = await self._worker.submit(_import_text)
        families = await self._incremental.run(self.registry.collect())
        render = partial(text.render_and_drop, families, is_openmetrics=is_openmetrics)
        body: bytes = await self._worker.submit(render)
        for path in self._metrics_files:
            more = await self._worker.submit(partial(self._content, path))
            body += as_openmetrics(more) if is_openmetrics else more
        return Answer(HTTPStatus.OK, body + b"# EOF\n" if is_openmetrics else body)

    def _content(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            self._log.warning("metrics_file.unreadable", path=str(path), reason=str(error))
            return b""

    async def _healthz(self) -> Answer:
        return _health({})  # the loop runs

    async def _readyz(self) -> Answer:
        return _health(self._ready, self._warnings)

    async def _settings_page(self) -> Answer:
        parts = [f"# {name}\n{text()}" for name, text in self._settings.items()]
        return Answer(HTTPStatus.OK, "\n".join(parts).encode())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        host, *_ = writer.get_extra_info("peername") or ("",)
        is_full = len(self._served) >= CONNECTION_COUNT_MAX and not self._make_room(host)
        if is_full or self._is_stopped:
            writer.transport.abort()
            return
        self._served[task] = connection = _Connection(writer, host)
        writer.transport.set_write_buffer_limits(high=0)  # `drain` waits until all is sent
        is_done = False
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                method, answer = await self._exchange(reader, connection)
                _check_open(writer)
                connection.is_unread = True
                writer.write(_head(answer))
                if method != "HEAD":
                    writer.write(answer.body)  # apart: unread answers of a page share its body
                await writer.drain()
                is_done = True
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            self._log.debug("http_request.aborted")
        except asyncio.CancelledError:
            if task in self._served:
                raise
            self._log.debug("http_request.aborted")  # for another connection, see `_make_room`
        finally:
            self._served.pop(task, None)
            if is_done:
                writer.close()
            else:
                writer.transport.abort()  # unsent output would keep the connection open

    def _make_room(self, host: str) -> bool:
        """Close a connection of the address with the most, for one of this address.

        It is the oldest one that waits for its peer. If there is none, it is the oldest one that is
        being answered; but then an address that has as many itself gets no room: return False.
        """
        counts = Counter(connection.host for connection in self._served.values())
        (most, count), *_ = counts.most_common(1) or [("", 0)]
        oldest = None
        for task, connection in self._served.items():
            if connection.host == most:
                if connection.is_silent or connection.is_unread:
                    oldest = task
                    break
                if counts[host] < count:
                    oldest = oldest or task
        if oldest is None:
            return False
        del self._served[oldest]
        oldest.cancel()
        return True

    async def _exchange(
        self, reader: asyncio.StreamReader, connection: _Connection
    ) -> tuple[str, Answer]:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return "GET", Answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"head too long\n")
        connection.is_silent = False
        async with self._turns.hold(Requester(connection.host)):
            await asyncio.sleep(0)
        _check_open(connection.writer)
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "GET", Answer(HTTPStatus.BAD_REQUEST, b"not HTTP/1\n")
        return words[0], await self.answer(words[0], words[1], _accepted(head))


def _accepted(head: bytes) -> str:
    """Return the header `Accept` of a request."""
    found = _ACCEPT.findall(head)
    return b",".join(found).decode("latin-1")


@dataclass(slots=True)
class _Form:
    """One form of a page."""

    waiting_count: int = 0
    begun_count: int = 0
    page: Answer | None = None


class _SharedPage:
    """A page that takes long, in two forms: all requests that wait for a form get the same one,
    built after they asked.
    """

    def __init__(self, build: Callable[[bool], Awaitable[Answer]]) -> None:
        """`build` returns the form that its argument selects."""
        self._build = build
        self._lock = asyncio.Lock()
        self._forms = _Form(), _Form()
        self._rest_end_s = 0.0

    async def get(self, is_second: bool = False) -> Answer:
        """Return a page that was begun after this call."""
        form = self._forms[is_second]
        begun_count = form.begun_count
        form.waiting_count += 1
        try:
            async with self._lock:
                page = form.page if form.begun_count > begun_count else None
                return page or await self._build_next(form)
        finally:
            form.waiting_count -= 1
            if not form.waiting_count:
                form.page = None

    async def _build_next(self, form: _Form) -> Answer:
        await asyncio.sleep(self._rest_end_s - monotonic())
        start_s = monotonic()
        form.begun_count += 1
        form.page = None
        try:
            form.page = page = await self._build(form is self._forms[1])
        finally:
            end_s = monotonic()
            self._rest_end_s = end_s + min((end_s - start_s) * REST_FACTOR, REST_S_MAX)
        return page


def _check_open(writer: asyncio.StreamWriter) -> None:
    """Raise ConnectionResetError if the client is gone: its page costs up to 20 ms, and uvloop
    raises a RuntimeError for the write.
    """
    if writer.is_closing():
        raise ConnectionResetError


def _import_text() -> Any:
    """Import the text format at the first scrape; see `metrics.py`."""
    return import_module("cometmq.runtime.metrics.text")


def _health(checks: dict[str, Check], warnings: dict[str, Check] | None = None) -> Answer:
    reasons = _reasons(checks)
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    shown = dict.fromkeys([*checks, *(warnings or {})], "ok") | _reasons(warnings or {}) | reasons
    body = msgspec.json.encode({"status": "failing" if reasons else "ok", "checks": shown})
    return Answer(status, body + b"\n", _JSON)


def _reasons(checks: dict[str, Check]) -> dict[str, str]:
    return {name: reason for name, check in checks.items() if (reason := check()) is not None}


def _head(answer: Answer) -> bytes:
    return (
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    ).encode()
