# SPDX-License-Identifier: Apache-2.0
"""Decode both header encodings, for any command, with fields as strings.

This codec is complete and lenient. `typed_decode.py` is the fast path for known commands and
falls back to it.

Compatibility: the decoder accepts the same headers as Java. Language and version may be missing,
and names may be unknown. Ext values may be JSON numbers or booleans; nulls are dropped. In a binary
header an empty string means null, and the last value of a repeated field (as in signed requests)
wins. Broken UTF-8 and halves of surrogate pairs are replaced, and JSON may be of Java's dialect
(`bodies/dialect.py`).

Hot path: `parse_ext` runs for every binary request; budget 0.2 us per field
(bench/micro/bench_header.py).
"""

import re
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.remoting.bodies.dialect import decode_bounded
from cometmq.remoting.errors import UNREADABLE_JSON, RemoteProtocolError
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.types import Serialization, language_of

BINARY_CODE_MAX: Final = 0x7FFF
BINARY_FIXED_BYTES: Final = 21

LARGE_BYTES: Final = 64 * 1024
PART_BYTES_MIN: Final = 24
"""Fields and nested values cost up to 200 bytes each. In a header above LARGE_BYTES they must have
this average length, so that it costs at most ten times its size in memory."""

_FIXED: Final = struct.Struct(">hBhiiii")
"""Code, language, version, opaque, flag, remark length; ext length if there is no remark."""
_LENGTH: Final = struct.Struct(">i")
_unpack_fixed: Final = _FIXED.unpack_from
_unpack_length: Final = _LENGTH.unpack_from
_NOTHING: Final = bytes(6)  # the shortest field: name and value are empty
_unpack_entry: Final = struct.Struct(">HcI").unpack_from  # for names of one byte


class _JsonHeader(msgspec.Struct, gc=False):
    code: int
    opaque: int = 0
    flag: int = 0
    version: int = 0
    language: str | int | None = None
    remark: str | None = None
    ext_fields: dict[str, Any] | None = msgspec.field(name="extFields", default=None)


_decode_json: Final = msgspec.json.Decoder(_JsonHeader, strict=False).decode


def decode_header(serialization: int, head: bytes, body: bytes = b"") -> RawCommand:
    """Return the command in a frame; raise RemoteProtocolError if it is malformed."""
    if serialization == Serialization.JSON:
        return _decode_json_header(head, body)
    if serialization == Serialization.ROCKETMQ:
        return _decode_binary_header(head, body)
    raise RemoteProtocolError(f"unknown serialization {serialization}")


def _decode_json_header(head: bytes, body: bytes) -> RawCommand:
    if len(head) > LARGE_BYTES:
        parts = head.count(b",") + head.count(b"[") + head.count(b"{")
        if parts > LARGE_BYTES // PART_BYTES_MIN + len(head) // PART_BYTES_MIN:
            raise RemoteProtocolError(
                f"a JSON header of {len(head)} bytes has {parts} fields: too many for its length"
            )
    try:
        header = _decode_json(head)
    except UNREADABLE_JSON:
        try:
            header = decode_bounded(_JsonHeader, head)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"unreadable JSON header: {error}") from error
    ext = header.ext_fields or {}
    return RawCommand(
        code=_int32(header.code),
        flag=_int32(header.flag),
        opaque=_int32(header.opaque),
        language=language_of(header.language),
        version=header.version,
        remark=header.remark,
        ext={
            name: value if type(value) is str else ext_text(value)
            for name, value in ext.items()
            if value is not None
        },
        body=body,
        serialization=Serialization.JSON,
    )


_NUMBERS: Final = re.compile(rb'(?<!\\)"(code|flag|opaque)"\s*+:\s*+"?(-?[0-9]{1,10})(?![0-9.eE])')


def envelope_of(serialization: int, head: bytes) -> RawCommand | None:
    """Return the code, opaque and flag of a header that is otherwise unreadable, so that it can be
    answered; None if it has no opaque, or several.
    """
    if serialization == Serialization.ROCKETMQ and len(head) >= BINARY_FIXED_BYTES:
        code, _, _, opaque, flag, _, _ = _unpack_fixed(head)
        return RawCommand(code=code, opaque=opaque, flag=flag)
    if serialization != Serialization.JSON:
        return None
    found = [(match[1], int(match[2])) for match in _NUMBERS.finditer(head)]
    numbers = {"code": 0, "flag": 0} | {name.decode(): number for name, number in found}
    is_clear = len({name for name, _ in found}) == len(found) and "opaque" in numbers
    is_clear &= all(-0x8000_0000 <= number <= 0x7FFF_FFFF for number in numbers.values())
    return RawCommand(**numbers) if is_clear else None


def _int32(value: int) -> int:
    """Return the value; raise RemoteProtocolError if a header encoding cannot carry it in an
    answer.
    """
    if -0x8000_0000 <= value <= 0x7FFF_FFFF:
        return value
    raise RemoteProtocolError(f"header number {value} is longer than 32 bits")


