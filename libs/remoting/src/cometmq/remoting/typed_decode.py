# SPDX-License-Identifier: Apache-2.0
"""Decode frames of known commands into calls with typed headers, with a lenient fallback.

Hot path
    `RequestDecoder.decode` runs once per request; budget 0.8 us for SEND_MESSAGE_V2 in JSON
    and 2 us in binary, without the frame (bench/micro/bench_header.py). JSON is decoded
    straight into the `Call` by a decoder that the header's first bytes select; all official
    clients write the code first. Headers that this decoder rejects take the slow path, which
    makes the final decision.

Compatibility
    Java converts ext strings to numbers and booleans leniently (any string but "true" is false;
    a number may have a plus sign and leading zeros). A request that lacks a required field is
    answered with code 1 and the field's name, and the connection is kept open; Java logs the
    fault and continues with null or 0.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cometmq.remoting import remarks
from cometmq.remoting.command import Call
from cometmq.remoting.commands.table import Command
from cometmq.remoting.errors import UNREADABLE_JSON, CommandError, ServerError
from cometmq.remoting.header import decode_header, parse_ext, parse_fixed
from cometmq.remoting.raw import FLAG_REPLY, RawCommand
from cometmq.remoting.types import Serialization

_JSON: Final = int(Serialization.JSON)
_BINARY: Final = int(Serialization.ROCKETMQ)
_PREFIX_BYTES: Final = 12  # `{"code":310,` and `{"code":11,"`
_INTEGER: Final = re.compile(r"[+-]?\d{1,40}")

JsonDecode = Callable[[bytes], Call[Any]]


class HeaderFault(Exception):  # never leaves the library
    """A request with a valid frame but invalid fields; it is answered, not dropped."""

    def __init__(self, call: Call[None], error: CommandError) -> None:
        super().__init__(str(error))
        self.call = call
        self.error = error


class RequestDecoder:
    """Decodes headers with one catalogue of commands."""

    __slots__ = ("_json_decode", "_types")

    def __init__(self, commands: Mapping[int, Command]) -> None:
        self._types = {code: command.header_type for code, command in commands.items()}
        self._json_decode: dict[bytes, tuple[JsonDecode, int]] = {}
        for code, header_type in self._types.items():
            if len(str(code)) in (2, 3) and header_type.__struct_fields__:
                prefix = f'{{"code":{code},"'[:_PREFIX_BYTES].encode()
                call_type = Call[header_type]  # type: ignore[valid-type]
                decode = msgspec.json.Decoder(call_type, strict=False).decode
                self._json_decode[prefix] = (decode, code)

    def decode(self, serialization: int, head: bytes) -> Call[Any] | RawCommand:
        """Return the call of a request, or the raw command of a reply.

        Raise RemoteProtocolError if the header is malformed, and HeaderFault if its fields do not
        fit its command. For a command outside the catalogue, the call's header is None.
        """
        if serialization == _JSON:
            row = self._json_decode.get(head[:_PREFIX_BYTES])
            if row is not None:
                decode, code = row
                try:
                    call = decode(head)
                except UNREADABLE_JSON:
                    return self._decode_slowly(serialization, head)
                if call.code == code and not call.flag & FLAG_REPLY:  # no duplicate code, no reply
                    return call
        elif serialization == _BINARY:
            return self._decode_binary(head)
        return self._decode_slowly(serialization, head)

    def _decode_binary(self, head: bytes) -> Call[Any] | RawCommand:
        code, language, version, opaque, flag, remark, position, head = parse_fixed(head)
        header_type = self._types.get(code)
        if header_type is None or flag & FLAG_REPLY:
            return self._decode_slowly(_BINARY, head)
        call: Call[Any] = Call(code, None, opaque, flag, version, language, remark)
        call.header = _binary_header(call, head, position, header_type)
        return call

    def _decode_slowly(self, serialization: int, head: bytes) -> Call[Any] | RawCommand:
        raw = decode_header(serialization, head)
        if raw.is_reply:
            return raw
        call: Call[Any] = Call(
            raw.code, None, raw.opaque, raw.flag, raw.version, raw.language, raw.remark
        )
        header_type = self._types.get(raw.code)
        if header_type is not None:
            call.header = _convert_or_fault(call, raw.ext, header_type)
        return call


def _binary_header(
    call: Call[Any], head: bytes, position: int, header_type: type[msgspec.Struct]
) -> msgspec.Struct:
    ext = parse_ext(head, position)
    try:
        return msgspec.convert(ext, header_type, strict=False)
    except msgspec.ValidationError:
        return _convert_or_fault(call, ext, header_type)


def _convert_or_fault(
    call: Call[Any], ext: dict[str, str], header_type: type[msgspec.Struct]
) -> msgspec.Struct:
    try:
        return convert_ext(ext, header_type)
    except CommandError as error:
        raise HeaderFault(call, error) from error


def convert_ext(ext: Mapping[str, str], header_type: type[msgspec.Struct]) -> msgspec.Struct:
    """Convert ext fields to a typed header, as leniently as Java; raise ServerError on failure."""
    try:
        return msgspec.convert(ext, header_type, strict=False)
    except msgspec.ValidationError:
        pass  # retry below as leniently as Java, or find the invalid field
    lenient: dict[str, str] = {}
    for field in msgspec.structs.fields(header_type):
        value = ext.get(field.encode_name)
        if value is not None:
            lenient[field.encode_name] = _lenient_text(value, field.type)
        elif field.required:
            raise ServerError(remarks.missing_field(field.encode_name))
    try:
        return msgspec.convert(lenient, header_type, strict=False)
    except msgspec.ValidationError as error:
        raise ServerError(f"the custom fields are invalid: {error}") from error


def _lenient_text(value: str, field_type: object) -> str:
    """Rewrite a value that Java accepts but msgspec rejects; return other values unchanged."""
    if _accepts(field_type, bool):
        return "true" if value.lower() == "true" else "false"
    if _accepts(field_type, int) and _INTEGER.fullmatch(value):
        return str(int(value))
    return value


def _accepts(field_type: object, wanted: type) -> bool:
    arguments = getattr(field_type, "__args__", ())
    return field_type is wanted or any(_accepts(argument, wanted) for argument in arguments)
