# SPDX-License-Identifier: Apache-2.0
"""The connections of the control port, which gRPC serves but cannot limit.

gRPC accepts connections until the process has no descriptors left, and then the broker's own
clients cannot connect either. With a simple limit, strangers could exclude the electors. So this
module accepts the connections and passes their bytes to gRPC, which listens on a socket that only
this process can find.

A connection is a stranger's until one of its calls is admitted. Above CONNECTIONS_MAX, a stranger's
connection is closed, of the host with the most of them (`Places`). Strangers also take turns
(`Pace`); while one waits for a turn, its connection ends as soon as its peer ends it (`Ends`).
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from tempfile import mkdtemp
from typing import Any, Final

from cometmq.control.ends import Ends
from cometmq.control.pace import ENTRY_SHARE, SHARE, Pace
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.addresses import has_ipv6, peer_address
from cometmq.remoting.transport.flow.places import Places
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.runtime.limits import Limit, Scope

CONNECTIONS_MAX: Final = 256
STRANGER_BYTES_MAX: Final = 128 * 1024
"""Maximum number of bytes that a stranger's connection may send. With this limit, gRPC's parser
takes 30 MiB for a flood of header frames. A health check sends 300 bytes.
"""
_CHUNK_BYTES: Final = 16 * 1024
_STRANGER_CHUNK_BYTES: Final = 1024
"""Maximum number of a stranger's bytes that one turn passes on. They may contain 50 calls, but the
server's limit of streams bounds how many of these are served.
"""

ENTRY_S: Final = 0.000_1
CONNECTION_S: Final = 0.001
CHUNK_S: Final = 0.000_3
CALL_S: Final = 0.000_4
"""Processor time of each step of a stranger's connection, including gRPC's threads: accepting it,
connecting to gRPC with a TLS handshake, one turn, and one call.
"""
_ACCEPTS_MAX: Final = 4
_ACCEPT_PAUSE_S: Final = 0.005
"""The pause after _ACCEPTS_MAX connections. It allows 800 connections a second, because one that is
closed at once takes up to 0.1 ms. A flood of more fills the backlog, and new connections then wait
for TCP to try again.
"""
_RETRY_S: Final = 1.0
"""The pause if the system has no descriptors left."""
_BACKLOG: Final = 256

CONTROL_LIMITS: Final[tuple[Limit, ...]] = (
    Limit(
        "control_connections", "Connections", Scope.TOTAL,
        "One without an admitted call is closed, of the address with the most.",
        fixed=CONNECTIONS_MAX,
    ),
    Limit(
        "control_stranger_bytes", "Bytes sent before a call is admitted", Scope.CONNECTION,
        "The connection is closed.", fixed=STRANGER_BYTES_MAX,
    ),
    Limit(
        "control_stranger_percent",
        "Percent of a processor that connections without an admitted call take", Scope.TOTAL,
        "They wait for their turn, by address; new ones of an address that has taken much are"
        " closed.",
        fixed=round(100 * (2 * SHARE + ENTRY_SHARE)),
    ),
)  # fmt: skip
"""The limits of every control port, for the reference page."""

_ALL: Final = ("0.0.0.0", "::")  # noqa: S104  # the settings ask for it
_PREFIX: Final = "unix-abstract:"


class Link:
    """One connection of a caller, and the connection that carries its bytes to gRPC."""

    def __init__(self, sock: socket.socket, peer_name: Any) -> None:
        self.address, self.host = peer_address(peer_name)
        self.name = f"cometmq-control-{token_hex(8)}"
        """The name by which gRPC identifies this connection."""
        self.is_served = False
        """Whether one of its calls was admitted."""
        self.number = 0
        self.outside = sock
        self.task: asyncio.Task[None] | None = None
        self._socks = [sock]

    async def open(self, inside: str) -> socket.socket:
        """Connect to gRPC."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._socks.append(sock)
        sock.bind(f"\0{self.name}")
        await asyncio.get_running_loop().sock_connect(sock, inside)
        return sock

    def close(self) -> None:
        """Close both ends; unsent bytes are lost."""
        for sock in self._socks:
            sock.close()


