# SPDX-License-Identifier: Apache-2.0
"""A client with one connection per address, opened on first use and reopened after a loss."""

import array
import asyncio
import fcntl
import os
import socket
import ssl
import termios
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import msgspec

from cometmq.remoting.codes import ResponseCode, request_name
from cometmq.remoting.command import Response
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec
from cometmq.remoting.errors import (
    ConnectFailed,
    ConnectionLost,
    Overloaded,
    RequestTimeout,
    TransportError,
    command_error,
)
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.raw import Body
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.dispatch import Dispatcher, Handler, Hooks
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.peer.intake import ClientIntake
from cometmq.remoting.transport.protocol import Parts, PeerProtocol
from cometmq.remoting.transport.settings import ClientSettings, TlsSettings
from cometmq.remoting.transport.stats import TransportStats
from cometmq.remoting.transport.tls import CertificateWatch
from cometmq.remoting.transport.tls_contexts import (
    WatchedContext,
    as_given,
    client_context,
    name_of,
)
from cometmq.remoting.types import Buffer

_UNTRUSTED: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's X509_V_ERR codes of self-signed certificates and of unknown issuers."""
_TRUST: Final = "tls.client.trustCertPath"
_NO_TLS = (ssl.SSLError, ConnectionResetError, ConnectionAbortedError)
"""A server without TLS answers a handshake with an alert, or closes the connection."""

_PARTS: Final = Parts(intake=ClientIntake)
_IS_APART: Final = "is_apart"
"""The key in a connection's state that marks a connection for a single request (`answers_anew`)."""

BeforeRequest = Callable[[int, dict[str, str], Buffer], None]
"""A hook that gets every request's code, ext fields (which it may change) and body."""


LATE_MS: Final = 500
"""A check that runs this much too late shows a blocked or starved event loop."""


class _Turns(asyncio.Lock):
    """Makes callers that need a connection to the same address try to connect one after the
    other.
    """

    callers = 0
    """Number of callers that connect or wait; the lock exists until it is 0."""


class Watch:
    """Detects whether any byte moves on a connection from now on.

    Bytes that arrive count, and so does output that was unsent at the start and has reached the
    other host. Later output does not count, because a host accepts it even if its processes are
    stopped.
    """

    def __init__(self, peer: PeerProtocol) -> None:
        self._peer = peer
        self._active_ms = peer.active_ms()
        self._waiting_bytes = undelivered_bytes(peer)
        self._delivered_bytes = peer.outlet.written_bytes - self._waiting_bytes

    def has_moved(self) -> bool:
        """Return whether anything has moved; a closed connection has not."""
        peer = self._peer
        if not peer.is_open:
            return False
        if peer.active_ms() != self._active_ms:
            return True
        if not self._waiting_bytes:
            return False
        return peer.outlet.written_bytes - undelivered_bytes(peer) > self._delivered_bytes


def undelivered_bytes(peer: PeerProtocol) -> int:
    """Return the bytes that the peer has not acknowledged, as far as the system reports them."""
    queued, sock = array.array("i", [0]), peer.info("socket")
    try:
        fcntl.ioctl(-1 if sock is None else sock.fileno(), termios.TIOCOUTQ, queued)
    except (OSError, ValueError):  # the socket is closed, or the system does not tell
        queued[0] = 0
    return peer.outlet.unsent_bytes + queued[0]


