# SPDX-License-Identifier: Apache-2.0
"""Simulates the network: messages with delays, connections, and partitions.

A message between two hosts arrives after a random delay, twice, or never; messages overtake each
other. A connection delivers bytes in order. While a direction is cut off, its messages are lost and
the bytes of connections wait, because TCP retransmits them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.sim.kernel import ProcessLoop, Scheduler

from cometmq.broker.copies.streams.frames import decode_opening
from cometmq.control.controlled import MemberUnreachable

if TYPE_CHECKING:
    from tests.sim.host import Host

OPENING_BYTES: Final = 8


class Network:
    """All connections between hosts, keyed by the hosts' names."""

    def __init__(self, scheduler: Scheduler, hosts: "dict[str, Host]") -> None:
        self._scheduler = scheduler
        self._random = scheduler.random
        self._hosts = hosts
        self.blocked: set[tuple[str, str]] = set()
        self.delay_s = 0.001
        self.late_chance = 0.0
        """Share of messages that are late, by up to `late_s`."""
        self.late_s = 2.0
        self.twice_chance = 0.0
        """Share of messages that arrive a second time, later."""
        self.transports: set[SimTransport] = set()

    def delay(self) -> float:
        delay = self.delay_s * (0.1 + self._random.random())
        if self.late_chance and self._random.random() < self.late_chance:
            delay += self._random.random() * self.late_s
        return delay

    def is_open(self, source: str, target: str) -> bool:
        return (source, target) not in self.blocked

    def send(self, source: str, target: str, arrive: Callable[..., object], *args: Any) -> None:
        """Deliver a message by calling `arrive`, unless it is lost."""
        if (source, target) in self.blocked:
            return
        self._scheduler.after(self.delay(), self._arrive, source, target, arrive, args)
        if self.twice_chance and self._random.random() < self.twice_chance:
            late = self.delay() + self._random.random() * self.late_s
            self._scheduler.after(late, self._arrive, source, target, arrive, args)

    def _arrive(
        self, source: str, target: str, arrive: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if (source, target) not in self.blocked:
            arrive(*args)

    def heal(self) -> None:
        """End all partitions; connections continue to work."""
        self.blocked.clear()
        self.retry()

    def retry(self) -> None:
        """Send the bytes that waited for a direction to open."""
        for transport in sorted(self.transports, key=lambda one: one.number):
            transport.retry()

    # Calls

    async def call(
        self,
        loop: ProcessLoop,
        source: str,
        target: "Host",
        work: Callable[[Any], Awaitable[Any]],
        timeout_s: float,
    ) -> Any:
        """Run `work` in the process of another host; raise its error, or MemberUnreachable."""
        future = loop.create_future()

        def answer(result: Any, error: Exception | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        def reply(result: Any, error: Exception | None) -> None:
            self.send(target.name, source, partial(loop.call_soon, answer), result, error)

        def arrive() -> None:
            process = target.process
            if process is not None:
                process.serve(work, reply)
            elif target.is_up:
                reply(None, MemberUnreachable(f"{target.name} refuses the connection"))

        self.send(source, target.name, arrive)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            raise MemberUnreachable(f"{target.name} does not answer") from None

    # Connections

    async def connect(self, loop: ProcessLoop, source: str, factory: Any, target: str) -> Any:
        """Open a connection to a host's replication port."""
        host = self._hosts[target]
        future = loop.create_future()

        def refused() -> None:
            if not future.done():
                future.set_exception(ConnectionRefusedError(111, f"{target} refuses"))

        def arrive() -> None:
            process = host.process
            if process is None:
                if host.is_up:
                    self.send(target, source, partial(loop.call_soon, refused))
                return
            there = SimTransport(self, process.loop, target, source)
            here = SimTransport(self, loop, source, target)
            here.peer, there.peer = there, here
            there.set_protocol(Acceptor(process.copies.parts.sender, there, source))
            self.send(target, source, partial(loop.call_soon, opened), here)

        def opened(here: SimTransport) -> None:
            if future.done():
                here.abort()
                return
            protocol = factory()
            here.set_protocol(protocol)
            protocol.connection_made(here)
            future.set_result((here, protocol))

        self.send(source, target, arrive)
        return await future

    def cut(self, host: str) -> None:
        """Reset all connections of a host."""
        for transport in sorted(self.transports, key=lambda one: one.number):
            if host in (transport.here, transport.there):
                transport.reset()

    def end_process(self, loop: ProcessLoop, *, is_host: bool) -> None:
        """End a process's connections: the kernel closes them, unless the host is down too."""
        for transport in sorted(self.transports, key=lambda one: one.number):
            if transport.loop is loop:
                if is_host:
                    transport.vanish()
                else:
                    transport.close()


class SimTransport(asyncio.Transport):
    """One side of a connection."""

    count = 0

    def __init__(self, network: Network, loop: ProcessLoop, here: str, there: str) -> None:
        super().__init__()
        SimTransport.count += 1
        self.number = SimTransport.count
        self.loop = loop
        self.here = here
        self.there = there
        self.peer: SimTransport | None = None
        self._network = network
        self._protocol: Any = None
        self._out: list[bytes] = []
        self._in: list[bytes] = []
        self._is_on_its_way = False
        self._is_closing = False
        self._is_lost = False
        self._is_gone = False
        self._is_reading = True
        self._has_eof = False
        network.transports.add(self)

    # The interface for protocols

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the buffer has no limits."""

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._out))

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        if not self._is_closing and not self._is_gone:
            self._out.append(bytes(data))
            self._schedule()

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._in:
            self.loop.call_soon(self._pass_on)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._schedule()
            self.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        self._out.clear()
        if not self._is_closing:
            self.close()

    # The interface for the network

    def reset(self) -> None:
        """Reset the connection, and drop all bytes in flight."""
        self._out.clear()
        self._is_closing = True
        self.loop.call_soon(self._lose, ConnectionResetError(104, "reset"))
        self._forget()

    def vanish(self) -> None:
        """Drop this side as a crashed host does: the peer gets no notice."""
        self._is_gone = True
        self._out.clear()
        self._forget()

    def retry(self) -> None:
        if self._out or self._is_closing:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_on_its_way and not self._is_gone:
            self._is_on_its_way = True
            network = self._network
            network._scheduler.after(network.delay(), self._arrive)

    def _arrive(self) -> None:
        self._is_on_its_way = False
        peer = self.peer
        if peer is None or self._is_gone or not self._network.is_open(self.here, self.there):
            return
        if peer._is_gone:
            # A rebooted kernel has no state of the connection.
            if self._network._hosts[self.there].is_up:
                self.reset()
            return
        data, self._out = b"".join(self._out), []
        if data and not peer._is_closing:
            peer.loop.call_soon(peer._receive, data)
        if self._is_closing:
            self._forget()
            peer.loop.call_soon(peer._end)

    def _receive(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._in.append(data)
        if self._is_reading:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._in and self._is_reading and not self._is_closing:
            data, self._in = b"".join(self._in), []
            self._protocol.data_received(data)
        if self._has_eof and not self._in:
            self._end()

    def _end(self) -> None:
        self._has_eof = True
        if self._in and not self._is_closing:
            return
        self._is_closing = True
        self._forget()
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            if self._protocol is not None:
                self._protocol.connection_lost(error)

    def _forget(self) -> None:
        self._network.transports.discard(self)


class Acceptor(asyncio.Protocol):
    """Reads the first bytes of a connection to a broker's replication port, like `LogServer`."""

    def __init__(self, sender: Any, transport: SimTransport, address: str) -> None:
        self._sender = sender
        self._transport = transport
        self._address = address
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) >= OPENING_BYTES:
            version = decode_opening(self._data[:OPENING_BYTES])
            assert version is not None
            rest = self._data[OPENING_BYTES:]
            self._sender.accept(self._transport, self._address, version, rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a connection that ended before its first bytes."""
