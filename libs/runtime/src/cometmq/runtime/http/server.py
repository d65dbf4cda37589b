# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of admin ports and console: uvicorn's connections, with limits per network.

uvicorn itself limits only the number of requests (`limit_concurrency`, which counts idle
connections too). Here, slow or silent clients cannot keep others out: above the limit of
connections, the network with the most of them loses its oldest one that waits for its client.

Messages wait while the event loop serves HTTP. So each turn of the loop accepts only a few
connections and begins to answer one request; networks take turns.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from ipaddress import ip_address
from logging import CRITICAL
from socket import socket
from time import monotonic
from typing import Any, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cometmq.remoting.log import Log
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.incremental import TurnLock
from cometmq.runtime.places import BACKLOG

ACCEPTED_AT_ONCE: Final = 4
"""Connections that one turn of the loop accepts: each takes 0.2 ms."""
CONNECTIONS_MAX: Final = 500
HEAD_BYTES_MAX: Final = 64 << 10
SILENT_S: Final = 15.0
"""A connection is closed if its client sends no request, or reads nothing, for this time."""
REQUEST_S: Final = 60.0
"""A connection whose request takes longer than this may be closed to make room for a new one."""
UNREAD_BYTES_MAX: Final = 64 << 20
UNREAD_S: Final = 5.0
"""Before an early refusal is sent, UNREAD_BYTES_MAX of the form are still read, for up to this
time. Otherwise a client that is still sending would see a reset connection instead of the answer.
"""
UNSENT_BYTES_MAX: Final = 64 << 20
"""The most bytes in answers that clients have not read. Above it, the network with the most of
these bytes loses its oldest connection.
"""
CHUNK_BYTES: Final = 256 << 10
STOP_S: Final = 1.0
"""How long clients may still read at a stop; requests in progress may take STOPPED_S."""
STOPPED_S: Final = 5.0

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class HttpServer:
    """Serves an ASGI application until it is stopped."""

    def __init__(
        self,
        app: App,
        *,
        log: Log,
        trusted_proxies: str = "",
        requester: Callable[[str], Requester] | None = None,
    ) -> None:
        """`trusted_proxies` are addresses and networks whose `X-Forwarded-For` names the client.
        `requester` returns whose turn a client takes, by its address; the default is its network.
        """
        self.app = app
        self.log = log
        self.requester = requester or (lambda client: Requester(network_of(client)))
        self.config = Config(
            _answer,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=CRITICAL,  # of uvicorn's own logger: events are logged here
            access_log=False,
            forwarded_allow_ips=trusted_proxies,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_keep_alive=int(SILENT_S),
        )
        self.state = ServerState()
        self.turns = TurnLock()
        self.connections: dict[Connection, None] = {}  # oldest first
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket, tls: ssl.SSLContext | None = None) -> None:
        """Serve the connections of a listening socket."""
        loop = asyncio.get_running_loop()
        self.config.load()
        self._server = await loop.create_server(
            partial(Connection, self, loop),
            sock=listener,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else SILENT_S,
            backlog=ACCEPTED_AT_ONCE,
        )
        listener.listen(BACKLOG)  # asyncio accepts as many at once as it tells the kernel to queue

    async def stop(self) -> None:
        """Let requests in progress end for a short time, then close everything."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.shutdown()
        for timeout_s, is_last in ((STOP_S, False), (STOPPED_S - STOP_S, True)):
            if self.state.tasks:
                await asyncio.wait(self.state.tasks, timeout=timeout_s)
            for connection in list(self.connections):
                if is_last or connection.is_unread:
                    connection.abort()
        for task in self.state.tasks:
            task.cancel()
        if self.state.tasks:
            await asyncio.wait(self.state.tasks)

    def admit(self, connection: "Connection") -> bool:
        """Add a connection; return False if there is no room for it."""
        if len(self.connections) >= CONNECTIONS_MAX and not self._make_room(connection.network):
            return False
        self.connections[connection] = None
        return True

    def bound_unsent(self) -> None:
        """Abort connections until their unread answers have at most UNSENT_BYTES_MAX."""
        unsent = [it for it in self.connections if it.unsent_bytes]
        while len(unsent) > 1 and sum(it.unsent_bytes for it in unsent) > UNSENT_BYTES_MAX:
            held: Counter[str] = Counter()
            for one in unsent:
                held[one.network] += one.unsent_bytes
            network = max(held, key=held.__getitem__)
            gone = next(it for it in unsent if it.network == network)
            unsent.remove(gone)
            gone.abort()

    def _make_room(self, network: str) -> bool:
        """Close a connection of the network with the most, for one of this network.

        It is the oldest one that waits for its client. If there is none, it is the oldest one; but
        then a network that has as many itself gets no room: return False.
        """
        counts = Counter(it.network for it in self.connections)
        ((most, count),) = counts.most_common(1) or [("", 0)]
        theirs = [it for it in self.connections if it.network == most]
        other = theirs[0] if theirs and counts[network] < count else None
        gone = next((it for it in theirs if it.may_close), other)
        if gone is not None:
            gone.abort()
        return gone is not None


class Connection(H11Protocol):
    """One connection, whose requests are answered one after the other."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(server.config, server.state, {"connection": self}, loop)
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self._since_s = monotonic()
        self.is_queued = False
        """Whether its request waits for its turn."""
        self.network = ""
        """The address of the client, or its IPv6 network."""
        self.unsent_bytes = 0
        """The size of what the client has not read of its answer."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    @property
    def is_unread(self) -> bool:
        """Whether the client does not read its answer."""
        return self.flow.write_paused

    @property
    def may_close(self) -> bool:
        """Whether the connection waits for its client or its turn, or has taken too long."""
        waits = self.is_idle or self.is_queued or self.is_unread
        return (
            waits
            or self.conn.their_state is not h11.DONE
            or monotonic() - self._since_s > REQUEST_S
        )

    # -- as asyncio and uvicorn call it -------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, if there is one."""
        super().connection_made(transport)
        # Paused until the client has read all. With `high=0`, asyncio's TLS pauses for nothing.
        transport.set_write_buffer_limits(high=1, low=0)
        host, port = self.client or ("", 0)
        self.client = unmapped(host), port
        self.network = network_of(host)
        if self._server.admit(self):
            self._watch()
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place."""
        super().connection_lost(exc)
        self._server.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        """Note that the client has not read all."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Note that the client has read all."""
        super().resume_writing()
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP, unless an answer has begun."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            with suppress(h11.LocalProtocolError):  # uvicorn answers HEAD with a body, too
                super().send_400_response(msg)
            self._end_request()
            self.transport.close()
        else:
            self.abort()

    def shutdown(self) -> None:
        """Close the connection, after the answer that is in progress."""
        if self.is_idle and not self.is_unread:
            self.abort()
        else:
            self.cycle.keep_alive = False

    # -- requests -----------------------------------------------------------------------------

    def abort(self) -> None:
        """Close the connection now; what is being answered goes on, without its client."""
        self._server.connections.pop(self, None)
        self.unsent_bytes = 0
        self._end_request()
        self.transport.abort()

    async def answer(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request when its turn has come."""
        self._since_s = monotonic()
        self._watch()
        cycle = self.cycle
        self.is_queued = True
        async with self._server.turns.hold(self._server.requester(scope["client"][0])):
            await asyncio.sleep(0)
        self.is_queued = False
        if cycle.disconnected:
            return
        send = partial(self._send, receive, send)
        names = {name for name, _ in scope["headers"]}
        if {b"content-length", b"transfer-encoding"} <= names:
            # A proxy may see the end of this request at another byte (RFC 9112, 6.1).
            await send({"type": "http.response.start", "status": 400, "headers": [_CLOSE]})
            await send({"type": "http.response.body"})
            return
        try:
            await self._server.app(scope, receive, send)
        except Exception as error:  # the frame: other requests go on
            path = scope["path"]
            self._server.log.error(  # noqa: TRY400  # as all logs of exceptions
                "request.failed", path=path, error=describe(error), exc_info=error
            )
            raise

    async def _send(self, receive: Receive, send: Send, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), (b"date", formatdate(usegmt=True).encode())]
            if not await self._rest_is_read(receive):
                headers.append(_CLOSE)
            await send({**message, "headers": headers})
            return
        body, has_more = memoryview(message.get("body", b"")), message.get("more_body", False)
        self.unsent_bytes = len(body)
        self._server.bound_unsent()
        for at in range(0, len(body) or 1, CHUNK_BYTES):
            end = at + CHUNK_BYTES
            await send({**message, "body": body[at:end], "more_body": has_more or end < len(body)})
            self.unsent_bytes = max(0, min(self.unsent_bytes, len(body) - end))

    async def _rest_is_read(self, receive: Receive) -> bool:
        """Read and drop the rest of a form that is refused; return False if it has not ended."""
        left, is_read = UNREAD_BYTES_MAX, self.conn.their_state is not h11.SEND_BODY
        if self.cycle.waiting_for_100_continue:
            return is_read
        with suppress(TimeoutError):
            async with asyncio.timeout(UNREAD_S):
                while not is_read and left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    is_read = not message.get("more_body", False)
        return is_read

    def _end_request(self) -> None:
        if not self.is_idle:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _watch(self) -> None:
        """Abort the connection after SILENT_S, if it waits for its client to send or to read."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_idle or self.is_unread:
            self._timer = self.loop.call_later(SILENT_S, self.abort)


_CLOSE: Final = (b"connection", b"close")


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    await scope["state"]["connection"].answer(scope, receive, send)


def unmapped(address: str) -> str:
    """Return an IPv4 address that is written as one of IPv6 in its own form."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or address)


def network_of(address: str) -> str:
    """Return the network that a single client may own: the address for IPv4, its first 64 bits for
    IPv6.
    """
    try:
        found = ip_address(unmapped(address).partition("%")[0])
    except ValueError:
        return address
    return str(found) if found.version == 4 else found.packed[:8].hex()
