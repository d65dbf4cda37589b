# SPDX-License-Identifier: Apache-2.0
"""The first bytes of a connection to haListenPort: from a member of a broker group, or a slave."""

import asyncio
from typing import TYPE_CHECKING, Final, cast

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.rocketmq.frames import REPORT_BYTES
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.transport.addresses import peer_address

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.serving import LogServer

OPENING_BYTES: Final = 8
assert OPENING_BYTES == REPORT_BYTES == frames.OPENING_BYTES


class FirstBytes(asyncio.Protocol):
    """A connection whose first bytes have not arrived yet."""

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
        """Read nothing until `resume`."""
        self.transport.pause_reading()

    def resume(self) -> None:
        """Read on, if `pause` was called and the connection is still open."""
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
