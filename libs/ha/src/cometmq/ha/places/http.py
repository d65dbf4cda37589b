# SPDX-License-Identifier: Apache-2.0
"""A small HTTP/1.1 client of one server, which keeps a few connections for later requests.

With TLS, a request on a new connection costs about ten times as much processor time, on both sides.

Several servers may share an address, and idle connections probably lead to the same one. After any
failure, the connection and all idle ones are closed, so that the next request can reach another
server. If a server dies silently, requests that have already been sent to it wait until their
deadline, but later ones do not wait for it again. The backends' deadline is 2 s. A master renews
its record every quarter of its renew deadline, and after a failure reads it again 0.2 s later; so
one lost renewal does not end its lease if the renew deadline is 3 s or more. A round of an elector
may take 2 s longer.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.remoting.errors import CometError

ANSWER_BYTES_MAX: Final = 1 << 20
IDLE_MAX: Final = 2
"""One program's calls for one record overlap rarely, and then only two of them."""
IDLE_S: Final = 10.0
"""Longer than the usual pauses between calls, and shorter than the idle timeouts of API servers
(90 s) and of common load balancers (50 s or more).
"""
JSON: Final = "application/json"
_HEAD_END: Final = b"\r\n\r\n"

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_UNUSABLE: Final = (OSError, EOFError, ValueError, asyncio.LimitOverrunError)


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


class _Head(msgspec.Struct, frozen=True):
    """The head of a response; names of headers are in lower case."""

    version: bytes
    status: int
    headers: dict[bytes, bytes]

    @property
    def may_keep(self) -> bool:
        """Return whether the connection is good for another request after this response."""
        is_delimited = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        is_ending = b"close" in self.headers.get(b"connection", b"").lower()
        # A server that answers 500 or more may have lost its own backend; another one may work.
        is_healthy = self.status < 500
        return self.version == b"HTTP/1.1" and is_delimited and not is_ending and is_healthy


class HttpClient:
    """Requests to one server; they may overlap. All must run in one event loop."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, *, idle_max: int = IDLE_MAX
    ) -> None:
        self.address = f"{host}:{port}"
        self._host = host
        self._port = port
        self._tls = tls
        self._idle_max = idle_max
        self._idle: dict[_Connection, asyncio.TimerHandle] = {}
        """Idle connections and the timers that close them, the last used connection last."""

    async def send(self, request: Request) -> tuple[int, bytes]:
        """Send a request; return the response's status and body. The caller sets the deadline."""
        if self._idle:
            connection, timer = self._idle.popitem()
            timer.cancel()
            try:
                return await self._exchange(connection, request, is_reused=True)
            except NotSent:
                pass  # the server closed the connection while it was idle
            except _Broken:
                if not request.is_repeatable:
                    raise
        return await self._exchange(await self._connect(), request)

    async def stream(
        self, request: Request, *, waits_s: tuple[float, float]
    ) -> AsyncIterator[bytes]:
        """Yield b"" once the server has accepted a request, then the lines of its body as they
        arrive; the connection is used for nothing else.

        `waits_s` bounds the wait for the status and for each line. Raise HttpError after a longer
        wait, and for any status but 200.
        """
        answer_s, line_s = waits_s
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(answer_s):
                reader, writer = await self._connect()
                writer.write(self._encoded(request, "1.0"))  # so the body is not in chunks
                head = _parsed(await reader.readuntil(_HEAD_END))
            if head.status != 200:
                raise HttpError(f"{self.address} answered {head.status}")
            yield b""
            while True:
                async with asyncio.timeout(line_s):
                    line = await reader.readline()
                if not line:
                    return
                yield line
        except TimeoutError as error:
            raise HttpError(f"{self.address} was silent for more than {answer_s} s") from error
        except _UNUSABLE as error:
            raise self._unusable(error) from error
        finally:
            if writer is not None:
                writer.transport.abort()

    async def close(self) -> None:
        """Close the idle connections; a later request opens a new one."""
        writers = [writer for _, writer in self._idle]
        self._close_idle()
        for writer in writers:
            with suppress(OSError):
                await writer.wait_closed()

    async def _connect(self) -> _Connection:
        try:
            return await asyncio.open_connection(
                self._host, self._port, ssl=self._tls, limit=ANSWER_BYTES_MAX
            )
        except OSError as error:
            raise NotSent(f"cannot connect to {self.address}: {error}") from error

    async def _exchange(
        self, connection: _Connection, request: Request, *, is_reused: bool = False
    ) -> tuple[int, bytes]:
        """Send a request and read the response; then keep the connection or close it."""
        reader, writer = connection
        may_keep = False
        try:
            if is_reused and not await _is_quiet(connection):
                raise NotSent(f"{self.address} closed an idle connection")
            writer.write(self._encoded(request, "1.1"))
            try:
                head = _parsed(await reader.readuntil(_HEAD_END))
            except (OSError, asyncio.IncompleteReadError) as error:
                raise _Broken(f"{self.address} closed the connection: {error}") from error
            body = await _body(reader, head.headers)
            may_keep = head.may_keep
            return head.status, body
        except _UNUSABLE as error:
            raise self._unusable(error) from error
        finally:
            if may_keep and len(self._idle) < self._idle_max:
                timer = asyncio.get_running_loop().call_later(IDLE_S, self._expire, connection)
                self._idle[connection] = timer
            else:
                writer.transport.abort()  # the response is complete or no longer needed
            if not may_keep:
                self._close_idle()

    def _encoded(self, request: Request, version: str) -> bytes:
        headers = [
            f"{request.method} {request.path} HTTP/{version}",
            f"Host: {self.address}",
            f"Content-Type: {request.content_type}",
            f"Content-Length: {len(request.body)}",
            *([f"Authorization: {request.token}"] if request.token else []),
        ]
        return "\r\n".join([*headers, "", ""]).encode() + request.body

    def _unusable(self, error: Exception) -> HttpError:
        return HttpError(f"{self.address} sent no usable response: {error}")

    def _expire(self, connection: _Connection) -> None:
        del self._idle[connection]
        connection[1].transport.abort()

    def _close_idle(self) -> None:
        while self._idle:
            (_, writer), timer = self._idle.popitem()
            timer.cancel()
            writer.transport.abort()


