# SPDX-License-Identifier: Apache-2.0
"""Requests to one HTTP server, over a few connections that httpcore2 keeps for later requests.

With TLS, a request on a new connection costs about ten times as much processor time, on both sides.

Several servers may share an address, and idle connections probably lead to the same one. After any
failure, the idle ones are closed, so that the next request can reach another server. If a server
dies silently, requests that have already been sent to it wait until their deadline, but later ones
do not wait for it again. The backends' deadline is 2 s. A master renews its record every quarter of
its renew deadline, and after a failure reads it again 0.2 s later; so one lost renewal does not end
its lease if the renew deadline is 3 s or more. A round of an elector may take 2 s longer.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

import httpcore2
import msgspec

from cometmq.remoting.errors import UNREADABLE_JSON, CometError
from cometmq.remoting.transport.addresses import host_port

ANSWER_BYTES_MAX: Final = 1 << 20
IDLE_MAX: Final = 2
"""One program's calls for one record overlap rarely, and then only two of them."""
IDLE_S: Final = 10.0
"""Longer than usual pauses, shorter than idle timeouts of API servers and load balancers."""
JSON: Final = "application/json"
_FAILURES: Final = (
    httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException,
)  # fmt: skip

T = TypeVar("T")


class HttpError(CometError):
    """The response is missing or unusable; the server may have served the request."""


class NotSent(HttpError):
    """The request was not sent, so the server cannot have served it."""


class _Broken(HttpError):
    """The connection broke before the head of the response was complete."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request, without the address of the server."""

    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON
    token: str = ""
    """The value of the Authorization header, which is not sent if this is empty."""
    is_repeatable: bool = False
    """Whether the server may serve this request twice; other requests are sent at most once."""


class HttpClient:
    """Requests to one server; they may overlap. All must run in one event loop."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        idle_max: int = IDLE_MAX,
        backend: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        """`idle_max` connections are kept; `backend` opens them, in tests."""
        self.address = host_port(host, port)
        self._url = f"{'https' if tls else 'http'}://{self.address}"
        self._pool = httpcore2.AsyncConnectionPool(
            tls, max_connections=None, max_keepalive_connections=idle_max,
            keepalive_expiry=IDLE_S, network_backend=backend,
        )  # fmt: skip

    async def send(self, request: Request) -> tuple[int, bytes]:
        """Send a request; return the response's status and body. The caller sets the deadline."""
        try:
            return await self._exchange(request)
        except _Broken:
            if not request.is_repeatable:
                raise
        return await self._exchange(request)

    async def stream(
        self, request: Request, *, waits_s: tuple[float, float]
    ) -> AsyncGenerator[bytes, None]:
        """Yield b"" once the server has accepted a request, then the lines of its body as they
        arrive.

        `waits_s` bounds the wait for the status and for each line; raise HttpError otherwise.
        """
        wait_s, line_s = waits_s
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(wait_s):
                    response = await stack.enter_async_context(self._response(request))
                    if response.status != 200:
                        body = await self._body(response)
                        raise HttpError(
                            f"{self.address} answered {response.status}: {body[:200]!r}"
                        )
                yield b""
                wait_s, rest, parts = line_s, bytearray(), aiter(response.aiter_stream())
                while True:
                    async with asyncio.timeout(line_s):
                        part = await anext(parts, b"")
                    if not part:
                        return
                    *lines, last = part.split(b"\n")
                    for line in lines:
                        yield bytes(rest + line)
                        rest.clear()
                    rest += last
                    self._check(rest)
        except TimeoutError as error:
            raise HttpError(f"{self.address} was silent for more than {wait_s} s") from error
        except _FAILURES as error:
            raise self._unusable(error) from error

    async def close(self) -> None:
        """Close all connections; a later request opens a new one."""
        await self._pool.aclose()

    async def _exchange(self, request: Request) -> tuple[int, bytes]:
        """Send a request and read the response; close idle connections after a failure."""
        is_good = False
        try:
            async with self._response(request) as response:
                body = await self._body(response)
            # A server that answers 500 or more may have lost its own backend; another may work.
            is_good = response.status < 500
            return response.status, body
        except _FAILURES as error:
            raise self._unusable(error) from error
        finally:
            if not is_good:
                for connection in self._pool.connections:
                    if connection.is_idle():
                        await connection.aclose()

    @asynccontextmanager
    async def _response(self, request: Request) -> AsyncIterator[httpcore2.Response]:
        """Send a request, and read the head of the response; leaving the context ends both."""
        headers = [
            ("Host", self.address),
            ("Content-Type", request.content_type),
            ("Content-Length", str(len(request.body))),
            *([("Authorization", request.token)] if request.token else []),
        ]
        url = self._url + request.path
        async with AsyncExitStack() as stack:
            sent = self._pool.stream(request.method, url, headers=headers, content=request.body)
            try:
                response = await stack.enter_async_context(sent)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                raise NotSent(f"cannot connect to {self.address}: {error}") from error
            except _FAILURES as error:
                raise _Broken(
                    f"{self.address} sent no usable response, or closed the connection: {error}"
                ) from error
            yield response

    async def _body(self, response: httpcore2.Response) -> bytes:
        body = bytearray()
        async for part in response.aiter_stream():
            body += part
            self._check(body)
        return bytes(body)

    def _check(self, data: bytearray) -> None:
        if len(data) > ANSWER_BYTES_MAX:
            raise self._unusable(f"more than {ANSWER_BYTES_MAX} bytes")

    def _unusable(self, error: object) -> HttpError:
        return HttpError(f"{self.address} sent no usable response: {error}")


def parsed(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """Return a JSON answer; raise HttpError if it is not of this type."""
    try:
        return msgspec.json.decode(data, type=type_)
    except UNREADABLE_JSON as error:
        raise HttpError(f"the answer cannot be read: {error}") from error
