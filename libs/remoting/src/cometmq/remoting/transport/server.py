# SPDX-License-Identifier: Apache-2.0
"""A server: its listeners, its connections, and the order of its shutdown."""

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Generic

import msgspec

from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec
from cometmq.remoting.frame import REQUEST_HEADER_BYTES_MAX
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.addresses import has_ipv6
from cometmq.remoting.transport.direct import HAS_EPOLL, DirectIO
from cometmq.remoting.transport.dispatch import (
    After,
    Before,
    ContextT,
    Dispatcher,
    Handler,
    Hooks,
    Refused,
)
from cometmq.remoting.transport.flow.connected import LEAVING
from cometmq.remoting.transport.flow.turns import Walk
from cometmq.remoting.transport.flow.writes import Writes
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane import Lane, Sockets
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.server_peer import ServerPeer
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.remoting.transport.stats import TransportStats
from cometmq.remoting.transport.tls import CertificateWatch, TlsGate
from cometmq.remoting.transport.tls_contexts import TlsEngine

_ACCEPTED_PER_TURN: Final = 32
ANSWERS_MS: Final = 250
"""How long a server that stops sends answers if its handlers have taken all the time."""
_FREED_BYTES_MIN: Final = 32 << 20
_RELEASE_PAUSE_MS: Final = 3_000

LARGE_ANSWERS: Final = frozenset(
    code
    for code, command in COMMANDS.items()
    if command.reply_body is not None and not command.is_small
)
"""Codes of requests whose answers may be large."""

PeerHook = Callable[[PeerProtocol], None]
ALL_ADDRESSES: Final = ("0.0.0.0", "::") if has_ipv6() else ("0.0.0.0",)  # noqa: S104
"""The addresses that a server listens on if its settings name none."""


def _codec(settings: ServerSettings) -> Codec:
    return Codec(
        COMMANDS,
        frame_bytes_max=settings.frame_bytes_max,
        header_bytes_max=REQUEST_HEADER_BYTES_MAX,
    )


