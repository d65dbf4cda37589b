# SPDX-License-Identifier: Apache-2.0
"""The pages of the HTTP port of every program.

Counters are copied on the event loop, a few at a time, and encoded on a worker thread. Requests for
a page that takes long share it, and it is built during a limited part of the time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Final

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from cometmq.remoting.log import Log
from cometmq.runtime.admin_http import AdminHttp, Check
from cometmq.runtime.http.server import HttpServer
from cometmq.runtime.incremental import IncrementalRunner
from cometmq.runtime.metrics.exposition import Dropping, Encoder, encoder_of

REST_FACTOR: Final = 4
"""A page that takes long is not built again for this many times the time that it took."""
REST_S_MAX: Final = 1.0
PAGES: Final = {
    "/metrics": "metrics in Prometheus format",
    "/healthz": "200 while the process is healthy",
    "/readyz": "200 while the process can serve clients, otherwise 503 with the reasons",
    "/settings": "every setting with its source",
}
_NO_STORE: Final = {"Cache-Control": "no-store"}


def server_of(http: AdminHttp) -> HttpServer:
    """Return the server of the pages."""
    return HttpServer(app_of(http), log=http.log)


def app_of(http: AdminHttp) -> Starlette:
    """Return the pages that show what is registered."""
    shared = SharedPages()
    incremental = IncrementalRunner()

    async def index(_: Request) -> Response:
        return _text("".join(f"{page:<9} {text}\n" for page, text in PAGES.items()))

    async def metrics(request: Request) -> Response:
        encoder, kind = encoder_of(",".join(request.headers.getlist("accept")))
        body = await shared.get(kind, partial(build, encoder))
        return Response(body, media_type=kind, headers=_NO_STORE)

    async def build(encoder: Encoder) -> bytes:
        families = await incremental.run(http.registry.collect())
        return await http.worker.submit(partial(_encoded, http, encoder, families))

    async def healthz(_: Request) -> Response:
        return _health({}, {})  # the loop runs

    async def readyz(_: Request) -> Response:
        return _health(http.ready, http.warnings)

    async def settings(_: Request) -> Response:
        return _text(await shared.get("settings", shown))

    async def shown() -> bytes:
        return "\n".join(f"# {name}\n{text()}" for name, text in http.settings.items()).encode()

    pages = index, metrics, healthz, readyz, settings
    paths = "/", *PAGES
    return Starlette(routes=[Route(path, page) for path, page in zip(paths, pages, strict=True)])


class SharedPages:
    """Pages that take long: all requests that wait for a page get the same one, begun after they
    asked.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._next: dict[str, asyncio.Task[bytes]] = {}
        """The pages that are not begun yet."""
        self._rest_end_s = 0.0

    async def get(self, name: str, build: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return a page that is begun after this call."""
        if name not in self._next:
            task = self._built(name, build)
            self._next[name] = asyncio.create_task(task)  # noqa: TID251  # `shield` tells its error
        return await asyncio.shield(self._next[name])

    async def _built(self, name: str, build: Callable[[], Awaitable[bytes]]) -> bytes:
        async with self._lock:
            await asyncio.sleep(self._rest_end_s - monotonic())
            del self._next[name]
            start_s = monotonic()
            try:
                return await build()
            finally:
                end_s = monotonic()
                self._rest_end_s = end_s + min((end_s - start_s) * REST_FACTOR, REST_S_MAX)


def _encoded(http: AdminHttp, encoder: Encoder, families: list[Metric]) -> bytes:  # on the thread
    for path in http.metrics_files:
        families += _families_in(path, http.log)
    return encoder(Dropping(families))


def _families_in(path: Path, log: Log) -> list[Metric]:
    try:
        return list(text_string_to_metric_families(path.read_text()))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        log.warning("metrics_file.unreadable", path=str(path), reason=str(error))
        return []


def _health(checks: Mapping[str, Check], warnings: Mapping[str, Check]) -> Response:
    reasons = _reasons(checks)
    shown = dict.fromkeys([*checks, *warnings], "ok") | _reasons(warnings) | reasons
    body = msgspec.json.encode({"status": "failing" if reasons else "ok", "checks": shown})
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return Response(body + b"\n", status, _NO_STORE, "application/json")


def _reasons(checks: Mapping[str, Check]) -> dict[str, str]:
    return {name: reason for name, check in checks.items() if (reason := check()) is not None}


def _text(text: str | bytes) -> Response:
    return PlainTextResponse(text, headers=_NO_STORE)
