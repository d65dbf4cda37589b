# SPDX-License-Identifier: Apache-2.0
"""Renders message bodies as text: JSON, MessagePack, Protobuf, text or hex, also if compressed.

A body may be hostile: no call raises for its content, and both work and output are bounded.
"""

import codecs
import json
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from importlib import import_module
from typing import Any, Final, TypeVar

import msgspec

from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.insight.words import sized
from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.remoting.visible import visible

SET_BYTES_MAX: Final = 8 << 20
_ADVICE: Final = "write it with protoc --include_imports --descriptor_set_out=FILE"


class Schema:
    """One message type of a descriptor set."""

    def __init__(self, descriptor_set: bytes, message_type: str) -> None:
        """Raise InvalidArgument if the set is broken or has no such type, and ClientError if the
        library is missing.
        """
        if len(descriptor_set) > SET_BYTES_MAX:
            raise InvalidArgument(f"the descriptor set has more than {SET_BYTES_MAX >> 20} MiB")
        self.message_type = message_type
        self._json_format = _library("json_format")
        self._class = self._found(descriptor_set, message_type)

    def render(self, body: bytes) -> str:
        """Return a body as JSON without spaces; raise ValueError if it is not of this type."""
        message = self._class()
        try:
            message.ParseFromString(body)
            value = self._json_format.MessageToDict(message, preserving_proto_field_name=True)
            return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        except Exception as error:  # each back end of the library has its own
            raise ValueError(f"not a {self.message_type}: {error}") from error

    @staticmethod
    def _found(descriptor_set: bytes, message_type: str) -> Any:
        pb2, pool_of = _library("descriptor_pb2"), _library("descriptor_pool")
        factory = _library("message_factory")
        pool = pool_of.DescriptorPool()
        try:
            files = pb2.FileDescriptorSet.FromString(descriptor_set)
            for file in files.file:
                pool.Add(file)
            names = sorted(
                f"{file.package}.{it.name}".lstrip(".")
                for file in files.file
                for it in file.message_type
            )
        except Exception as error:  # each back end of the library has its own
            raise InvalidArgument(
                f"the descriptor set cannot be read: {error}; {_ADVICE}"
            ) from error
        try:
            return factory.GetMessageClass(pool.FindMessageTypeByName(message_type))
        except KeyError as error:
            known = ", ".join(names[:20]) or "none"
            raise InvalidArgument(
                f"the descriptor set has no message type {message_type}; it has: {known}"
            ) from error
        except Exception as error:  # an import that the set lacks
            raise InvalidArgument(f"{message_type} cannot be used: {error}; {_ADVICE}") from error


def _library(module: str) -> Any:
    try:
        return import_module(f"google.protobuf.{module}")
    except ImportError as error:
        raise ClientError(
            "Protobuf bodies need the package protobuf: pip install 'cometmq-insight[protobuf]'"
        ) from error


T = TypeVar("T")

