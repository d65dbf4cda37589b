# SPDX-License-Identifier: Apache-2.0
"""Frames of the replication stream between members of a broker group: bytes in, values out (pure).

A follower opens the connection with 8 bytes and a `Hello`. The top bit of the 8 bytes is set, to
distinguish the stream from RocketMQ's on the same port. Then both sides send frames; each consists
of its kind, the length of its body, and the body (docs/protocol/group-replication.md). Numbers are
unsigned and big-endian. The length of each kind is bounded, and a longer frame is refused as soon
as its header arrives.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple, TypeVar

import msgspec

from cometmq.broker.copies.tables.feed import Changes
from cometmq.remoting.errors import UNREADABLE_JSON, RemoteProtocolError
from cometmq.remoting.types import Buffer
from cometmq.store.journal import encode_changes

MAGIC: Final = b"\x8bComet"
VERSION: Final = 1
"""A stream that begins with HELLO."""

PROVEN_VERSION: Final = 2
"""A stream that begins with the proof (`proving.py`) and then continues as version 1."""

_OPENING: Final = Struct(">6sH")
_HEADER: Final = Struct(">BI")
_RECORDS: Final = Struct(">QQ")
_CONFIRM: Final = Struct(">QQQQ")
_ACK: Final = Struct(">QQqQ")
_NUMBER: Final = Struct(">Q")
_RANGE: Final = Struct(">QI")

OPENING_BYTES: Final = _OPENING.size
HEADER_BYTES: Final = _HEADER.size
RECORDS_BYTES_MAX: Final = 4 << 20
"""Maximum bytes of the log in one frame; a larger record is sent in several frames."""

BLOCK_BYTES_MAX: Final = 64 << 10
"""Maximum bytes of the log that are asked for in one frame: a block with its own checksum."""

CHANGES_BYTES_MAX: Final = 16 << 20
"""Size of a journal file, which no entry exceeds."""


class Kind(IntEnum):
    HELLO = 1
    """Follower: `handshake.Hello` in JSON."""
    WELCOME = 2
    """Master: `handshake.Welcome` in JSON."""
    REFUSED = 3
    """Either side, before it closes the connection: `handshake.Refused` in JSON."""
    RECORDS = 4
    """Master: epoch, physical offset, bytes of the log that were all written in this epoch."""
    CONFIRM = 5
    """Master, when the confirm offset changes and as a heartbeat: `Confirm`."""
    CHANGES = 6
    """Master: number of the change in this epoch, and the changes by table, as in the journal."""
    TABLES = 7
    """Master: number of the last change that the complete tables contain, and pieces by table."""
    TABLES_END = 8
    """Master, after the last piece: the same number."""
    ACK = 9
    """Follower: `Report`."""
    CHALLENGE = 12
    """Connecting side, as its first frame: `proving.Challenge` in JSON."""
    PROOF = 13
    """Accepting side: `proving.Proof` in JSON."""
    ANSWER = 14
    """Connecting side: `proving.Answer` in JSON."""
    WANT_BLOCK = 15
    """Either side, if its block is damaged: `WantedBlock`, physical offset and number of bytes."""
    BLOCK = 16
    """Either side, as the answer to WANT_BLOCK: `Block`, physical offset and bytes of its log."""


BODY_BYTES_MAX: Final[Mapping[Kind, int]] = {
    Kind.HELLO: 1 << 20,
    Kind.WELCOME: 1 << 20,
    Kind.REFUSED: 1 << 16,
    Kind.RECORDS: _RECORDS.size + RECORDS_BYTES_MAX,
    Kind.CONFIRM: _CONFIRM.size,
    Kind.CHANGES: CHANGES_BYTES_MAX,
    Kind.TABLES: CHANGES_BYTES_MAX,
    Kind.TABLES_END: _NUMBER.size,
    Kind.ACK: _ACK.size,
    Kind.CHALLENGE: 1 << 10,
    Kind.PROOF: 1 << 10,
    Kind.ANSWER: 1 << 10,
    Kind.WANT_BLOCK: _RANGE.size,
    Kind.BLOCK: _NUMBER.size + BLOCK_BYTES_MAX,
}
UNPROVEN_BYTES_MAX: Final = 2 << 10
"""Maximum size of the body of any frame that is received before the proof."""


_KINDS: Final = {kind.value: kind for kind in Kind}  # `Kind(number)` takes seven times as long


class Frame(NamedTuple):
    kind: Kind
    body: memoryview


class Records(NamedTuple):
    epoch: int
    offset: int
    data: Buffer


class WantedBlock(NamedTuple):
    offset: int
    size: int

    def fault(self) -> str:
        return "empty or too large" * (not 0 < self.size <= BLOCK_BYTES_MAX)


class Block(NamedTuple):
    """Requested bytes of the sender's log; empty if the sender does not have them undamaged."""

    offset: int
    data: bytes


