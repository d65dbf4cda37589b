# SPDX-License-Identifier: Apache-2.0
"""A small HTTP/1.1 client of one server, which keeps a few connections for later requests.

h11 reads and writes the protocol; this module owns the connections. With TLS, a request on a new
connection costs about ten times as much processor time, on both sides.

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

import h11
import msgspec

from cometmq.remoting.errors import CometError
from cometmq.remoting.transport.addresses import host_port

ANSWER_BYTES_MAX: Final = 1 << 20
IDLE_MAX: Final = 2
"""One program's calls for one record overlap rarely, and then only two of them."""
IDLE_S: Final = 10.0
"""Longer than the usual pauses between calls, and shorter than the idle timeouts of API servers
(90 s) and of common load balancers (50 s or more).
"""
JSON: Final = "application/json"
_PART_BYTES: Final = 65_536
_UNUSABLE: Final = (OSError, EOFError, h11.ProtocolError)


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


class Limits(msgspec.Struct, frozen=True):
    """Limits of a client."""

    idle_max: int = IDLE_MAX
    """Connections kept for later requests."""
    answer_bytes_max: int = ANSWER_BYTES_MAX
    """Bytes in the body of a response, and in a line of a stream."""


LIMITS: Final = Limits()


class _Connection:
    """A connection, and the state of the exchange on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._http = h11.Connection(h11.CLIENT)

    async def is_quiet(self) -> bool:
        """Return whether nothing has arrived since the last response, neither bytes nor the end.

        Takes one turn of the loop, so that an end that has reached this host is noticed.
        """
        try:
            async with asyncio.timeout(0):
                await self._reader.read(1)
        except TimeoutError:
            return not (self._reader.at_eof() or self.writer.is_closing())
        except OSError:
            return False
        return False

    def send(self, request: Request, host: str) -> None:
        headers = [
            ("Host", host),
            ("Content-Type", request.content_type),
            ("Content-Length", str(len(request.body))),
            *([("Authorization", request.token)] if request.token else []),
        ]
        head = h11.Request(method=request.method, target=request.path, headers=headers)
        parts = (head, h11.Data(data=request.body), h11.EndOfMessage())
        self.writer.write(b"".join(filter(None, map(self._http.send, parts))))

    async def status(self) -> int:
        """Read the head of the response; raise EOFError if the connection ends first."""
        while not isinstance(event := await self._event(), h11.Response):
            pass  # a server may send interim responses first
        return event.status_code

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body of the response to its end, as it arrives."""
        while isinstance(event := await self._event(), h11.Data):
            yield event.data

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_PART_BYTES)
            if not data and self._http.their_state is h11.SEND_RESPONSE:
                raise EOFError("no response")
            self._http.receive_data(data)
        return event

    def may_continue(self, status: int) -> bool:
        """Prepare for another request; return whether the connection is good for one."""
        # A server that answers 500 or more may have lost its own backend; another one may work.
        if self._http.their_state is not h11.DONE or self._http.trailing_data[0] or status >= 500:
            return False
        self._http.start_next_cycle()
        return True


class HttpClient:
    """Requests to one server; they may overlap. All must run in one event loop."""

    def __init__(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        self.address = host_port(host, port)
        self._host = host
        self._port = port
        self._tls = tls
        self._limits = limits
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
        wait_s, line_s = waits_s
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(wait_s):
                connection = await self._connect()
                connection.send(request, self.address)
                status = await connection.status()
                if status != 200:
                    body = await self._body(connection)
                    raise HttpError(f"{self.address} answered {status}: {body[:200]!r}")
            yield b""
            wait_s, rest, parts = line_s, bytearray(), connection.parts()
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
        except _UNUSABLE as error:
            raise self._unusable(error) from error
        finally:
            if connection is not None:
                connection.writer.transport.abort()

    async def close(self) -> None:
        """Close the idle connections; a later request opens a new one."""
        writers = [connection.writer for connection in self._idle]
        self._close_idle()
        for writer in writers:
            with suppress(OSError):
                await writer.wait_closed()

    async def _connect(self) -> _Connection:
        try:
            return _Connection(
                *await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            )
        except OSError as error:
            raise NotSent(f"cannot connect to {self.address}: {error}") from error

    async def _exchange(
        self, connection: _Connection, request: Request, *, is_reused: bool = False
    ) -> tuple[int, bytes]:
        """Send a request and read the response; then keep the connection or close it."""
        may_keep = False
        try:
            if is_reused and not await connection.is_quiet():
                raise NotSent(f"{self.address} closed an idle connection")
            connection.send(request, self.address)
            try:
                status = await connection.status()
            except (OSError, EOFError) as error:
                raise _Broken(f"{self.address} closed the connection: {error}") from error
            body = await self._body(connection)
            may_keep = connection.may_continue(status)
            return status, body
        except _UNUSABLE as error:
            raise self._unusable(error) from error
        finally:
            if may_keep and len(self._idle) < self._limits.idle_max:
                timer = asyncio.get_running_loop().call_later(IDLE_S, self._expire, connection)
                self._idle[connection] = timer
            else:
                connection.writer.transport.abort()  # the response is complete or not needed
            if not may_keep:
                self._close_idle()

    async def _body(self, connection: _Connection) -> bytes:
        body = bytearray()
        async for part in connection.parts():
            body += part
            self._check(body)
        return bytes(body)

    def _check(self, data: bytearray) -> None:
        if len(data) > self._limits.answer_bytes_max:
            raise self._unusable(f"more than {self._limits.answer_bytes_max} bytes")

    def _unusable(self, error: object) -> HttpError:
        return HttpError(f"{self.address} sent no usable response: {error}")

    def _expire(self, connection: _Connection) -> None:
        del self._idle[connection]
        connection.writer.transport.abort()

    def _close_idle(self) -> None:
        while self._idle:
            connection, timer = self._idle.popitem()
            timer.cancel()
            connection.writer.transport.abort()
