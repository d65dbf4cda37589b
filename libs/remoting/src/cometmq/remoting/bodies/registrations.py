# SPDX-License-Identifier: Apache-2.0
"""Registrations as a name server reads them, within ten times the memory of their frame.

A name server needs five fields of each topic, so it decodes only these. Objects cost more memory
than their text: the number of topics is therefore compared with the length of the text before
anything is decoded. All brokers write at least 125 bytes for a topic in JSON, and 22 in the
compressed form. The compressed form is inflated piece by piece, twice: first to check all of it,
then to use its topics one at a time.

A large registration is decoded in steps, so that a name server can serve others in between.

`decode_json` is not used for whole bodies, because its reader of Java's dialect builds a tree.
"""

import zlib
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from cometmq.remoting.bodies.dialect import decode_json, parse_dialect
from cometmq.remoting.bodies.large import decode_members
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.integers import Int32
from cometmq.remoting.types import Buffer

T = TypeVar("T")
_Steps: TypeAlias = Generator[None, None, T]

COST_MAX: Final = 10
"""Maximum memory that decoding may use, in multiples of the body."""
SMALL_BYTES: Final = 64 * 1024
"""Memory that decoding may use in addition, whatever the size of the body."""
JSON_TOPIC_BYTES_MIN: Final = 64
COMPRESSED_TOPIC_BYTES_MIN: Final = 20
FREE_TOPICS: Final = 256
"""Topics that a body of any length may contain."""
FILTER_SERVERS_MAX: Final = 1_024
INFLATED_MAX: Final = 64
"""Maximum ratio of the inflated and the compressed form; tables of real brokers reach about 20."""
INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
COMPRESSED_TOPICS_MAX: Final = 100_000
"""Routes keep about 300 bytes for each topic, however well its line is compressed."""
DIALECT_BYTES_MAX: Final = 64 * 1024
"""Maximum size of a body that is not strict JSON; its reader takes 0.2 s for 1 MiB."""
STEP_TOPICS: Final = 1_000
"""Number of topics that are decoded, checked or stored in one step of at most 3 ms."""
VERSION_BYTES_MAX: Final = 4_096
_SMALL_JSON_BYTES: Final = 128 * 1024
_SMALL_COMPRESSED_BYTES: Final = 1_024  # up to 6,500 topics
_NOT_STRICT: Final = (msgspec.DecodeError, RecursionError, ValueError)
_COUNT_BYTES: Final = 1024 * 1024
_PIECE_BYTES: Final = 64 * 1024
_STEP_PIECES: Final = 16
"""Pieces that are inflated in one step: up to 5 ms."""
_PART_BYTES_MAX: Final = 256 * 1024
_LINE_BYTES_MAX: Final = 4 * 1024
"""Maximum length of a topic's line; names have at most 255 characters."""
_LENGTH_BYTES: Final = 4


class RegisteredTopic(msgspec.Struct, gc=False, rename="camel"):
    """The fields of a topic that a name server needs for its routes."""

    topic_name: str = ""
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_sys_flag: Int32 = 0


class Registered(NamedTuple):
    """A decoded registration; `topics` may be iterated several times."""

    data_version: DataVersion
    topics: Iterable[RegisteredTopic]
    filter_servers: list[str]


class _Table(msgspec.Struct, gc=False, rename="camel"):
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: msgspec.Raw = msgspec.Raw(b"{}")


class _Body(msgspec.Struct, gc=False, rename="camel"):
    filter_server_list: msgspec.Raw = msgspec.Raw(b"[]")
    topic_config_serialize_wrapper: msgspec.Raw = msgspec.Raw(b"{}")


class _PlainTable(msgspec.Struct, gc=False, rename="camel"):
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: dict[str, RegisteredTopic] = {}


class _PlainBody(msgspec.Struct, gc=False, rename="camel"):
    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: _PlainTable = msgspec.field(default_factory=_PlainTable)


_BODIES: Final = msgspec.json.Decoder(_Body, strict=False)
_TABLES: Final = msgspec.json.Decoder(_Table, strict=False)
_TOPICS: Final = msgspec.json.Decoder(dict[str, RegisteredTopic], strict=False)
_STRINGS: Final = msgspec.json.Decoder(list[str], strict=False)


def is_large(data: Buffer, *, compressed: bool) -> bool:
    """Return whether decoding all of a registration at once could take longer than 10 ms."""
    return len(data) > (_SMALL_COMPRESSED_BYTES if compressed else _SMALL_JSON_BYTES)


