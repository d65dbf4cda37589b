# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: h11 on asyncio's streams.

It is not uvicorn with Starlette, because these add 3.5 MB to a console of 30 MB.
"""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from socket import socket
from typing import Any, Final

import h11

from cometmq.console.web.clients import Known, Proxies, network_of
from cometmq.console.web.exchange import Disconnected, Handler, Request, Response, plain
from cometmq.remoting.log import Log
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.remoting.transport.tasks import TaskSet, describe
from cometmq.runtime.turn_lock import TurnLock

BACKLOG: Final = 256
ACCEPTED_AT_ONCE: Final = 4
"""The most connections that one turn of the loop accepts."""
CONNECTIONS_MAX: Final = 500
HEAD_BYTES_MAX: Final = 64 << 10
READ_BYTES: Final = 64 << 10
SILENT_S: Final = 15.0
"""Connections that have not sent the head of a request for this time are closed."""
REQUEST_S: Final = 60.0
"""A connection whose request takes longer than this may be closed to make room for a new one."""
STOP_S: Final = 5.0
UNREAD_BYTES_MAX: Final = 64 << 20
UNREAD_S: Final = 5.0
"""After an early refusal, UNREAD_BYTES_MAX of the form are still read, for up to this time.
Otherwise a client that is still sending would see a reset connection instead of the answer.
"""
UNSENT_BYTES_MAX: Final = 64 << 20
"""The most bytes in answers that clients have not read. Above it, the network with the most of
these bytes loses its oldest connection.
"""
_STRANGERS: Final = "strangers"  # no network has this name
_BODILESS: Final = frozenset({HTTPStatus.NOT_MODIFIED, HTTPStatus.NO_CONTENT})


class WebServer:
    """Serves requests until it is stopped.

    Slow or silent clients cannot keep others out. If there are too many connections, the network
    with the most of them loses its oldest one. This applies to clients that send no request, only a
    part of one, or do not read the answers.

    Each turn of the loop begins to answer only one request, because a page takes 10 ms or more.
    Networks from which users have logged in are served in turn; all others share one turn.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        tls: ssl.SSLContext | None,
        trusted_proxies: str,
        known: Known,
        tasks: TaskSet,
        log: Log,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._handler = handler
        self._tls = tls
        self._proxies = Proxies(trusted_proxies)
        self._tasks = tasks
        self._log = log
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None
        self._open: dict[_Connection, asyncio.Task[None]] = {}
        self._turns = TurnLock()
        self._known = known
        self.unsent = Unsent()

    async def start(self, listener: socket) -> None:
        """Serve the connections of a listening socket."""
        self._server = await asyncio.start_server(
            self._connected,
            sock=listener,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else SILENT_S,
            limit=READ_BYTES,
            backlog=ACCEPTED_AT_ONCE,
        )
        listener.listen(BACKLOG)  # asyncio accepts as many at once as it tells the kernel to queue

    async def stop(self) -> None:
        """Let open requests finish for a short time, then close everything."""
        if self._server is not None:
            self._server.close()
        for connection in [it for it in self._open if it.is_waiting]:
            connection.abort()
        if self._open:
            await asyncio.wait(self._open.values(), timeout=STOP_S)
        await self._tasks.close()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(reader, writer, self._proxies, self._take_turn, self.unsent)
        is_full = len(self._open) >= self._connections_max and not self._make_room()
        handler = _busy if is_full else self._handler
        serving = self._serve(connection, handler)
        self._open[connection] = self._tasks.spawn(serving, name="console-web")

    async def _serve(self, connection: "_Connection", handler: Handler) -> None:
        try:
            while await connection.exchange(handler):
                pass
            connection.close()
        except (OSError, TimeoutError, Disconnected):
            connection.abort()
        except Exception as error:  # noqa: BLE001  # the frame: other connections go on
            self._log.error("request.failed", error=describe(error), exc_info=error)
            connection.abort()
        except asyncio.CancelledError:
            connection.abort()
            raise
        finally:
            self._open.pop(connection, None)

    async def _take_turn(self, client: str) -> None:
        network = network_of(client)
        is_known = client in self._known
        requester = Requester(network) if is_known else Requester(_STRANGERS, network)
        async with self._turns.hold(requester):
            await asyncio.sleep(0)

    def _make_room(self) -> bool:
        """Close one connection to make room; return False if all have requests that are being
        answered.
        """
        others = [it for it in self._open if it.may_close]
        if not others:
            return False
        held = Counter(it.network for it in others)
        gone = max(others, key=lambda it: (held[it.network], -it.since_s))
        del self._open[gone]
        gone.abort()
        return True


