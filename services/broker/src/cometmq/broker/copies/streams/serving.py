# SPDX-License-Identifier: Apache-2.0
"""Accepts connections on haListenPort, and sends the log to RocketMQ's slaves; connections of
members of a broker group go to `sending.py`.

Each connection reads the log in slices of bounded size (`served.py`), so that a slow slave never
delays senders. A commit wakes all slaves once per turn, and all acknowledgements of a turn complete
the pending sends together.

Rules that RocketMQ's master lacks: the first report must lie at a record boundary within the log,
an acknowledgement must not exceed the bytes sent, and it counts only as long as its connection is
open. An empty slave gets the whole log, not only its last file. Only hosts that haSlaveAddresses
allows may be slaves.

The first 8 bytes determine which stream a connection uses. RocketMQ's stream begins with an offset,
whose top bit is never set; a broker group's stream sets the top bit. Until they have arrived, any
program may have opened it (an opening), so their number, duration and received bytes are bounded.
If there are too many, one is closed: the oldest of the host that has the most, hosts of known
slaves last. A member proves itself within a few round trips, so its opening is not the oldest.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from cometmq.broker.copies.state import Slaves
from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.rocketmq.frames import REPORT_BYTES
from cometmq.broker.copies.streams.rocketmq.slave_addresses import WAIT_MS, SlaveAddresses
from cometmq.broker.copies.streams.rocketmq.slave_stream import SlaveStream
from cometmq.broker.copies.streams.sending import LogSender
from cometmq.broker.copies.streams.served import SendTurns
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.turn import OncePerTurn
from cometmq.remoting.log import Log
from cometmq.remoting.transport.addresses import peer_address
from cometmq.remoting.transport.server import ALL_ADDRESSES
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.clock import Clock
from cometmq.runtime.worker import Worker

TICK_INTERVAL_MS: Final = 100
IDLE_INTERVAL_MS: Final = 500
"""Interval of `tick` while the broker has no slaves and follows no master."""
_REMEMBERED_REFUSALS_MAX: Final = 100
"""Maximum number of different refusals that are logged within `_REFUSALS_MS`."""

_REFUSALS_MS: Final = 60_000

OPENING_BYTES: Final = 8
assert OPENING_BYTES == REPORT_BYTES == frames.OPENING_BYTES

OPENINGS_MAX: Final = 256
"""Maximum number of openings. The loop may accept 100 connections before it reads from any."""

PLAIN_OPENINGS_MAX: Final = 32
"""Maximum number of openings that may send HELLO without a proof; a HELLO takes up to 1 MiB."""

MEMBER_MS: Final = 5_000
"""How long a member may take to prove itself and to send HELLO."""


@dataclass(slots=True, eq=False)
class Opening:
    host: str
    opened_ms: int
    number: int
    is_known: bool
    is_member: bool = False
    is_plain: bool = False


class Openings:
    """The open connections of unknown programs, by transport."""

    def __init__(self) -> None:
        self._openings: dict[asyncio.Transport, Opening] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._openings)

    def add(
        self, transport: asyncio.Transport, host: str, now_ms: int, *, is_known: bool
    ) -> Opening:
        """Note a new connection; if there are too many, close one, as the module says."""
        self._number += 1
        opening = Opening(host, now_ms, self._number, is_known)
        self._openings[transport] = opening
        if len(self._openings) > OPENINGS_MAX:
            self._evict(list(self._openings))
        return opening

    def note_member(self, transport: asyncio.Transport, *, is_plain: bool) -> None:
        opening = self._openings.get(transport)
        if opening is None:
            return
        opening.is_member, opening.is_plain = True, is_plain
        plain = [it for it, one in self._openings.items() if one.is_plain]
        if len(plain) > PLAIN_OPENINGS_MAX:
            self._evict(plain)

    def remove(self, transport: asyncio.Transport) -> None:
        """Forget a connection that has ended, or shown that it belongs to a member or a slave."""
        self._openings.pop(transport, None)

    def expire(self, now_ms: int, *, silent_ms: int) -> list[str]:
        """Close connections that take too long; return the hosts that showed no member's opening.

        `silent_ms` is their bound: a Java slave may be silent for 5 s before its first report.
        """
        silent: list[str] = []
        for transport, opening in tuple(self._openings.items()):
            limit_ms = MEMBER_MS if opening.is_member else silent_ms
            if now_ms - opening.opened_ms > limit_ms:
                if not opening.is_member:
                    silent.append(opening.host)
                self._close(transport)
        return silent

    def close(self) -> None:
        for transport in tuple(self._openings):
            self._close(transport)

    def _evict(self, among: list[asyncio.Transport]) -> None:
        hosts = Counter(self._openings[transport].host for transport in among)

        def rank(transport: asyncio.Transport) -> tuple[bool, int, int]:
            opening = self._openings[transport]
            return opening.is_known, -hosts[opening.host], opening.number

        self._close(min(among, key=rank))

    def _close(self, transport: asyncio.Transport) -> None:
        del self._openings[transport]
        transport.abort()


class FirstBytes(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, port: "LogServer") -> None:
        self._port = port
        self.received = b""
        self.address = self.host = self.own_host = ""
        self.opened_ms = port.now_ms()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's class is unrelated
        self.address = peer_address(transport.get_extra_info("peername"))[0]
        self.host = _host(self.address)
        self.own_host = _host(peer_address(transport.get_extra_info("sockname"))[0])
        self._port.admit(self)

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) >= OPENING_BYTES:
            self._port.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.forget(self)


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


class LogServer:
    """The replication port, and one stream for each slave."""

    def __init__(  # the collaborators, each by name
        self,
        driver: StoreDriver,
        slaves: Slaves,
        *,
        worker: Worker,
        settings: Callable[[], BrokerSettings],
        addresses: SlaveAddresses,
        clock: Clock,
        log: Log,
    ) -> None:
        """`worker` reads slices that are not in memory; `settings` may change at run time."""
        self.addresses = addresses
        self.openings = Openings()
        self.store = driver.store
        self.slaves = slaves
        self.worker = worker
        self.send_turns = SendTurns()
        self.settings = settings
        self.clock = clock
        self.acked = OncePerTurn(self._answer_senders)
        self._driver = driver
        self._log = log
        self._members: LogSender | None = None
        self._listeners: list[asyncio.Server] = []
        self._waiting: dict[FirstBytes, None] = {}  # until the name servers have been asked
        self._streams: set[SlaveStream] = set()
        self._refusals: set[tuple[str, str, str]] = set()
        self._refusals_ms = 0  # when the first of them was logged
        addresses.changed = self._addresses_changed
        driver.turn.grew.connect(self._wake)

    async def listen(self, host: str, port: int) -> int:
        loop = asyncio.get_running_loop()
        for address in (host,) if host else ALL_ADDRESSES:
            listener = await loop.create_server(partial(FirstBytes, self), address, port)
            self._listeners.append(listener)
            port = listener.sockets[0].getsockname()[1]
        return port

    def serve_members(self, members: LogSender) -> None:
        """Pass members' connections, ticks and wake-ups to `members` from now on."""
        self._members = members

    def close(self) -> None:
        """Close the port and all connections; only RocketMQ's slaves get their pending output."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        self._waiting.clear()
        self.openings.close()
        for stream in tuple(self._streams):
            stream.finish()
        if self._members is not None:
            self._members.stop()

    def close_slaves(self) -> None:
        """Close RocketMQ's slaves, because this log may not continue theirs any more."""
        for stream in tuple(self._streams):
            stream.finish()

    def _wake(self) -> None:
        for stream in tuple(self._streams):
            stream.wake()
        if self._members is not None:
            self._members.wake()

    @property
    def connection_count(self) -> int:
        """The number of connections, including those that have not sent anything yet."""
        member_count = 0 if self._members is None else self._members.connection_count
        return len(self.openings) + len(self._streams) + member_count

    def tick(self) -> None:
        now_ms = self.now_ms()
        silent_ms = self.settings().ha_housekeeping_interval
        for host in self.openings.expire(now_ms, silent_ms=silent_ms):
            self._log.warning("slave.silent", slave=host, silent_ms=silent_ms)
        for stream in tuple(self._streams):
            if now_ms - stream.heard_ms > silent_ms:
                self._log.warning("slave.silent", slave=stream.address, silent_ms=silent_ms)
                stream.close()
            else:
                stream.beat(now_ms)
        if self._waiting:
            self.addresses.ask()
        if self._members is not None:
            self._members.tick()

    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    # Called by connections whose first bytes have not arrived yet

    def admit(self, first: FirstBytes) -> None:
        if self._listeners:
            is_known = self.addresses.is_known(first.host, first.own_host)
            self.openings.add(first.transport, first.host, self.now_ms(), is_known=is_known)
        else:
            first.transport.abort()

    def opened(self, first: FirstBytes) -> None:
        """Serve a connection whose first bytes have arrived as that of a slave or a member."""
        opening, rest = first.received[:OPENING_BYTES], first.received[OPENING_BYTES:]
        if not opening[0] & 0x80:
            self._opened_by_slave(first)
            return
        version, members = frames.decode_opening(opening), self._members
        if version is None or members is None:
            text = f"a connection begins with {opening.hex()}"
            self._refuse(first, UnfitLog(Unfit.PROTOCOL, text))
            return
        is_plain = version == frames.VERSION and members.proving.admits_unproven
        self.openings.note_member(first.transport, is_plain=is_plain)
        members.accept(first.transport, first.address, version, rest)

    def _opened_by_slave(self, first: FirstBytes) -> None:
        """Serve a slave, if its host is allowed; otherwise ask the name servers first."""
        members = self._members
        is_strict = members is not None and not members.proving.admits_unproven
        if is_strict and not self.addresses.is_explicit:
            text = (
                "RocketMQ's stream cannot prove the key of this group: name its slaves in"
                " haSlaveAddresses, or leave them out"
            )
            self._refuse(first, UnfitLog(Unfit.UNPROVEN, text))
        elif self.addresses.is_allowed(first.host, first.own_host):
            self._serve(first)
        elif self.addresses.may_ask:
            first.transport.pause_reading()
            self._waiting[first] = None
            self.addresses.ask()
        else:
            self._refuse(first, self._not_allowed(first))

    def forget(self, first: FirstBytes) -> None:
        self.openings.remove(first.transport)
        self._waiting.pop(first, None)

    def _addresses_changed(self) -> None:
        """Serve or refuse the slaves that wait for the name servers."""
        now_ms = self.now_ms()
        for first in tuple(self._waiting):
            if self.addresses.is_allowed(first.host, first.own_host):
                del self._waiting[first]
                self._serve(first)
            elif now_ms - first.opened_ms >= WAIT_MS:
                del self._waiting[first]
                self._refuse(first, self._not_allowed(first))

    def _not_allowed(self, first: FirstBytes) -> UnfitLog:
        text = (
            f"{first.host} is no registered slave of this broker and not in haSlaveAddresses"
            if self.addresses.may_ask
            else f"{first.host} is not in haSlaveAddresses"
        )
        return UnfitLog(Unfit.ADDRESS, text)

    def _serve(self, first: FirstBytes) -> None:
        transport = first.transport
        if not self.establish(transport, first.address):
            transport.abort()
            return
        stream = SlaveStream(self, transport, first.address)
        self._streams.add(stream)
        self.slaves.connected.add(stream.slave)
        transport.set_protocol(stream)
        stream.data_received(first.received)
        if not transport.is_closing() and not transport.is_reading():
            transport.resume_reading()

    def _refuse(self, first: FirstBytes, error: UnfitLog) -> None:
        self.note_refused(first.address, error)
        first.transport.abort()

    def establish(self, transport: asyncio.Transport, address: str) -> bool:
        """Count an opening from now on as a slave or member; return False if there are too many."""
        self.openings.remove(transport)
        member_count = 0 if self._members is None else self._members.connection_count
        count_max = self.settings().ha_connections_max
        if len(self._streams) + member_count < count_max:
            return True
        self._log.warning(
            "slave.turned_away", slave=address, connections_max=count_max,
            action="raise haConnectionsMax, or find out what connects to haListenPort",
        )  # fmt: skip
        return False

    def started(self, stream: SlaveStream) -> None:
        slave = stream.slave
        slave.is_following = True
        self._log.info("slave.connected", slave=slave.address, offset=slave.acked_offset)
        self.forget_refusals(slave.address)
        self.acked()

    def ended(self, stream: SlaveStream) -> None:
        self._streams.discard(stream)
        self.slaves.connected.discard(stream.slave)
        if stream.slave.is_following:
            stream.slave.is_following = False
            slave = stream.slave
            self._log.info(
                "slave.disconnected", slave=slave.address, acked_offset=slave.acked_offset
            )

    def note_refused(self, address: str, error: UnfitLog) -> None:
        """Count a refusal; log it once per host, reason and text, because slaves retry forever.

        Those of a switchover are no warnings: some slaves connect too late, or too early.
        """
        self.slaves.refused_counts[error.reason] += 1
        entry = address.rpartition(":")[0], error.reason.value, str(error)
        if entry in self._refusals:
            return
        now_ms = self.now_ms()
        if len(self._refusals) >= _REMEMBERED_REFUSALS_MAX:
            if now_ms - self._refusals_ms < _REFUSALS_MS:
                return
            self._refusals.clear()
        if not self._refusals:
            self._refusals_ms = now_ms
        self._refusals.add(entry)
        facts = {"slave": address, "reason": error.reason.value, "error": str(error)}
        if error.is_passing:
            self._log.info("slave.deferred", **facts)
        else:
            self._log.error("slave.refused", **facts, action=error.action)

    def forget_refusals(self, address: str) -> None:
        host = address.rpartition(":")[0]
        self._refusals = {entry for entry in self._refusals if entry[0] != host}

    def note_unreadable(self, address: str, error: Exception) -> None:
        self._log.error("slave.log_unreadable", slave=address, error=describe(error))

    def _answer_senders(self) -> None:
        if self._members is None:  # otherwise the members of the group decide
            self._driver.sends.note_replicated(self.slaves.acked_offset())
