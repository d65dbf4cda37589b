# SPDX-License-Identifier: Apache-2.0
"""Typed headers to frames.

Hot path
    ``encode_reply`` runs once per answer; budget 0.7 us for the answer of a send:
    bench/micro/bench_header.py. A header type's JSON form is a template, made once per type
    (and per ``ConstantExt``) and filled in one step. Headers with an unusual set of empty
    fields, and ext fields of their own, take the plain way over a dictionary.
"""

import operator
import struct
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring as quote
from typing import Any, Final

import msgspec

from cometmq.remoting.command import ConstantExt, Reply, Request
from cometmq.remoting.errors import LocalProtocolError
from cometmq.remoting.frame import PREFIX_BYTES, frame_prefix
from cometmq.remoting.header import encode_binary_ext, fits_binary
from cometmq.remoting.raw import FLAG_ONEWAY, FLAG_REPLY, Body
from cometmq.remoting.types import Buffer, Language, Serialization
from cometmq.remoting.versions import CURRENT_VERSION

_JSON: Final = int(Serialization.JSON)
_BINARY: Final = int(Serialization.ROCKETMQ)
_LANGUAGE: Final = int(Language.PYTHON)
_MIDDLE: Final = f',"language":"{Language.PYTHON.name}","opaque":'
_TAIL: Final = f',"serializeTypeCurrentRPC":"JSON","version":{CURRENT_VERSION}}}'
_encode_json: Final = msgspec.json.Encoder().encode
_pack_fixed: Final = struct.Struct(">hBhii").pack
_pack_length: Final = struct.Struct(">i").pack
_astuple: Final = msgspec.structs.astuple

Values = tuple[Any, ...]


class HeaderPlan:
    """How one header type becomes ext fields."""

    __slots__ = ("_binary_names", "_keep", "_kept_names", "_names", "_nullable_count", "_template")

    def __init__(self, header_type: type[msgspec.Struct]) -> None:
        """Look at the type once."""
        fields = msgspec.structs.fields(header_type)
        self._names = tuple(field.encode_name for field in fields)
        self._binary_names = tuple(
            struct.pack(">H", len(name.encode())) + name.encode() for name in self._names
        )
        kept = [index for index, field in enumerate(fields) if field.default is not None]
        self._nullable_count = len(fields) - len(kept)
        self._keep: Callable[[Values], Values] = _picker(kept)
        self._kept_names = tuple(self._names[index] for index in kept)
        self._template = _template(self._kept_names, {})

    def ext(self, header: msgspec.Struct) -> dict[str, str]:
        """Return the ext fields of a header; empty ones are left out."""
        pairs = zip(self._names, _astuple(header), strict=True)
        return {name: field_text(value) for name, value in pairs if value is not None}

    def json(self, header: msgspec.Struct, constant: ConstantExt | None) -> str | None:
        """Return the ext fields as JSON by template, None if the template does not fit."""
        values = _astuple(header)
        if values.count(None) != self._nullable_count:
            return None
        template = self._template
        if constant is not None:
            template = constant.encoded.get(self) or self._constant_template(constant)
        kept = self._keep(values)
        return template % tuple([v if type(v) is int else _escaped(v) for v in kept])

    def _constant_template(self, constant: ConstantExt) -> str:
        template = _template(self._kept_names, constant)
        constant.encoded[self] = template
        return template

    def binary(self, header: msgspec.Struct) -> bytes:
        """Return the ext fields as binary entries."""
        parts: list[bytes] = []
        for name, value in zip(self._binary_names, _astuple(header), strict=True):
            if value is not None:
                text = (value if type(value) is str else field_text(value)).encode()
                parts += (name, _pack_length(len(text)), text)
        return b"".join(parts)


def _picker(indexes: list[int]) -> Callable[[Values], Values]:
    if len(indexes) > 1:
        return operator.itemgetter(*indexes)
    return lambda values: tuple(values[index] for index in indexes)


def _template(names: tuple[str, ...], constant: Mapping[str, str]) -> str:
    """Return the JSON object with a place for each value, between quotes."""
    fields = [quote(name).replace("%", "%%") + ':"%s"' for name in names]
    fields += [f"{quote(k)}:{quote(v)}".replace("%", "%%") for k, v in constant.items()]
    return "{" + ",".join(fields) + "}"


def _escaped(value: object) -> str:
    return quote(field_text(value))[1:-1]