class Unsent:
    """Bounds the total size of the answers that clients have not read yet."""

    def __init__(self, bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._sizes: dict[_Connection, int] = {}

    def __contains__(self, connection: "_Connection") -> bool:
        """Return whether a client has not read the answer on this connection."""
        return connection in self._sizes

    @property
    def total_bytes(self) -> int:
        """The size of all these answers."""
        return sum(self._sizes.values())

    @contextmanager
    def sending(self, connection: "_Connection", size: int) -> Iterator[None]:
        """Count an answer until it is sent; abort other connections if the total is too large."""
        self._sizes[connection] = size
        while self.total_bytes > self._bytes_max and len(self._sizes) > 1:
            held: Counter[str] = Counter()
            for one, held_bytes in self._sizes.items():
                held[one.network] += held_bytes
            network = max(held, key=held.__getitem__)
            gone = next(it for it in self._sizes if it.network == network)
            del self._sizes[gone]
            gone.abort()
        try:
            yield
        finally:
            self._sizes.pop(connection, None)


class _Connection:
    """One connection, whose requests are answered one after the other."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        proxies: Proxies,
        turn: Callable[[str], Awaitable[None]],
        unsent: Unsent,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._proxies = proxies
        self._turn = turn
        self._is_queued = False  # whether the request waits for its turn
        self._unsent = unsent
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._peer = str((writer.get_extra_info("peername") or ("",))[0])
        self._early: Any = None
        self.network = network_of(self._peer)
        """The address of the client, or its IPv6 network."""
        self.since_s = time.monotonic()
        """When the connection or its current request began."""

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for a request, or for the rest of one."""
        return self._http.their_state in {h11.IDLE, h11.SEND_BODY}

    @property
    def may_close(self) -> bool:
        """Whether the connection waits for its client or its turn, or has taken too long."""
        waits = self.is_waiting or self._is_queued or self in self._unsent
        return waits or time.monotonic() - self.since_s > REQUEST_S

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def exchange(self, handler: Handler) -> bool:
        """Answer one request; return whether another one may follow."""
        try:
            async with asyncio.timeout(SILENT_S):
                head = await self._event()
                if not isinstance(head, h11.Request):
                    return False
                self.since_s = time.monotonic()
                _check_framing(head)
                self._early = self._http.next_event()
        except h11.RemoteProtocolError as error:
            await self._refuse(error)
            return False
        method = head.method.decode("ascii")
        request = self._request(method, head)
        await self._take_turn(request.client)
        response = await handler(request)
        await self._send(response, has_body=method != "HEAD")
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        if self.is_waiting:
            await self._drop_rest()
        return False

    async def _take_turn(self, client: str) -> None:
        self._is_queued = True
        await self._turn(client)
        self._is_queued = False
        if self._writer.is_closing():
            raise Disconnected

    def _request(self, method: str, head: h11.Request) -> Request:
        headers = [(name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers]
        forwarded = ",".join(value for name, value in headers if name == "x-forwarded-for")
        target = head.target.decode("ascii")
        client = self._proxies.client(self._peer, forwarded)
        return Request(method, target, headers, self._body(), client=client)

    async def _body(self) -> AsyncIterator[bytes]:
        event, self._early = self._early, None
        try:
            while not isinstance(event, h11.EndOfMessage):
                if isinstance(event, h11.Data):
                    yield bytes(event.data)
                if self._http.they_are_waiting_for_100_continue:
                    self._write(h11.InformationalResponse(status_code=100, headers=[]))
                event = await self._event()
        except h11.RemoteProtocolError as error:
            raise Disconnected from error

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event

    def _write(self, event: Any) -> None:
        data = self._http.send(event)
        if self._writer.is_closing():  # to make room; uvloop then raises RuntimeError
            raise Disconnected
        if data:
            self._writer.write(data)

    async def _send(self, response: Response, *, has_body: bool) -> None:
        headers = [
            ("Date", time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())),
            *response.headers.items(),
            *(("Set-Cookie", it) for it in response.cookies),
        ]
        has_body = has_body and response.status not in _BODILESS
        if response.status not in _BODILESS:
            headers.append(("Content-Length", str(len(response.body))))
        if self._http.their_state is not h11.DONE:  # the rest of the request is not read
            headers.append(("Connection", "close"))
        status = response.status
        self._write(h11.Response(status_code=status, reason=status.phrase, headers=headers))
        with self._unsent.sending(self, len(response.body)):
            if has_body:
                self._write(h11.Data(data=response.body))
            self._write(h11.EndOfMessage())
            await self._writer.drain()

    async def _refuse(self, error: h11.RemoteProtocolError) -> None:
        """Answer input that is not HTTP, or an incomplete request."""
        if self._http.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            status = HTTPStatus(error.error_status_hint)
            await self._send(plain(f"{status.phrase}\n", status), has_body=True)

    async def _drop_rest(self) -> None:
        """Read and drop the rest of a refused request, until the client closes or a limit is
        reached.
        """
        if self._writer.can_write_eof():
            self._writer.write_eof()
        left = UNREAD_BYTES_MAX
        with suppress(TimeoutError):
            async with asyncio.timeout(UNREAD_S):
                while left > 0 and (data := await self._reader.read(READ_BYTES)):
                    left -= len(data)


def _check_framing(head: h11.Request) -> None:
    """Refuse a request whose end a proxy may see at another byte (RFC 9112, 6.1)."""
    names = {name for name, _ in head.headers}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise h11.RemoteProtocolError("Content-Length with Transfer-Encoding")


async def _busy(_request: Request) -> Response:
    text = "too many requests are being answered: try again\n"
    return plain(text, HTTPStatus.SERVICE_UNAVAILABLE)