class Confirm(NamedTuple):
    epoch: int
    confirmed: int
    """Readers may see the log up to this offset, or up to the follower's end if that is lower."""
    end: int
    """The end of the master's log."""
    sent_ms: int
    """When this was sent, by the master's clock; reports repeat it."""

    def fault(self) -> str:
        is_ahead = self.confirmed > self.end
        return "the confirm offset is behind the end of the log" * is_ahead


class Report(NamedTuple):
    """A follower's progress; see `cometmq.ha.in_sync.Ack`."""

    epoch: int
    offset: int
    tables: int
    heard_ms: int
    """`sent_ms` of the last `Confirm` that the follower has received."""

    def fault(self) -> str:
        return "too few table changes" * (self.tables < -1)


NumbersT = TypeVar("NumbersT", Confirm, Report, WantedBlock)
_FIXED: Final[Mapping[type, tuple[Kind, Struct]]] = {
    Confirm: (Kind.CONFIRM, _CONFIRM),
    Report: (Kind.ACK, _ACK),
    WantedBlock: (Kind.WANT_BLOCK, _RANGE),
}


def encode_opening(version: int = VERSION) -> bytes:
    return _OPENING.pack(MAGIC, version)


def decode_opening(data: Buffer) -> int | None:
    """Return the version in the first 8 bytes of a connection; None if it is another stream's."""
    magic, version = _OPENING.unpack(data)
    return int(version) if magic == MAGIC else None


def encode_body(kind: Kind, body: bytes) -> bytes:
    """Encode a frame around a body; raise ValueError if it exceeds the bound of its kind."""
    if len(body) > BODY_BYTES_MAX[kind]:
        raise ValueError(
            f"a {kind.name} frame of {len(body)} bytes: {BODY_BYTES_MAX[kind]} at most"
        )
    return _HEADER.pack(kind, len(body)) + body


def encode_records_header(epoch: int, offset: int, size: int) -> bytes:
    """Encode the header that precedes `size` bytes of the log."""
    assert 0 < size <= RECORDS_BYTES_MAX
    header = _HEADER.pack(Kind.RECORDS, _RECORDS.size + size)
    return header + _RECORDS.pack(epoch, offset)


def encode(message: Confirm | Report | WantedBlock) -> bytes:
    """Encode a frame of numbers."""
    kind, numbers = _FIXED[type(message)]
    return _HEADER.pack(kind, numbers.size) + numbers.pack(*message)


def encode_json(kind: Kind, body: msgspec.Struct) -> bytes:
    return encode_body(kind, msgspec.json.encode(body))


def encode_block(offset: int, data: Buffer) -> bytes:
    header = _HEADER.pack(Kind.BLOCK, _NUMBER.size + len(data))
    return b"".join((header, _NUMBER.pack(offset), data))


def encode_tables(kind: Kind, number: int, tables: Sequence[tuple[str, bytes]]) -> bytes:
    return encode_body(kind, encode_changes(number, tables))


def encode_tables_end(number: int) -> bytes:
    return encode_body(Kind.TABLES_END, _NUMBER.pack(number))


def decode_records(body: memoryview) -> Records:
    if len(body) <= _RECORDS.size:
        raise RemoteProtocolError("a RECORDS frame without records")
    epoch, offset = _RECORDS.unpack_from(body)
    return Records(epoch, offset, body[_RECORDS.size :])


def decode(body: memoryview, message: type[NumbersT]) -> NumbersT:
    """Parse a frame of numbers; raise RemoteProtocolError if it is malformed."""
    kind, numbers = _FIXED[message]
    found = message._make(numbers.unpack(_whole(kind, body, numbers.size)))
    if fault := found.fault():
        raise RemoteProtocolError(f"a {kind.name} frame of {found}: {fault}")
    return found