def field_text(value: object) -> str:
    """Return a header value as ext text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise LocalProtocolError(f"header value {value!r} is no text, number or boolean")


class FrameEncoder:
    """Encode replies and requests with typed headers."""

    __slots__ = ("_plans",)

    def __init__(self) -> None:
        """Start without plans; each header type gets its own at first use."""
        self._plans: dict[type[msgspec.Struct], HeaderPlan] = {}

    def ext(self, header: msgspec.Struct | None) -> dict[str, str]:
        """Return the ext fields of a header."""
        return {} if header is None else self._plan(type(header)).ext(header)

    def encode_reply(
        self, out: list[Buffer], serialization: int, opaque: int, reply: Reply | msgspec.Struct
    ) -> int:
        """Append the frame of an answer to ``out`` without copying its body; return its size."""
        if type(reply) is not Reply:
            reply = Reply(header=reply)
        code, header, ext = reply.code, reply.header, reply.ext
        if serialization == _BINARY:
            ext_bytes = self._binary_ext(header, ext)
            head = _binary_head(code, FLAG_REPLY, opaque, reply.remark, ext_bytes)
        else:
            ext_json = self._json_ext(header, ext)
            head = _json_head(code, FLAG_REPLY, opaque, reply.remark, ext_json)
        return append_frame(out, serialization, head, reply.body)

    def encode_request(
        self, out: list[Buffer], serialization: int, opaque: int, request: Request
    ) -> int:
        """Append the frame of a request to ``out`` without copying its body; return its size."""
        code, header, ext = request.code, request.header, request.ext
        flag = FLAG_ONEWAY if request.is_oneway else 0
        if serialization == _BINARY and fits_binary(code):
            head = _binary_head(code, flag, opaque, None, self._binary_ext(header, ext))
        else:
            serialization = _JSON
            head = _json_head(code, flag, opaque, None, self._json_ext(header, ext))
        return append_frame(out, serialization, head, request.body)

    def _plan(self, header_type: type[msgspec.Struct]) -> HeaderPlan:
        plan = self._plans.get(header_type)
        if plan is None:
            plan = self._plans[header_type] = HeaderPlan(header_type)
        return plan

    def _json_ext(self, header: msgspec.Struct | None, ext: Mapping[str, str] | None) -> str:
        if header is not None and (ext is None or type(ext) is ConstantExt):
            text = self._plan(type(header)).json(header, ext)
            if text is not None:
                return text
        fields = self.ext(header)
        if ext is not None:
            fields.update(ext)
        if header is None and not fields:
            return ""
        return _encode_json(fields).decode()

    def _binary_ext(self, header: msgspec.Struct | None, ext: Mapping[str, str] | None) -> bytes:
        entries = b"" if header is None else self._plan(type(header)).binary(header)
        if ext is None:
            return entries
        if type(ext) is not ConstantExt:
            return entries + encode_binary_ext(ext)
        constant: bytes | None = ext.encoded.get(_BINARY)
        if constant is None:
            constant = ext.encoded[_BINARY] = encode_binary_ext(ext)
        return entries + constant


def _json_head(code: int, flag: int, opaque: int, remark: str | None, ext: str) -> bytes:
    fields = f'"extFields":{ext},' if ext else ""
    text = "" if remark is None else f',"remark":{quote(remark)}'
    head = f'{{"code":{code},{fields}"flag":{flag}{_MIDDLE}{opaque}{text}{_TAIL}'
    return head.encode("utf-8", "replace")


def _binary_head(code: int, flag: int, opaque: int, remark: str | None, ext: bytes) -> bytes:
    text = remark.encode("utf-8", "replace") if remark else b""
    return b"".join(
        (
            _pack_fixed(code, _LANGUAGE, CURRENT_VERSION, opaque, flag),
            _pack_length(len(text)),
            text,
            _pack_length(len(ext)),
            ext,
        )
    )


def append_frame(out: list[Buffer], serialization: int, head: bytes, body: Body) -> int:
    """Append prefix and header as one buffer, then the body's buffers; return all their bytes."""
    head_size = len(head)
    if not body:
        out.append(frame_prefix(serialization, head_size, 0) + head)
        return PREFIX_BYTES + head_size
    if isinstance(body, (bytes, bytearray, memoryview)):
        size = len(body)
        out.append(frame_prefix(serialization, head_size, size) + head)
        out.append(body)
    else:
        size = sum(map(len, body))
        out.append(frame_prefix(serialization, head_size, size) + head)
        out.extend(body)
    return PREFIX_BYTES + head_size + size
