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

Invariant: a reader never buffers more than the frame size limit plus one received chunk, whatever
lengths a peer claims. Only received bytes are kept, and every length is checked against the limit
and against the enclosing frame before it is used.

Hot path: `FrameReader.feed` runs once per received chunk, its loop once per frame; budget 0.25 us
per frame (bench/micro/bench_frame.py).
"""

import struct
from typing import Final

from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.http_clients import LENGTHS, HttpSpoken
from cometmq.remoting.types import Buffer

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""RocketMQ's default limit for the bytes after the length word."""

HEADER_BYTES_MAX: Final = 0xFF_FFFF
REQUEST_HEADER_BYTES_MAX: Final = 1 << 20
"""The longest header that a server reads. Headers are decoded in one step and before the account is
known: one of 8 MB would hold the loop for 90 ms. Answers may be longer: that to a batch has the ids
of all its messages.
"""
PREFIX_BYTES: Final = 8

_PREFIX: Final = struct.Struct(">II")
_unpack_prefix: Final = _PREFIX.unpack_from

_BLOCK_BYTES: Final = 256 * 1024

_HTTP: Final = int.from_bytes(b"HTTP", "big")
"""The length that the first four bytes of an HTTP answer would be."""

Frame = tuple[int, bytes, bytes]
"""Serialization number, header, body."""


class FrameReader:
    """Extracts frames from a byte stream, however it is split into chunks."""

    __slots__ = (
        "_blocks",
        "_frame_bytes_max",
        "_header_bytes_max",
        "_need",
        "_tail",
        "begun_count",
        "buffered_bytes",
    )

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, header_bytes_max: int = HEADER_BYTES_MAX
    ) -> None:
        """Refuse headers above `header_bytes_max` before all of it is received; a header that
        arrives in a single chunk is not refused.
        """
        assert frame_bytes_max > 4
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._blocks: list[bytearray] = []  # full, in order; the tail comes after them
        self._tail = bytearray()
        self._need = 0
        self.buffered_bytes = 0
        """The number of bytes buffered for an incomplete frame."""
        self.begun_count = 0
        """A counter of incomplete frames; it grows when another one begins."""

    def join(self, data: bytes) -> bytes:
        """Return the buffered bytes and `data` as one buffer, and clear the reader's buffer.

        If the frame is still incomplete, keep all bytes and return none.
        """
        if not self.buffered_bytes:
            return data
        self._append(data)
        if self.buffered_bytes < self._need:  # do not reparse a long frame for every chunk
            return b""
        return self.take_tail()

    def take_tail(self) -> bytes:
        """Return the buffered bytes, and clear the reader's buffer."""
        if self._blocks:
            self._blocks.append(self._tail)
            data, self._tail = b"".join(self._blocks), bytearray()
            self._blocks.clear()
        else:
            data = bytes(self._tail)
            self._tail.clear()
        self.buffered_bytes = 0
        return data

    def clear(self) -> None:
        """Forget the buffered bytes."""
        self._blocks.clear()
        self._tail = bytearray()
        self.buffered_bytes = 0

    def _append(self, data: Buffer) -> None:
        """Buffer bytes in blocks: one growing buffer for a long frame would be moved repeatedly,
        and the gaps would take several times its size in memory.
        """
        if len(self._tail) >= _BLOCK_BYTES:
            self._blocks.append(self._tail)
            self._tail = bytearray()
        self._tail += data
        self.buffered_bytes += len(data)

    @property
    def missing_bytes(self) -> int:
        """The number of bytes of the incomplete frame that have not been received; 0 without such a
        frame.
        """
        return max(0, self._need - self.buffered_bytes) if self.buffered_bytes else 0

    def split(self, data: bytes) -> list[Frame]:
        """Return the frames of `data`, which contains only whole frames.

        Bytes buffered for an incomplete frame are unaffected.
        """
        frames: list[Frame] = []
        self._split(data, frames)
        return frames

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes; keep the rest for the next call."""
        if self.buffered_bytes:
            data = self.join(data)
        frames: list[Frame] = []
        position = self._split(data, frames)
        if position != len(data):
            self._keep(data, position)
        return frames

    def _split(self, data: bytes, frames: list[Frame]) -> int:
        """Append every whole frame in `data`; return the position of the first incomplete one."""
        unpack_prefix, append = _unpack_prefix, frames.append
        position, last, limit = 0, len(data) - PREFIX_BYTES, self._frame_bytes_max
        while position <= last:
            length, word = unpack_prefix(data, position)
            header_length = word & HEADER_BYTES_MAX
            # Both lengths are read as unsigned, so a hostile peer's negative length exceeds the
            # limit.
            if length > limit or length - 4 < header_length:
                size = f"{length} bytes with a header of {header_length}"
                text = f"frame of {size}, limit {limit}"
                raise _refusal(length, text, data[position:])
            end = position + 4 + length
            if end > last + PREFIX_BYTES:
                break
            body = position + PREFIX_BYTES + header_length
            append((word >> 24, data[position + PREFIX_BYTES : body], data[body:end]))
            position = end
        return position

    def _keep(self, data: bytes, position: int) -> None:
        self.begun_count += 1
        self._append(memoryview(data)[position:])
        available = self.buffered_bytes
        if available < 4:
            self._need = 4
            return
        length = int.from_bytes(self._tail[:4], "big")
        if not 4 <= length <= self._frame_bytes_max:
            text = f"frame of {length} bytes, limit {self._frame_bytes_max}"
            raise _refusal(length, text, self.take_tail())
        if available < PREFIX_BYTES:
            self._need = PREFIX_BYTES
            return
        header_length = int.from_bytes(self._tail[5:PREFIX_BYTES], "big")
        if header_length > self._header_bytes_max:
            raise RemoteProtocolError(
                f"header of {header_length} bytes, limit {self._header_bytes_max}"
            )
        self._need = 4 + length


def _refusal(length: int, text: str, data: bytes) -> RemoteProtocolError:
    if length in LENGTHS:
        return HttpSpoken(data)
    if length == _HTTP:
        text = "it answers in HTTP, so it is neither a name server nor a broker"
    return RemoteProtocolError(text)


def end_of_frames(data: bytes, count_max: int) -> int:
    """Return where the first `count_max` frames end, or the size of `data` if it has fewer."""
    position, last = 0, len(data) - PREFIX_BYTES
    for _ in range(count_max):
        if position > last:
            return len(data)
        position += 4 + int.from_bytes(data[position : position + 4], "big")
    return min(position, len(data))


def frame_prefix(serialization: int, header_length: int, body_length: int) -> bytes:
    """Return the eight bytes before a header; raise ValueError if the header is too long."""
    if header_length > HEADER_BYTES_MAX:
        raise ValueError(f"header of {header_length} bytes")
    return _PREFIX.pack(4 + header_length + body_length, serialization << 24 | header_length)
