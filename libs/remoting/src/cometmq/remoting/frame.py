# SPDX-License-Identifier: Apache-2.0
"""Frames: the length prefix around every command.

Layout
    ====== ============ =================================================
    offset size         content
    ====== ============ =================================================
    0      4            bytes after this field: 4 + header + body
    4      1            serialization of the header: 0 JSON, 1 ROCKETMQ
    5      3            header length
    8      header       header
    ..     the rest     body, may be empty
    ====== ============ =================================================

Invariants
    A reader never holds more than one frame's limit plus one received chunk, whatever the
    lengths claim: only bytes that arrived are kept, and no length is trusted before it is
    checked against the limit and against the frame around it.

Hot path
    ``FrameReader.feed`` runs once per received chunk, its loop once per frame; budget 0.25 us a
    frame: bench/micro/bench_frame.py.
"""

import struct
from typing import Final

from cometmq.remoting.errors import RemoteProtocolError

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""What RocketMQ's decoder accepts after the length word, unless configured otherwise."""

HEADER_BYTES_MAX: Final = 0xFF_FFFF
PREFIX_BYTES: Final = 8

_PREFIX: Final = struct.Struct(">II")
_unpack_prefix: Final = _PREFIX.unpack_from

Frame = tuple[int, bytes, bytes]
"""Serialization number, header, body."""


class FrameReader:
    """Cut frames out of a stream of bytes, however it is split."""

    __slots__ = ("_frame_bytes_max", "_need", "_tail")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        """Refuse frames with more than ``frame_bytes_max`` bytes after the length word."""
        assert frame_bytes_max > 4
        self._frame_bytes_max = frame_bytes_max
        self._tail = bytearray()
        self._need = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._tail)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that ``data`` completes; keep what is left for the next call."""
        if self._tail:
            self._tail += data
            if len(self._tail) < self._need:  # a long frame grows without being looked at
                return []
            data = bytes(self._tail)
            self._tail.clear()
        frames: list[Frame] = []
        position = self._split(data, frames)
        if position != len(data):
            self._keep(data, position)
        return frames

    def _split(self, data: bytes, frames: list[Frame]) -> int:
        """Append every whole frame of ``data``; return where the first incomplete one begins."""
        unpack_prefix, append = _unpack_prefix, frames.append
        position, last, limit = 0, len(data) - PREFIX_BYTES, self._frame_bytes_max
        while position <= last:
            length, word = unpack_prefix(data, position)
            header_length = word & HEADER_BYTES_MAX
            if length > limit or length - 4 < header_length:
                raise RemoteProtocolError(
                    f"frame of {length} bytes with a header of {header_length}, limit {limit}"
                )
            end = position + 4 + length
            if end > last + PREFIX_BYTES:
                break
            body = position + PREFIX_BYTES + header_length
            append((word >> 24, data[position + PREFIX_BYTES : body], data[body:end]))
            position = end
        return position

    def _keep(self, data: bytes, position: int) -> None:
        """Keep an incomplete frame, and note how many bytes it needs."""
        self._tail += memoryview(data)[position:]
        available = len(self._tail)
        if available < 4:
            self._need = 4
            return
        length = int.from_bytes(self._tail[:4], "big")
        if not 4 <= length <= self._frame_bytes_max:
            raise RemoteProtocolError(f"frame of {length} bytes, limit {self._frame_bytes_max}")
        self._need = PREFIX_BYTES if available < PREFIX_BYTES else 4 + length


def frame_prefix(serialization: int, header_length: int, body_length: int) -> bytes:
    """Return the eight bytes before a header; too long a header is a bug of the caller."""
    if header_length > HEADER_BYTES_MAX:
        raise ValueError(f"header of {header_length} bytes")
    return _PREFIX.pack(4 + header_length + body_length, serialization << 24 | header_length)