def decode_registration(data: Buffer, *, compressed: bool) -> Registered:
    """Decode the body of REGISTER_BROKER; raise RemoteProtocolError if it is malformed, or if it
    would cost more memory than its length allows.
    """
    return _finish(registration_steps(data, compressed=compressed))


def registration_steps(data: Buffer, *, compressed: bool) -> _Steps[Registered]:
    """Decode the body of REGISTER_BROKER in steps; see `decode_registration`."""
    if compressed:
        return (yield from _compressed(data))
    try:
        body = _BODIES.decode(data)
        yield
        servers = _filter_servers(body.filter_server_list)
        version, topics = yield from _table(body.topic_config_serialize_wrapper)
        return Registered(version, topics, servers)
    except _NOT_STRICT:  # the dialect reader decides
        pass
    plain = _dialect(_PlainBody, data)
    table = plain.topic_config_serialize_wrapper
    topics = _named(table.topic_config_table)
    return Registered(table.data_version, topics, plain.filter_server_list)


def _finish(steps: _Steps[T]) -> T:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


def decode_version(data: Buffer) -> DataVersion:
    """Decode the body of QUERY_DATA_VERSION; raise RemoteProtocolError."""
    if len(data) > VERSION_BYTES_MAX:
        raise RemoteProtocolError(
            f"a data version of {len(data)} bytes is longer than {VERSION_BYTES_MAX}"
        )
    return decode_json(DataVersion, data)


# ---- JSON ------------------------------------------------------------------------------------


def _table(data: Buffer | msgspec.Raw) -> _Steps[tuple[DataVersion, list[RegisteredTopic]]]:
    table = _TABLES.decode(data)
    yield
    text = memoryview(table.topic_config_table)
    count = -1
    for start in range(0, len(text), _COUNT_BYTES):
        count += bytes(text[start : start + _COUNT_BYTES]).count(b"{")
        yield
    _check_count(count, len(text), JSON_TOPIC_BYTES_MIN)
    parts = yield from decode_members(text, _decode_topics)
    topics = parts[0]
    for part in parts[1:]:
        topics += part
    return table.data_version, topics


def _decode_topics(text: bytes) -> list[RegisteredTopic]:
    return _named(_TOPICS.decode(text))


def _named(table: dict[str, RegisteredTopic]) -> list[RegisteredTopic]:
    for key, topic in table.items():
        if not topic.topic_name:
            topic.topic_name = key
    return list(table.values())


def _filter_servers(raw: Buffer | msgspec.Raw) -> list[str]:
    text = bytes(raw)
    if text.count(b'"') > 2 * FILTER_SERVERS_MAX:
        raise RemoteProtocolError(
            f"a registration has more than {FILTER_SERVERS_MAX} filter servers"
        )
    return _STRINGS.decode(text)


def _check_count(count: int, length: int, bytes_min: int) -> None:
    if count > FREE_TOPICS + length // bytes_min:
        raise RemoteProtocolError(
            f"a registration of {length} bytes claims {count} topics, fewer than {bytes_min} bytes"
            " for each"
        )


def _dialect(type_: type[T], data: Buffer) -> T:
    """Decode a body in Java's dialect, unless its tree would cost too much."""
    if len(data) > DIALECT_BYTES_MAX:
        raise RemoteProtocolError(
            f"a registration of {len(data)} bytes is not strict JSON, or its fields have other"
            f" types; from {DIALECT_BYTES_MAX} bytes on, it must be strict"
        )
    text = bytes(data)
    containers = text.count(b"{") + text.count(b"[")
    strings = text.count(b'"') // 2 + text.count(b",") + text.count(b":")
    width = 2 if text.isascii() else 14  # four bytes for each character, in text and parts
    if width * len(text) + 250 * containers + 80 * strings > COST_MAX * len(text) + SMALL_BYTES:
        raise RemoteProtocolError(
            f"a registration of {len(text)} bytes is not strict JSON, and has too many parts for"
            " its length"
        )
    tree: Any = parse_dialect(text)
    try:
        return msgspec.convert(tree, type_, strict=False, str_keys=True)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a JSON text has an unexpected shape: {error}") from error


# ---- the compressed form ---------------------------------------------------------------------


