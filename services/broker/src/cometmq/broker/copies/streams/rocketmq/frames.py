# SPDX-License-Identifier: Apache-2.0
"""Frames of RocketMQ 4.9's replication stream: bytes in, values out (pure).

A slave sends reports of 8 bytes: the offset at which its log ends. The first report requests the
log from that offset; later reports are acknowledgements. The master sends transfers: a physical
offset, a size, and that many bytes of the log. A transfer of size 0 is a heartbeat that carries the
next offset. The stream contains nothing else: no handshake, no identity, no checksum
(docs/protocol/replication.md).
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
"""RocketMQ's slave reads into a buffer of this size and stalls forever on a larger frame."""

BODY_BYTES_MAX: Final = FRAME_BYTES_MAX - HEADER_BYTES


class Transfer(NamedTuple):
    """Log bytes that begin at `offset`; a transfer without bytes is a heartbeat."""

    offset: int
    data: bytes


def encode_report(offset: int) -> bytes:
    return _REPORT.pack(offset)


def encode_header(offset: int, size: int) -> bytes:
    assert 0 <= size <= BODY_BYTES_MAX
    return _HEADER.pack(offset, size)


class ReportReader:
    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the newly completed reports; raise RemoteProtocolError if one is negative."""
        data = self._rest + data
        end = len(data) - len(data) % REPORT_BYTES
        self._rest = data[end:]
        reports = [offset for (offset,) in _REPORT.iter_unpack(data[:end])]
        if reports and (least := min(reports)) < 0:
            raise RemoteProtocolError(f"the report of a slave is negative: {least}")
        return reports


class TransferReader:
    """Splits the bytes that a slave receives into transfers of bounded size."""

    __slots__ = ("_count", "_parts", "_wanted")

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._count = 0  # of bytes in `_parts`
        self._wanted = HEADER_BYTES  # no frame is complete with fewer bytes than these

    def feed(self, data: bytes) -> list[Transfer]:
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