class Front:
    """Accepts the connections of one control port, and carries their bytes to gRPC and back."""

    def __init__(self, tasks: TaskSet, connections_max: int = CONNECTIONS_MAX) -> None:
        """Requires a running event loop."""
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._connections_max = connections_max
        self._inside: int | None = None
        """A descriptor of the socket on which gRPC listens."""
        self._links: dict[str, Link] = {}
        self._places: Places[Link] = Places()
        self._pace = Pace(self._loop.time, self._loop.call_later)
        self._ends = Ends(self._loop)
        self._listeners: set[socket.socket] = set()

    def __len__(self) -> int:
        return len(self._links)

    @contextlib.contextmanager
    def inside(self) -> Iterator[str]:
        """Yield an address, a file in a private folder, on which gRPC must start to listen in this
        context; the file is removed afterwards.

        Nobody else can then connect to gRPC and so bypass the limits of this module. To an abstract
        socket name, every user of the host could connect.
        """
        try:
            folder = Path(mkdtemp(prefix="cometmq-control-"))
        except OSError as error:
            raise SettingsError(f"the control API needs a folder: set TMPDIR ({error})") from error
        path = folder / "grpc"
        try:
            yield f"unix:{path}"
            self._inside = os.open(path, os.O_PATH)
        except (OSError, RuntimeError) as error:  # gRPC's own error does not name the reason
            raise SettingsError(
                f"the control API cannot listen at {path}: set TMPDIR to a folder with a shorter"
                " name, on a file system with sockets"
            ) from error
        finally:
            path.unlink(missing_ok=True)
            folder.rmdir()

    async def listen(self, host: str, port: int) -> int:
        """Accept connections and return the port; an empty host means all addresses."""
        self._ends.begin()
        hosts = (host,) if host else _ALL if has_ipv6() else _ALL[:1]
        for one in hosts:
            found = await self._loop.getaddrinfo(one, port, type=socket.SOCK_STREAM)
            for family, *_, address in dict.fromkeys(found):
                place = (address[0], port, *address[2:])
                listener = socket.create_server(place, family=family, backlog=_BACKLOG)
                listener.setblocking(False)
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited
                port = listener.getsockname()[1]
                self._listeners.add(listener)
                self._resume(listener)
        return port

    def address_of(self, peer: str) -> str:
        """Return the address of a caller, from the name that gRPC knows."""
        link = self._links.get(peer.removeprefix(_PREFIX))
        return peer if link is None else link.address

    def note_call(self) -> None:
        """Count a call; it counts as a stranger's until `note_served` is called for it."""
        self._pace.note_calls(1, CALL_S)

    def note_served(self, peer: str) -> None:
        """Note that a call was admitted: its connection no longer waits, and is not closed for
        others.
        """
        self._pace.note_calls(-1, CALL_S)
        link = self._links.get(peer.removeprefix(_PREFIX))
        if link is not None:
            link.is_served = True
            self._pace.note_known(link)

    def stop_listening(self) -> None:
        """Accept no more connections; the open ones are still served."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()

    def close(self) -> None:
        """Close all connections."""
        self.stop_listening()
        for link in tuple(self._links.values()):
            self._end(link)
        self._ends.close()
        if self._inside is not None:
            os.close(self._inside)
            self._inside = None

    def _resume(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        self._loop.remove_reader(listener)
        pause_s = _ACCEPT_PAUSE_S
        try:
            for _ in range(_ACCEPTS_MAX):
                self._enter(*listener.accept())
        except (BlockingIOError, ConnectionAbortedError):
            pass  # no connection waits, or the next one has ended already
        except OSError:
            pause_s = _RETRY_S
        self._loop.call_later(pause_s, self._resume, listener)

    def _enter(self, sock: socket.socket, peer_name: Any) -> None:
        """Serve a new connection, or close it if its host takes too much time or there are too
        many.
        """
        link = Link(sock, peer_name)
        if not self._pace.may_enter(link, ENTRY_S) or not self._has_place(link):
            link.close()
            return
        sock.setblocking(False)
        self._ends.watch(sock, lambda: self._leave(link))
        self._links[link.name] = link
        self._places.enter(link)
        link.task = self._tasks.spawn(self._carry(link), name="control-connection")
        link.task.add_done_callback(lambda _: self._forget(link))  # even if it never started

    def _has_place(self, link: Link) -> bool:
        if len(self._links) >= self._connections_max:
            gone = self._places.yielder(link)
            if gone is None:
                return False
            self._end(gone)
        return True

    def _leave(self, link: Link) -> None:
        """End a stranger's connection whose peer has ended it; that of an admitted caller ends
        once its bytes were passed on.
        """
        if not link.is_served:
            self._end(link)

    def _end(self, link: Link) -> None:
        self._links.pop(link.name, None)
        if link.task is not None:
            link.task.cancel()

    def _forget(self, link: Link) -> None:
        self._links.pop(link.name, None)
        self._places.leave(link)
        self._ends.forget(link.outside)
        link.close()

    async def _carry(self, link: Link) -> None:
        """Connect to gRPC once there is something to read, and pass bytes in both directions."""
        with contextlib.suppress(OSError):
            if not (first := await self._read(link)):
                return
            await self._pace.turn(link, CONNECTION_S)
            inside = await link.open(f"/proc/self/fd/{self._inside}")
            async with asyncio.TaskGroup() as group:
                asking = group.create_task(self._pass_in(link, inside, first))
                await self._pass_out(link, inside)
                asking.cancel()

    async def _read(self, link: Link) -> bytes:
        size = _CHUNK_BYTES if link.is_served else _STRANGER_CHUNK_BYTES
        return await self._loop.sock_recv(link.outside, size)

    async def _pass_in(self, link: Link, inside: socket.socket, data: bytes) -> None:
        """Pass on what the peer sends, until it ends or a stranger has sent too much."""
        size = 0
        with contextlib.suppress(OSError):
            while data:
                size += len(data)
                if not link.is_served:
                    if size > STRANGER_BYTES_MAX:
                        break
                    await self._pace.turn(link, CHUNK_S)
                await self._loop.sock_sendall(inside, data)
                data = await self._read(link)
        with contextlib.suppress(OSError):
            inside.shutdown(socket.SHUT_RDWR)

    async def _pass_out(self, link: Link, inside: socket.socket) -> None:
        """Pass on what gRPC answers, until it closes the connection."""
        with contextlib.suppress(OSError):
            while data := await self._loop.sock_recv(inside, _CHUNK_BYTES):
                await self._loop.sock_sendall(link.outside, data)
