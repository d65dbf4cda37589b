# SPDX-License-Identifier: Apache-2.0
"""Connections to haListenPort that have not yet shown to be those of a member or a
slave (openings).

Any program may open them, so their number, duration and received bytes are bounded. To keep
strangers from crowding out members and slaves, one is closed when there are too many: the oldest of
the host that has the most, hosts of known slaves last. A member proves itself within a few round
trips, so its opening is not the oldest for long.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.rocketmq.frames import REPORT_BYTES
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.transport.addresses import peer_address

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.serving import LogServer

OPENING_BYTES: Final = 8
assert OPENING_BYTES == REPORT_BYTES == frames.OPENING_BYTES

COUNT_MAX: Final = 256
"""Maximum number of openings. The loop may accept 100 connections before it reads from any."""

PLAIN_COUNT_MAX: Final = 32
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
        if len(self._openings) > COUNT_MAX:
            self._evict(list(self._openings))
        return opening

    def note_member(self, transport: asyncio.Transport, *, is_plain: bool) -> None:
        opening = self._openings.get(transport)
        if opening is None:
            return
        opening.is_member, opening.is_plain = True, is_plain
        plain = [it for it, one in self._openings.items() if one.is_plain]
        if len(plain) > PLAIN_COUNT_MAX:
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
        if not self._port.admit(self.transport, self.host, self.own_host):
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) < OPENING_BYTES:
            return
        if self.received[0] & 0x80:
            self._open_member()
        else:
            self._port.opened_by_slave(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.forget(self, self.transport)

    def pause(self) -> None:
        self.transport.pause_reading()

    def resume(self) -> None:
        if not self.transport.is_closing() and not self.transport.is_reading():
            self.transport.resume_reading()

    def _open_member(self) -> None:
        version = frames.decode_opening(self.received[:OPENING_BYTES])
        rest = self.received[OPENING_BYTES:]
        if version is None or not self._port.opened_by_member(self, self.transport, version, rest):
            text = f"a connection begins with {self.received[:OPENING_BYTES].hex()}"
            self._port.note_refused(self.address, UnfitLog(Unfit.PROTOCOL, text))
            self.transport.abort()


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