def decode_block(body: memoryview) -> Block:
    if len(body) < _NUMBER.size:
        raise RemoteProtocolError(f"a BLOCK frame of {len(body)} bytes")
    (offset,) = _NUMBER.unpack_from(body)
    return Block(offset, bytes(body[_NUMBER.size :]))


def decode_tables(kind: Kind, body: memoryview) -> Changes:
    if len(body) < _NUMBER.size:
        raise RemoteProtocolError(f"a {kind.name} frame of {len(body)} bytes")
    (number,) = _NUMBER.unpack_from(body)
    try:
        # the values refer to these bytes, which the next frames must not replace
        data = bytes(body[_NUMBER.size :])
        tables = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except UNREADABLE_JSON as error:
        raise RemoteProtocolError(f"a {kind.name} frame cannot be read: {error}") from error
    return Changes(number, tables)


def decode_tables_end(body: memoryview) -> int:
    (number,) = _NUMBER.unpack(_whole(Kind.TABLES_END, body, _NUMBER.size))
    return int(number)


def _whole(kind: Kind, body: memoryview, size: int) -> memoryview:
    if len(body) != size:
        raise RemoteProtocolError(f"a {kind.name} frame of {len(body)} bytes instead of {size}")
    return body


def first_frame(data: Buffer, *allowed: Kind) -> tuple[Frame, int] | None:
    """Return the first frame of an unproven connection and its end in `data`; None if incomplete.

    Raise RemoteProtocolError if it is not of an allowed kind.
    """
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        return None
    number, size = _HEADER.unpack_from(view)
    kind = _KINDS.get(number)
    if kind not in allowed or kind is None:
        names = " or ".join(one.name for one in allowed)
        raise RemoteProtocolError(f"a frame of kind {number} instead of {names}")
    if size > min(BODY_BYTES_MAX[kind], UNPROVEN_BYTES_MAX):
        raise RemoteProtocolError(f"a {kind.name} frame of {size} bytes before the proof")
    end = HEADER_BYTES + size
    return (Frame(kind, view[HEADER_BYTES:end]), end) if len(view) >= end else None


class FrameReader:
    """Splits received bytes into frames, and buffers at most one incomplete frame."""

    __slots__ = ("_allowed", "_count", "_parts", "_wanted")

    def __init__(self, *allowed: Kind) -> None:
        self._allowed = frozenset(allowed)
        self._parts: list[Buffer] = []
        self._count = 0
        self._wanted = HEADER_BYTES

    @property
    def held_bytes(self) -> int:
        return self._count

    def feed(self, data: Buffer) -> list[Frame]:
        """Return the newly completed frames; raise RemoteProtocolError if one is not allowed."""
        self._parts.append(data)
        self._count += len(data)
        if self._count < self._wanted:
            return []
        joined = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        frames, cursor = self._split(memoryview(joined))
        rest = bytes(memoryview(joined)[cursor:])
        self._parts = [rest] if rest else []
        self._count = len(rest)
        return frames

    def _split(self, view: memoryview) -> tuple[list[Frame], int]:
        frames: list[Frame] = []
        cursor, end = 0, len(view)
        self._wanted = HEADER_BYTES
        while end - cursor >= HEADER_BYTES:
            number, size = _HEADER.unpack_from(view, cursor)
            kind = self._kind(number, size)
            stop = cursor + HEADER_BYTES + size
            if stop > end:
                self._wanted = HEADER_BYTES + size
                break
            frames.append(Frame(kind, view[cursor + HEADER_BYTES : stop]))
            cursor = stop
        return frames, cursor

    def _kind(self, number: int, size: int) -> Kind:
        kind = _KINDS.get(number)
        if kind is None:
            raise RemoteProtocolError(f"there is no frame of kind {number}")
        if kind not in self._allowed:
            raise RemoteProtocolError(f"a {kind.name} frame is not allowed here")
        if size > BODY_BYTES_MAX[kind]:
            raise RemoteProtocolError(
                f"a {kind.name} frame of {size} bytes: {BODY_BYTES_MAX[kind]} at most"
            )
        return kind