def ext_text(value: object) -> str:
    """Return an ext value as a string, whatever its JSON type is."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _decode_binary_header(head: bytes, body: bytes) -> RawCommand:
    code, language, version, opaque, flag, remark, position, head = parse_fixed(head)
    return RawCommand(
        code=code,
        flag=flag,
        opaque=opaque,
        language=language_of(language),
        version=version,
        remark=remark,
        ext=parse_ext(head, position),
        body=body,
        serialization=Serialization.ROCKETMQ,
    )


def parse_fixed(head: bytes) -> tuple[int, int, int, int, int, str | None, int, bytes]:
    """Return a binary header's fixed fields, its remark, the position of its ext fields, and the
    header without trailing bytes.

    Raise RemoteProtocolError if the header is malformed.
    """
    if len(head) < BINARY_FIXED_BYTES:
        raise RemoteProtocolError(f"binary header of {len(head)} bytes")
    code, language, version, opaque, flag, remark_length, ext_length = _unpack_fixed(head)
    position, remark = BINARY_FIXED_BYTES, None
    if remark_length:
        start = BINARY_FIXED_BYTES - 4
        position += remark_length
        if remark_length < 0 or position > len(head):
            raise RemoteProtocolError(f"remark of {remark_length} bytes")
        remark = _text(head[start : start + remark_length])
        (ext_length,) = _unpack_length(head, position - 4)
    if position + ext_length != len(head):
        if not 0 <= ext_length <= len(head) - position:
            raise RemoteProtocolError(f"ext fields of {ext_length} bytes")
        head = head[: position + ext_length]
    return code, language, version, opaque, flag, remark, position, head


def _text(data: bytes) -> str:
    """Decode UTF-8; malformed sequences become replacement characters, as in Java."""
    return data.decode("utf-8", "replace")


def parse_ext(head: bytes, position: int) -> dict[str, str]:
    """Return the ext fields from `position` to the end of a binary header.

    Raise RemoteProtocolError if an entry is malformed.
    """
    end = len(head)
    if end > LARGE_BYTES:
        _check_count(head, position)
    ext: dict[str, str] = {}
    unpack_entry, unpack_length, names = _unpack_entry, _unpack_length, _names
    try:
        while position < end:
            name_length, short_name, length = unpack_entry(head, position)
            if name_length == 1:
                name = names[short_name]
                position += 7
            else:
                name_end = position + 2 + name_length
                (length,) = unpack_length(head, name_end)
                name = names.get(head[position + 2 : name_end]) or _learn_name(
                    head[position + 2 : name_end]
                )
                position = name_end + 4
            stop = position + length
            if not position <= stop <= end:
                raise RemoteProtocolError(f"ext value of {length} bytes")
            if length:
                ext[name] = str(head[position:stop], "utf-8", "replace")
            position = stop
    except struct.error as error:
        if head[position:] == _NOTHING:
            return ext
        raise RemoteProtocolError("ext fields end early") from error
    return ext


def _check_count(head: bytes, position: int) -> None:
    """Raise RemoteProtocolError if a large header has too many fields for its length."""
    end = len(head)
    left = LARGE_BYTES // PART_BYTES_MIN + end // PART_BYTES_MIN
    unpack_length = _unpack_length
    while position + 6 <= end:
        left -= 1
        if left < 0:
            raise RemoteProtocolError(
                f"a binary header of {end} bytes has too many fields for its length"
            )
        position += 2 + (head[position] << 8 | head[position + 1])
        if position + 4 > end:
            return
        (length,) = unpack_length(head, position)
        if length < 0:
            return
        position += 4 + length


_NAMES_MAX: Final = 2048
_NAME_BYTES_MAX: Final = 64
_names: Final = {bytes((byte,)): _text(bytes((byte,))) for byte in range(256)}
"""Names of ext fields seen so far: there are only a few, and a lookup is cheaper than decoding."""


def _learn_name(name_bytes: bytes) -> str:
    name = _text(name_bytes)
    if len(_names) < _NAMES_MAX and len(name_bytes) <= _NAME_BYTES_MAX:
        _names[name_bytes] = name
    return name


def fits_binary(code: int) -> bool:
    """Return whether a code fits into the binary header's 16-bit field."""
    return -BINARY_CODE_MAX - 1 <= code <= BINARY_CODE_MAX


def encode_binary_ext(ext: Mapping[str, str]) -> bytes:
    """Return ext fields as binary entries, without the length word that precedes them."""
    parts: list[bytes] = []
    for name, value in ext.items():
        name_bytes, value_bytes = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
        parts.append(
            struct.pack(">H", len(name_bytes))
            + name_bytes
            + _LENGTH.pack(len(value_bytes))
            + value_bytes
        )
    return b"".join(parts)