class RemotingClient:
    """Sends requests to any number of servers, and serves the requests that those servers send."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        clock_ms: Callable[[], int],
        handlers: Mapping[int, Handler[Any]] | None = None,
        context: Any = None,
        log: Log = NO_LOG,
        before: Sequence[BeforeRequest] = (),
        on_close: Callable[[PeerProtocol], None] | None = None,
    ) -> None:
        """Attach to the running loop; nothing is connected yet."""
        self._settings = settings
        self._before = tuple(before)
        self._tls: WatchedContext[ssl.SSLContext] | None = (
            WatchedContext(settings.tls, client_context) if settings.tls.enable else None
        )
        codec = Codec(
            COMMANDS,
            frame_bytes_max=settings.frame_bytes_max,
            serialization=settings.serialization,
        )
        self._on_close = on_close
        self._hub = Hub(codec, settings, clock_ms=clock_ms, log=log, on_close=self._closed)
        self._encoder = codec.encoder
        self._tasks = self._hub.tasks
        self._certificates = CertificateWatch(self._tasks, log)
        self._dispatcher = Dispatcher(handlers or {}, context, Hooks(), self._hub)
        self._peers: dict[str, PeerProtocol] = {}
        self._retiring: set[PeerProtocol] = set()
        self._connecting: dict[str, _Turns] = {}
        self._check_timer: asyncio.Handle | None = None
        self._check_due_ms = 0
        self.loop_late_ms = 0
        """The sum of the delays of the checks; delays below LATE_MS do not count."""
        self._is_closed = False

    async def invoke(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        *,
        timeout_ms: int,
        ok: Collection[int] = (ResponseCode.SUCCESS,),
        ext: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request to a server, and return the answer if its code is in `ok`.

        For any other code, raise the CommandError of that code. Raise ConnectFailed if the request
        was not sent, and ConnectionLost or RequestTimeout if the server may have served it.
        """
        deadline = self._hub.loop.time() + timeout_ms / 1000
        late_before_ms = self.loop_late_ms
        try:
            peer = await self._connected(address, timeout_ms)
            if (count := peer.connection.pending_count) >= self._settings.in_flight_max:
                raise Overloaded(f"{count} requests to {address} are unanswered")
            header, ext = self._prepared(code, header, body, ext)
            left_ms = max(1, int((deadline - self._hub.loop.time()) * 1000))
            response = await peer.invoke(code, header, body, timeout_ms=left_ms, ext=ext)
        except RequestTimeout as error:
            late_ms = self.loop_late_ms - late_before_ms
            late = RequestTimeout(
                f"{address} did not answer {request_name(int(code))} within {timeout_ms} ms"
                + (late_text(late_ms) if late_ms else "")
            )
            late.address, late.loop_late_ms = address, late_ms
            raise late from error
        except TransportError as error:
            error.address = address
            raise
        if response.code not in ok:
            raise command_error(response.code, response.remark, address)
        return response

    async def invoke_oneway(
        self,
        address: str,
        code: int,
        header: msgspec.Struct | None = None,
        body: Body = b"",
        *,
        timeout_ms: int,
        ext: Mapping[str, str] | None = None,
    ) -> None:
        """Send a request that gets no reply; `timeout_ms` bounds the time to connect. Raise
        ConnectFailed, or Overloaded if too much output is unsent.
        """
        try:
            peer = await self._connected(address, timeout_ms)
            header, ext = self._prepared(code, header, body, ext)
            if not peer.send(code, header, body, ext):
                raise Overloaded(f"too much unsent output to {address}")
        except TransportError as error:
            error.address = address
            raise

    async def answers_anew(
        self, address: str, code: int, body: Body = b"", *, timeout_ms: int
    ) -> bool:
        """Return whether a server answers a request over a new connection in time, with any code.

        The connection is closed afterwards; `on_close` is not called for it.
        """
        peer: PeerProtocol | None = None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                peer = await self._open(address)
                peer.state[_IS_APART] = True
                header, ext = self._prepared(code, None, body, None)
                await peer.invoke(code, header, body, timeout_ms=timeout_ms, ext=ext)
        except (TransportError, TimeoutError):
            return False
        finally:
            if peer is not None:
                peer.abort()
        return True

    def expiries_s(self) -> dict[str, float]:
        """Return when certificates in this client's own TLS files expire, in seconds since 1970, by
        setting.
        """
        found = {} if self._tls is None else self._tls.expiries_s
        return {f"tls.client.{name}": expiry_s for name, expiry_s in found.items()}

    def peer_expiry_s(self, address: str) -> float | None:
        """Return when the certificate that a server has shown expires, in seconds since 1970; None
        if there is no TLS connection to the address.
        """
        peer = self._peers.get(address)
        tls = None if peer is None else peer.info("ssl_object")
        shown = None if tls is None else tls.getpeercert(binary_form=True)
        if shown is None:
            return None
        module = import_module("cometmq.remoting.transport.certificate")  # few clients need it
        found: float | None = module.expiry_of_der(shown)
        return found

    def watch(self, address: str) -> Watch | None:
        """Watch the connection to the address; None if there is none."""
        peer = self._peers.get(address)
        return None if peer is None or not peer.is_open else Watch(peer)

    def is_connected(self, address: str) -> bool:
        """Whether a live connection to the address exists."""
        peer = self._peers.get(address)
        return peer is not None and peer.is_open

    def is_connection_to(self, address: str, peer: object) -> bool:
        """Return whether requests to the address are sent over this connection."""
        return peer is not None and self._peers.get(address) is peer

    def disconnect(self, address: str, reason: str = "") -> None:
        """End the connection to an address, if there is one; its pending requests fail at once.

        Output that is not sent is lost: a server that hangs would never take it.
        """
        peer = self._peers.pop(address, None)
        if peer is not None:
            if reason:
                peer.requests.close_reason = f"was closed: {reason}"
            peer.abort()

    def renew(self, address: str) -> None:
        """Send further requests to an address over a new connection, and close the present one
        when its requests are answered.
        """
        peer = self._peers.pop(address, None)
        if peer is not None and peer.is_open:
            self._retiring.add(peer)

    def stats(self) -> TransportStats:
        """Return a copy of the counters, with the present values of the gauges."""
        stats = msgspec.structs.replace(self._hub.stats)
        stats.unsent_bytes = sum(peer.outlet.unsent_bytes for peer in self._hub.peers)
        stats.buffered_bytes = sum(peer.buffered_bytes for peer in self._hub.peers)
        return stats

    async def close(self, drain_ms: int = 1_000) -> None:
        """Wait for handlers, then close every connection; pending requests fail."""
        self._is_closed = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        await self._tasks.drain(drain_ms / 1000)
        await self._hub.close(drain_ms)

    def _prepared(
        self,
        code: int,
        header: msgspec.Struct | None,
        body: Body,
        ext: Mapping[str, str] | None,
    ) -> tuple[msgspec.Struct | None, Mapping[str, str] | None]:
        """Run the hooks on all ext fields; without hooks, the typed header is sent unchanged."""
        if not self._before:
            return header, ext
        fields = self._encoder.ext(header)
        fields.update(ext or {})
        whole = body if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(body)
        for hook in self._before:
            hook(code, fields, whole)
        return None, fields

    async def _connected(self, address: str, timeout_ms: int) -> PeerProtocol:
        peer = self._peers.get(address)
        if peer is not None and peer.is_open:
            return peer
        turns = self._connecting.setdefault(address, _Turns())
        turns.callers += 1
        try:
            async with asyncio.timeout(timeout_ms / 1000), turns:
                peer = self._peers.get(address)
                if peer is None or not peer.is_open:
                    peer = await self._connect(address)
                return peer
        except TimeoutError as error:
            raise ConnectFailed(f"no connection to {address} in {timeout_ms} ms") from error
        finally:
            turns.callers -= 1
            if not turns.callers:
                del self._connecting[address]

    async def _connect(self, address: str) -> PeerProtocol:
        peer = self._peers[address] = await self._open(address)
        return peer

    async def _open(self, address: str) -> PeerProtocol:
        self._check_open()
        host, port = parse_address(address)
        if self._check_timer is None:
            self._check_later()
        context = None if self._tls is None else self._tls.context
        try:
            async with asyncio.timeout(self._settings.connect_timeout_ms / 1000):
                _, peer = await self._hub.loop.create_connection(
                    lambda: PeerProtocol(self._hub, self._dispatcher, _PARTS),
                    host,
                    port,
                    ssl=context,
                )
        except (OSError, TimeoutError, ssl.SSLError) as error:
            reason = _reason(error) or f"no answer in {self._settings.connect_timeout_ms} ms"
            if context is not None and isinstance(error, _NO_TLS):
                reason = f"TLS failed ({reason}); {_tls_advice(error, self._settings.tls)}"
            raise ConnectFailed(f"no connection to {address}: {reason}") from error
        try:
            self._check_open()
        except ConnectionLost:  # while it connected
            peer.abort()
            raise
        if not peer.address:  # reset before the system could name the peer
            peer.address = address
        return peer

    def _check_open(self) -> None:
        if self._is_closed:
            raise ConnectionLost("the client is closed")

    def _closed(self, peer: PeerProtocol) -> None:
        if self._on_close is not None and _IS_APART not in peer.state:
            self._on_close(peer)

    def _check_later(self) -> None:
        self._check_timer, due_s = self._hub.later(self._check)
        self._check_due_ms = int(due_s * 1000)

    def _check(self) -> None:
        now_ms = self._hub.now_ms()
        late_ms = now_ms - self._check_due_ms
        if late_ms >= LATE_MS:  # noted before the requests below expire
            self.loop_late_ms += late_ms
        self._check_later()
        for peer in tuple(self._hub.peers):
            peer.check(now_ms)
        for peer in tuple(self._retiring):
            if not peer.is_open or not peer.connection.pending_count:
                self._retiring.discard(peer)
                peer.close()
        for address in [a for a, peer in self._peers.items() if not peer.is_open]:
            del self._peers[address]
        self._certificates.look(self._tls)


def _reason(error: Exception) -> str:
    """Return the system's text for an error number, because event loops use texts of their own."""
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    if isinstance(error, ssl.SSLError):  # its number is not the system's
        return str(error)
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else str(error)


def late_text(late_ms: int) -> str:
    """Return the text to append to a timeout error if `RemotingClient.loop_late_ms` has grown."""
    return (
        f", but this program's event loop was late by {late_ms} ms meanwhile, so the answer may"
        " have waited here: blocking code ran in the loop, or too many calls at once; run blocking"
        " code with `await asyncio.to_thread(...)`, make a blocking listener a plain function, or"
        " start fewer calls at once"
    )


def _tls_advice(error: Exception, settings: TlsSettings) -> str:
    if not isinstance(error, ssl.SSLCertVerificationError):
        return "check that the server offers TLS there"
    if error.verify_code in _UNTRUSTED:
        path = settings.trust_cert_path
        if path is not None:
            given = as_given(settings, _TRUST, path)
            return f"its certificate is not signed by a CA in {given}"
        name = name_of(settings, _TRUST) if settings.names else f"trust_cert_path ({_TRUST})"
        return (
            f"its certificate is not signed by a CA of the system: set {name} to a file with its CA"
        )
    return "the certificate of the server is not valid"