class _CompressedTopics:
    """The topics of a compressed registration, inflated again by each iteration."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[RegisteredTopic]:
        parts = _Parts(self._data)
        parts.take()
        for _ in range(parts.count()):
            yield _topic_of_line(parts.take())


def _compressed(data: Buffer) -> _Steps[Registered]:
    body = bytes(data)
    parts = _Parts(body)
    version = decode_version(parts.take())
    count = parts.count()
    most = min(FREE_TOPICS + parts.inflated_bytes_max // COMPRESSED_TOPIC_BYTES_MIN,
               COMPRESSED_TOPICS_MAX)  # fmt: skip
    if count > most:
        raise RemoteProtocolError(
            f"a compressed registration of {len(body)} bytes claims {count} topics, at most {most}"
            " are accepted"
        )
    for number in range(count):
        _topic_of_line(parts.take(_LINE_BYTES_MAX))
        if number % STEP_TOPICS == STEP_TOPICS - 1 or parts.is_long:
            parts.pieces = 0
            yield
    try:
        servers = _filter_servers(parts.take())
    except msgspec.DecodeError as error:
        raise RemoteProtocolError(f"the filter servers are no list of texts: {error}") from error
    yield from parts.ending()
    return Registered(version, _CompressedTopics(body), servers)


class _Parts:
    """Reads length-prefixed parts from a zlib stream; holds one piece of it at a time."""

    def __init__(self, data: bytes) -> None:
        self.inflated_bytes_max = min(INFLATED_MAX * len(data) + SMALL_BYTES, INFLATED_BYTES_MAX)
        self._left = self.inflated_bytes_max
        self._stream = zlib.decompressobj()
        self._data = data
        self._fed = 0
        self._tail = b""
        self.pieces = 0
        """The number of pieces that have been inflated; the caller may reset it."""
        self._piece = b""
        self._position = 0

    def count(self) -> int:
        """Read a number of topics or bytes; raise RemoteProtocolError if it is negative."""
        value = int.from_bytes(self._read(_LENGTH_BYTES), "big", signed=True)
        if value < 0:
            raise RemoteProtocolError(f"a registration claims {value} parts")
        return value

    @property
    def is_long(self) -> bool:
        """Whether a step should end, because much has been inflated since `pieces` was reset."""
        return self.pieces >= _STEP_PIECES

    def take(self, bytes_max: int = _PART_BYTES_MAX) -> bytes:
        """Read the length of a part and return the part; raise RemoteProtocolError above
        `bytes_max`.
        """
        length = self.count()
        if length > bytes_max:
            raise RemoteProtocolError(f"a registration claims a part of {length} bytes")
        return self._read(length)

    def ending(self) -> _Steps[None]:
        """Raise RemoteProtocolError unless the stream ends within its limits."""
        while not self._stream.eof:
            self._position = len(self._piece)
            self._inflate()
            if self.is_long:
                self.pieces = 0
                yield

    def _read(self, count: int) -> bytes:
        while len(self._piece) - self._position < count:
            if self._stream.eof:
                raise RemoteProtocolError("a registration ends early")
            self._inflate()
        start, self._position = self._position, self._position + count
        return self._piece[start : self._position]

    def _inflate(self) -> None:
        self.pieces += 1
        if not self._tail:  # in pieces, because zlib copies what it has not consumed yet
            self._tail = self._data[self._fed : self._fed + _PIECE_BYTES]
            self._fed += len(self._tail)
        try:
            more = self._stream.decompress(self._tail, _PIECE_BYTES)
        except zlib.error as error:
            raise RemoteProtocolError(f"a registration is not a zlib stream: {error}") from error
        self._tail = self._stream.unconsumed_tail
        self._left -= len(more)
        is_over = not self._tail and self._fed == len(self._data)
        if self._left < 0 or (is_over and not (more or self._stream.eof)):
            raise RemoteProtocolError("a registration ends early or is too large")
        self._piece, self._position = self._piece[self._position :] + more, 0


def _topic_of_line(line: bytes) -> RegisteredTopic:
    words = str(line, "utf-8", "replace").split(" ")
    if len(words) != 5:
        raise RemoteProtocolError(f"a registered topic has {len(words)} fields, not 5")
    name, read_queues, write_queues, perm, _ = words
    try:
        return msgspec.convert(
            {
                "topicName": name,
                "readQueueNums": read_queues,
                "writeQueueNums": write_queues,
                "perm": perm,
            },
            RegisteredTopic,
            strict=False,
        )
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"a registered topic is broken: {error}") from error