async def _is_quiet(connection: _Connection) -> bool:
    """Return whether nothing has arrived since the last response, neither bytes nor the end.

    Takes one turn of the loop, so that an end that has reached this host is noticed.
    """
    reader, writer = connection
    try:
        async with asyncio.timeout(0):
            await reader.read(1)
    except TimeoutError:
        return not (reader.at_eof() or writer.is_closing())
    except OSError:
        return False
    return False


def _parsed(data: bytes) -> _Head:
    """Parse the head of a response; raise ValueError."""
    first, *lines = data.removesuffix(_HEAD_END).split(b"\r\n")
    words = first.split(maxsplit=2)
    if not (first.startswith(b"HTTP/") and len(words) > 1 and words[1].isdigit()):
        raise ValueError(f"{data[:80]!r} is not HTTP")
    pairs = (line.partition(b":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return _Head(words[0], int(words[1]), headers)


async def _body(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> bytes:
    """Read the body of a response to its end; raise ValueError, EOFError or OSError."""
    if coding := headers.get(b"transfer-encoding"):
        if coding.lower() != b"chunked":
            raise ValueError(f"the transfer coding {coding!r} is unknown")
        return await _chunks(reader)
    if (length := headers.get(b"content-length")) is None:
        return await _rest(reader)
    if not length.isdigit() or int(length) > ANSWER_BYTES_MAX:
        raise ValueError(f"the length {length[:80]!r} is not one of 0..{ANSWER_BYTES_MAX}")
    return await reader.readexactly(int(length))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        if len(body) + size > ANSWER_BYTES_MAX:
            raise ValueError(f"the response has more than {ANSWER_BYTES_MAX} bytes")
        body += await reader.readexactly(size)
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("a chunk has a wrong size")
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return bytes(body)


async def _rest(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while part := await reader.read(65_536):
        body += part
        if len(body) > ANSWER_BYTES_MAX:
            raise ValueError(f"the response has more than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)