class Server(Generic[ContextT]):
    """Serves one table of handlers on any number of ports."""

    def __init__(  # noqa: PLR0913  # what a server is made of, each by name
        self,
        handlers: Mapping[int, Handler[ContextT]],
        context: ContextT,
        settings: ServerSettings,
        *,
        clock_ms: Callable[[], int],
        log: Log = NO_LOG,
        before: Sequence[Before[ContextT]] = (),
        after: Sequence[After[ContextT]] = (),
        refused: Refused[ContextT] | None = None,
        on_open: PeerHook | None = None,
        on_close: PeerHook | None = None,
        before_write: Callable[[], None] | None = None,
        save: Callable[[], None] | None = None,
        release_memory: Callable[[], None] | None = None,
    ) -> None:
        """Prepare the server on the running loop; it does not listen yet.

        The functions are called as follows:

        - `refused` for each request that is refused with an error
        - `before_write` before each write of answers to a connection
        - `save` once, before the first write after `writes.gather()`; it must make the changes
          durable that the answers acknowledge
        - `release_memory` on a thread, some time after much unread output has been freed; it may
          return the memory to the system
        """
        self._handlers = handlers
        self._context = context
        self._settings = settings
        self._hooks = Hooks(tuple(before), tuple(after), refused)
        self._log = log
        self._release_memory = release_memory
        self._released_ms = 0
        self._gate = TlsGate(settings.tls)
        self._hub = Hub(
            _codec(settings),
            settings,
            clock_ms=clock_ms,
            log=log,
            on_open=on_open,
            on_close=on_close,
            tls=self._gate,
            before_write=before_write,
            save=save,
        )
        self._tasks = self._hub.tasks
        self._listeners: list[asyncio.Server] = []
        self._addresses: list[tuple[str, int]] = []
        self._certificates = CertificateWatch(self._tasks, log)
        self._checks = Walk(
            self._hub.loop, self._hub.peers, lambda peer: peer.check(self._hub.now_ms())
        )
        self._check_timer: asyncio.Handle | None = None
        self._lane: Lane | None = None
        self._direct: DirectIO | None = None

    def expiries_s(self) -> dict[str, float]:
        """Return when certificates in this server's TLS files expire, in seconds since 1970, by
        setting.
        """
        watched = self._gate.watched
        found = {} if watched is None else watched.expiries_s
        return {f"tls.server.{name}": expiry_s for name, expiry_s in found.items()}

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The host and port of every listening socket."""
        return list(self._addresses)

    @property
    def peers(self) -> Collection[PeerProtocol]:
        """The live connections."""
        return self._hub.peers

    async def listen(self, host: str, port: int, *, excluded: Collection[int] = ()) -> int:
        """Accept connections on a port and return it; port 0 picks a free one.

        Requests with an `excluded` code are answered with REQUEST_CODE_NOT_SUPPORTED. An empty
        host means all addresses, including IPv6 where the system supports it.
        """
        handlers = {code: h for code, h in self._handlers.items() if code not in excluded}
        dispatcher = Dispatcher(
            handlers, self._context, self._hooks, self._hub, large=LARGE_ANSWERS
        )
        dispatcher.is_limited = bool(excluded)

        def connected() -> ServerPeer:
            if self._lane is None:
                return ServerPeer(self._hub, dispatcher)
            return LanePeer(self._hub, dispatcher, self._lane, self._direct)

        for address in (host,) if host else ALL_ADDRESSES:
            port = await self._listen_at(address, port, connected)
        if self._check_timer is None:
            self._check_timer, _ = self._hub.later(self._check)
        return port

    async def _listen_at(self, host: str, port: int, connected: Callable[[], PeerProtocol]) -> int:
        """Listen on one address; return the port.

        libuv accepts only one connection per listener in each turn of the loop. A thousand
        reconnecting clients would need a thousand turns, which may be long, so several listeners
        share the socket.
        """
        loop, backlog = self._hub.loop, self._settings.backlog
        listener = await loop.create_server(connected, host, port, backlog=backlog)
        self._listeners.append(listener)
        first = listener.sockets[0]
        name: tuple[str, int] = first.getsockname()[:2]
        self._addresses.append(name)
        for _ in range(_ACCEPTED_PER_TURN - 1):
            twin = socket.fromfd(first.fileno(), first.family, first.type)
            self._listeners.append(await loop.create_server(connected, sock=twin, backlog=backlog))
        return name[1]

    def use_lane(self, lane: Lane | None, sockets: Sockets | None = None) -> None:
        """Offer the requests of all connections accepted from now on to a lane. The lane must leave
        requests that a hook in `before` might refuse to the handlers.

        With `sockets`, these connections are read and written directly if the system has epoll;
        those with TLS, only if native code serves their sessions.
        """
        assert lane is None or not self._hooks.after, "hooks see all answers"
        self._lane = lane
        if lane is not None and sockets is not None and HAS_EPOLL:
            self._direct = DirectIO(self._hub, lane, sockets)

    def use_tls(self, engine: TlsEngine) -> None:
        """Let native code serve the TLS connections that are accepted from now on.

        If it cannot use the certificate or the key, OpenSSL serves them; the log has the reason.
        """
        self._certificates.note_fault(self._gate.use(engine))

    def charge(self, spent_s: float) -> None:
        """Charge the connections for a commit that took long; see `Hub.charge`."""
        self._hub.charge(spent_s)

    @property
    def writes(self) -> Writes:
        """The pending answers of all connections.

        After `writes.gather()`, they wait for the end of this turn of the loop, and for one
        call of `save`.
        """
        return self._hub.writes  # used for each commit, so without methods in between

    def stats(self) -> TransportStats:
        """Return a copy of the counters, with the present values of the gauges."""
        stats, hub = msgspec.structs.replace(self._hub.stats), self._hub
        stats.unsent_bytes = hub.budget.unsent_bytes()
        stats.buffered_bytes = hub.memory.total_bytes()
        return stats

    @property
    def unread_bytes(self) -> int:
        """The number of bytes of answers that peers have not read yet."""
        return self._hub.budget.used_bytes

    def stop_listening(self) -> None:
        """Accept no more connections; existing connections are still served."""
        self._hub.places.connections_max = 0  # the loop may still report accepted connections
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._addresses.clear()

    def stop_reading(self) -> None:
        """Accept no more connections or requests; received requests are still answered."""
        self.stop_listening()
        for peer in self._hub.peers:
            peer.reading.pause(LEAVING)

    async def close(self, drain_ms: int = 3_000) -> None:
        """Stop accepting and reading, wait for handlers and their answers for up to `drain_ms`
        together, then close every connection.
        """
        end_s = self._hub.loop.time() + drain_ms / 1000
        self.stop_reading()
        if self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None
        await self._tasks.drain(drain_ms / 1000)
        self._hub.writes.flush()
        left_ms = int((end_s - self._hub.loop.time()) * 1000)
        await self._hub.close(max(left_ms, min(drain_ms, ANSWERS_MS)))
        if self._direct is not None:
            self._direct.close()

    def _check(self) -> None:
        self._check_timer, _ = self._hub.later(self._check)
        now_ms = self._hub.now_ms()
        self._checks.begin()
        self._hub.budget.check(now_ms)
        self._hub.frames.check(now_ms)
        self._release_freed(now_ms)
        self._hub.memory.check()
        self._certificates.look(self._gate.watched)

    def _release_freed(self, now_ms: int) -> None:
        budget, is_due = self._hub.budget, now_ms - self._released_ms >= _RELEASE_PAUSE_MS
        if self._release_memory is None or budget.freed_bytes < _FREED_BYTES_MIN or not is_due:
            return
        self._released_ms, budget.freed_bytes = now_ms, 0
        self._tasks.spawn(asyncio.to_thread(self._release_memory), name="release-memory")