CHARS_MAX: Final = 256 * 1024
"""The most characters of a rendered body; the hex dump of 4 MB would have 20 MB."""
PLAIN_BYTES_MAX: Final = 16 << 20
"""The most bytes that a compressed body is expanded to."""
PREVIEW_BYTES_MIN: Final = 64 << 10
BYTES_PER_CHAR: Final = 64
"""For each wanted character, this many bytes of a compressed body are expanded, but at least
PREVIEW_BYTES_MIN. A list shows one line of each of hundreds of bodies, and 16 MiB take 0.2 s.
"""
OBJECTS_BYTES_MAX: Final = 1 << 20
"""A longer MessagePack or Protobuf body is not parsed: a byte of a list becomes an object of
up to some hundred bytes.
"""
LAYERS_MAX: Final = 2
"""The most nested compressions that are undone."""
HEX_ROW: Final = 16
_GZIP: Final = b"\x1f\x8b"
_ZLIB: Final = frozenset({b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"})
_WINDOW_ANY: Final = 32 + zlib.MAX_WBITS  # zlib or gzip, by the header
_JSON_STARTS: Final = b'{["-0123456789tfn'
_WORD: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|\[\]|\{\}|[\[\]{},:]|[^\[\]{},:"]+')
"""The words of valid JSON without spaces; the text may end within a string."""
_OPENING: Final = frozenset("[{")
_CLOSING: Final = frozenset("]}")


class Format(StrEnum):
    """A form of bodies."""

    AUTO = "auto"
    JSON = "json"
    MSGPACK = "msgpack"
    PROTOBUF = "protobuf"
    TEXT = "text"
    HEX = "hex"


class Decoded(msgspec.Struct, frozen=True):
    """A body as readable text, and how it was decoded."""

    format: Format
    """The form that was used; HEX if the body does not have the wanted form."""
    text: str
    byte_count: int
    """The size of the body as it was stored."""
    layers: tuple[str, ...] = ()
    """The compressions that were undone, outermost first."""
    is_cut: bool = False
    """Whether the text shows only the beginning."""
    note: str = ""
    """Why the body does not have the wanted form, or was not read to its end."""


class _Unfit(Exception):
    """The body does not have this form."""


def decode(
    body: bytes,
    wanted: Format = Format.AUTO,
    *,
    schema: Schema | None = None,
    chars_max: int = CHARS_MAX,
) -> Decoded:
    """Return a body as text of at most `chars_max` characters; `schema` describes Protobuf."""
    bytes_max = min(PLAIN_BYTES_MAX, max(PREVIEW_BYTES_MIN, BYTES_PER_CHAR * chars_max))
    plain, layers, note = _plain(body, bytes_max) if wanted is not Format.HEX else (body, (), "")
    is_part = bool(layers) and len(plain) > bytes_max
    kinds = _candidates(wanted, schema)
    if is_part:  # only text can be read in part, up to the last whole character
        plain = plain[: codecs.utf_8_decode(plain[:bytes_max], "ignore")[1]]
        kinds = tuple(it for it in kinds if it is Format.TEXT)
    found, text, reason = Format.HEX, None, ""
    for kind in kinds:
        try:
            text = _render(kind, plain, schema, chars_max)
        except _Unfit as error:
            reason = reason or f"not {kind}: {error}"
            continue
        found = kind
        break
    if text is None:
        text = _hex(plain, chars_max)
    if wanted is Format.AUTO:
        reason = ""
    is_cut = is_part or len(text) > chars_max
    is_cut |= found is Format.HEX and _hex_rows(chars_max) < len(plain)
    notes = "; ".join(it for it in (note, reason) if it)
    return Decoded(found, text[:chars_max], len(body), layers, is_cut, notes)


def _candidates(wanted: Format, schema: Schema | None) -> tuple[Format, ...]:
    if wanted is Format.AUTO:
        first = () if schema is None else (Format.PROTOBUF,)
        return (*first, Format.JSON, Format.TEXT, Format.MSGPACK)
    return () if wanted is Format.HEX else (wanted,)


def _plain(body: bytes, bytes_max: int) -> tuple[bytes, tuple[str, ...], str]:
    """Decompress gzip and zlib; return the body, the formats that were removed, and why the rest
    was not decompressed.

    At most one byte more than `bytes_max` is read of each layer.
    """
    layers: list[str] = []
    for _ in range(LAYERS_MAX):
        name = "gzip" if body[:2] == _GZIP else "zlib" if body[:2] in _ZLIB else ""
        if not name:
            break
        reader = zlib.decompressobj(_WINDOW_ANY)
        try:
            plain = reader.decompress(body, bytes_max + 1)
        except zlib.error:
            break  # it only looks compressed
        layers.append(name)
        body = plain
        if len(plain) > bytes_max:
            return body, tuple(layers), f"it has more than {sized(bytes_max)} when decompressed"
        if not reader.eof:
            return body, tuple(layers), f"the {name} data ends early"
    return body, tuple(layers), ""


def _render(kind: Format, body: bytes, schema: Schema | None, chars_max: int) -> str:
    if kind is Format.PROTOBUF and schema is None:
        raise _Unfit("no message type of a descriptor set was named")
    return _RENDERERS[kind](body, schema, chars_max)


def _json(body: bytes, _schema: Schema | None, chars_max: int) -> str:
    text = body.strip()
    if text[:1] not in _STARTS:
        raise _Unfit("it does not begin like JSON")
    try:
        compact = msgspec.json.format(text, indent=-1).decode()
    except UNREADABLE_JSON as error:
        raise _Unfit(str(error)) from error
    return visible(_indented(compact, chars_max))


def _indented(compact: str, chars_max: int) -> str:
    """Return compact JSON with indented lines; more than `chars_max` characters mean that the rest
    was cut off.

    Indenting the whole text first could take gigabytes: in a deeply nested text, every line of the
    innermost list begins with many spaces.
    """
    parts: list[str] = []
    depth = size = 0
    for word in _WORD.findall(compact[: chars_max + 1]):
        part = word
        if word in _OPENING:
            depth += 1
            part = word + _line(depth)
        elif word in _CLOSING:
            depth -= 1
            part = _line(depth) + word
        elif word == ",":
            part = word + _line(depth)
        elif word == ":":
            part = ": "
        parts.append(part)
        size += len(part)
        if size > chars_max:
            break
    return "".join(parts)


def _line(depth: int) -> str:
    return "\n" + "  " * depth


def _text(body: bytes, _schema: Schema | None, chars_max: int) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise _Unfit(f"byte {error.start} is not UTF-8") from error
    head = text[:4_096]
    controls = sum(not it.isprintable() and it not in "\n\r\t" for it in head)
    if controls * 4 > len(head):
        raise _Unfit("much of it is control characters")
    return visible(text[: chars_max + 1].replace("\r\n", "\n"))


def _msgpack(body: bytes, _schema: Schema | None, chars_max: int) -> str:
    if not (b"\x80" <= body[:1] <= b"\x9f" or b"\xdc" <= body[:1] <= b"\xdf"):
        raise _Unfit("it does not begin with a map or an array")
    if len(body) > OBJECTS_BYTES_MAX:
        raise _Unfit(f"it has more than {OBJECTS_BYTES_MAX >> 20} MiB")
    try:
        value = msgspec.msgpack.decode(body)
        part = _jsonable(value, _Room(chars_max + 1))
        compact = json.dumps(part, ensure_ascii=False, separators=(",", ":"))
        return visible(_indented(compact, chars_max))
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _Unfit(str(error)) from error


class _Room:
    """The number of characters that are still wanted. A body may have 50,000 values, or one of 4 MB
    full of control characters, and rendering all of it took 0.3 s.
    """

    def __init__(self, chars: int) -> None:
        self.left = chars

    def take(self, count: int) -> int:
        """Use up to this many characters; return how many are left for them."""
        room = max(0, self.left)
        self.left -= max(1, count)
        return room


def _jsonable(value: Any, room: _Room) -> Any:
    """Return a MessagePack value, as much of it as is wanted, in types that JSON has."""
    if isinstance(value, dict):
        return {_key(key, room): _jsonable(it, room) for key, it in _wanted(value.items(), room)}
    if isinstance(value, list | tuple):
        return [_jsonable(it, room) for it in _wanted(value, room)]
    if isinstance(value, str):
        return value[: room.take(len(value))]
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": b64encode(value[: room.take(len(value))]).decode()}
    if isinstance(value, msgspec.msgpack.Ext):
        data = memoryview(value.data)
        part = data[: room.take(len(data))]
        return {"ext": value.code, "base64": b64encode(part).decode()}
    room.take(1)
    return value if isinstance(value, int | float | bool | None) else str(value)


def _wanted(items: Iterable[T], room: _Room) -> Iterator[T]:
    """Yield the items of a container while characters are wanted."""
    room.take(1)
    for item in items:
        if room.left <= 0:
            return
        yield item


def _key(key: Any, room: _Room) -> str:
    found = _jsonable(key, room)
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _protobuf(body: bytes, schema: Schema | None, chars_max: int) -> str:
    assert schema is not None
    if len(body) > OBJECTS_BYTES_MAX:
        raise _Unfit(f"it has more than {OBJECTS_BYTES_MAX >> 20} MiB")
    try:
        return visible(_indented(schema.render(body), chars_max))
    except ValueError as error:
        raise _Unfit(str(error)) from error


def _hex_rows(chars_max: int) -> int:
    """Return how many bytes of a body fit in a hex dump of `chars_max` characters."""
    return max(1, chars_max // 80) * HEX_ROW


def _hex(body: bytes, chars_max: int) -> str:
    rows = []
    for at in range(0, min(len(body), _hex_rows(chars_max)), HEX_ROW):
        row = body[at : at + HEX_ROW]
        letters = "".join(chr(it) if 32 <= it < 127 else "." for it in row)
        rows.append(f"{at:08x}  {row.hex(' '):<47}  {letters}")
    return "\n".join(rows)


_STARTS: Final = frozenset(bytes([it]) for it in _JSON_STARTS)
_RENDERERS: Final[dict[Format, Callable[[bytes, Schema | None, int], str]]] = {
    Format.JSON: _json,
    Format.TEXT: _text,
    Format.MSGPACK: _msgpack,
    Format.PROTOBUF: _protobuf,
}
