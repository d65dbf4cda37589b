# SPDX-License-Identifier: Apache-2.0
"""Frames of RocketMQ 4.9's replication stream: bytes in, values out (pure).

A slave sends reports: the end of its log, 8 bytes. The first one asks for the log from there on,
later ones acknowledge. The master sends transfers: physical offset, size, and that many bytes of
the log; a transfer of size 0 is a heartbeat that names the next offset. Nothing else exists: no
handshake, no identity, no checksum (docs/protocol/replication.md).
"""

import struct
from typing import Final, NamedTuple

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.types import Buffer

_REPORT: Final = struct.Struct(">q")
_HEADER: Final = struct.Struct(">qi")

REPORT_BYTES: Final = _REPORT.size
HEADER_BYTES: Final = _HEADER.size

FRAME_BYTES_MAX: Final = 4 << 20
"""RocketMQ's slave reads into a buffer of this size and stalls for ever on a larger frame."""

BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - HEADER_BYTES


class Transfer(NamedTuple):
    """Bytes of the log that begin at `offset`; without bytes it is a heartbeat."""

    offset: int
    data: bytes


def encode_report(offset: int) -> bytes:
    """Return a slave's request or acknowledgement."""
    return _REPORT.pack(offset)


def encode_header(offset: int, size: int) -> bytes:
    """Return what precedes `size` bytes of the log."""
    assert 0 <= size <= BODY_BYTES_MAX
    return _HEADER.pack(offset, size)


class ReportReader:
    """Splits what a master receives into reports."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the reports that are complete now; raise RemoteProtocolError for a negative one.

        An offset with the top bit set is never one of RocketMQ's streams.
        """
        data = self._rest + data
        end = len(data) - len(data) % REPORT_BYTES
        self._rest = data[end:]
        reports = [offset for (offset,) in _REPORT.iter_unpack(data[:end])]
        for offset in reports:
            if offset < 0:
                raise RemoteProtocolError(f"the report of a slave is negative: {offset}")
        return reports


class TransferReader:
    """Splits what a slave receives into transfers.

    Memory is bounded: a frame above `FRAME_BYTES_MAX` is refused by its header.
    """

    __slots__ = ("_count", "_parts", "_wanted")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._count = 0  # of bytes in `_parts`
        self._wanted = HEADER_BYTES  # no frame is complete with fewer bytes than these

    def feed(self, data: bytes) -> list[Transfer]:
        """Return the transfers that are complete now; raise RemoteProtocolError for a bad one."""
        self._parts.append(data)
        self._count += len(data)
        if self._count < self._wanted:
            return []
        joined = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        transfers, cursor = self._split(joined)
        rest = joined[cursor:]
        self._parts = [rest] if rest else []
        self._count = len(rest)
        return transfers

    def _split(self, data: Buffer) -> tuple[list[Transfer], int]:
        transfers: list[Transfer] = []
        cursor, end = 0, len(data)
        while end - cursor >= HEADER_BYTES:
            offset, size = _HEADER.unpack_from(data, cursor)
            if offset < 0 or not 0 <= size <= BODY_BYTES_MAX:
                raise RemoteProtocolError(
                    f"a transfer of {size} bytes at offset {offset}: at most {BODY_BYTES_MAX} bytes"
                    " at an offset above 0 are allowed"
                )
            stop = cursor + HEADER_BYTES + size
            if stop > end:
                self._wanted = HEADER_BYTES + size
                return transfers, cursor
            transfers.append(Transfer(offset, bytes(data[cursor + HEADER_BYTES : stop])))
            cursor = stop
        self._wanted = HEADER_BYTES
        return transfers, cursor
