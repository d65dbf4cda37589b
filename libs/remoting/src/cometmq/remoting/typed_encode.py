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
_pack_short: Final = struct.Struct(">H").pack
_pack_reply: Final = struct.Struct(">hBhiiii").pack  # fixed fields, no remark, ext length
_astuple: Final = msgspec.structs.astuple

_NO_EXT: Final = ConstantExt({})
_TEMPLATE_TEXT_MAX: Final = 255  # a template has one byte for each length

Values = tuple[Any, ...]


class HeaderPlan:
    """How one header type becomes ext fields.

    The templates hold the fields that are never empty; a header whose other fields are all
    empty is encoded by them, as nearly every reply is.
    """

    __slots__ = (
        "_binary_names",
        "_binary_template",
        "_keep",
        "_kept_count",
        "_kept_names",
        "_kept_texts",
        "_names",
        "_nullable_count",
    )

    def __init__(self, header_type: type[msgspec.Struct]) -> None:
        """Look at the type once."""
        fields = msgspec.structs.fields(header_type)
        self._names = tuple(field.encode_name for field in fields)
        self._binary_names = tuple(map(_binary_text, self._names))
        kept = [index for index, field in enumerate(fields) if field.default is not None]
        self._nullable_count = len(fields) - len(kept)
        self._keep = _picker(kept)
        self._kept_count = len(kept)
        self._kept_names = tuple(self._names[index] for index in kept)
        self._kept_texts = tuple(_is_text(fields[index].type) for index in kept)
        if not all(_is_text(fields[i].type) or _is_number(fields[i].type) for i in kept):
            self._nullable_count = -1  # no header fits the templates
        self._binary_template = "".join(
            _binary_text(name).decode("latin-1").replace("%", "%%") + "\0\0\0%c%s"
            for name in self._kept_names
        )

    def ext(self, header: msgspec.Struct) -> dict[str, str]:
        """Return the ext fields of a header; empty ones are left out."""
        pairs = zip(self._names, _astuple(header), strict=True)
        return {name: field_text(value) for name, value in pairs if value is not None}

    def json_reply(
        self, header: msgspec.Struct, constant: ConstantExt | None, opaque: int
    ) -> bytes | None:
        """Return the whole JSON header of a success by template, None if it does not fit."""
        values = _astuple(header)
        if values.count(None) != self._nullable_count:
            return None
        template = (constant or _NO_EXT).encoded.get(self)
        if template is None:
            template = self._json_template(constant or _NO_EXT)
        # One call escapes and prints all values; a text with a comma goes the plain way.
        texts = _encode_json(self._keep(values)).decode()[1:-1].split(",")
        if len(texts) != self._kept_count:
            return None
        return (template % (*texts, opaque)).encode()

    def binary_reply(
        self, header: msgspec.Struct, constant: ConstantExt | None, opaque: int
    ) -> bytes | None:
        """Return the whole binary header of a success by template, None if it does not fit."""
        values = _astuple(header)
        if values.count(None) != self._nullable_count:
            return None
        sized: list[int | str] = []
        for value in self._keep(values):
            text = str(value) if type(value) is int else field_text(value)
            if len(text) > _TEMPLATE_TEXT_MAX or not text.isascii():
                return None
            sized += (len(text), text)
        entries = (self._binary_template % tuple(sized)).encode("latin-1")
        if constant is not None:
            entries += _binary_constant(constant)
        return _pack_reply(0, _LANGUAGE, CURRENT_VERSION, opaque, FLAG_REPLY, 0, len(entries)) + (
            entries
        )

    def _json_template(self, constant: ConstantExt) -> str:
        """Return the JSON header with a place for each value; a text brings its quotes."""
        fields = [
            _percent(quote(name)) + (":%s" if is_text else ':"%s"')
            for name, is_text in zip(self._kept_names, self._kept_texts, strict=True)
        ]
        fields += [_percent(f"{quote(k)}:{quote(v)}") for k, v in constant.items()]
        ext = "{" + ",".join(fields) + "}"
        template = f'{{"code":0,"extFields":{ext},"flag":{FLAG_REPLY}{_MIDDLE}%s{_TAIL}'
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


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def _binary_text(name: str) -> bytes:
    text = name.encode()
    return _pack_short(len(text)) + text


def _binary_constant(constant: ConstantExt) -> bytes:
    entries: bytes | None = constant.encoded.get(_BINARY)
    if entries is None:
        entries = constant.encoded[_BINARY] = encode_binary_ext(constant)
    return entries


def _is_text(field_type: object) -> bool:
    return field_type is str or getattr(field_type, "__origin__", None) is str


def _is_number(field_type: object) -> bool:
    return getattr(field_type, "__origin__", field_type) in (int, bool)


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
        header, ext, head = reply.header, reply.ext, None
        is_constant = ext is None or type(ext) is ConstantExt
        if header is not None and is_constant and reply.code == 0 and reply.remark is None:
            plan = self._plans.get(type(header)) or self._plan(type(header))
            fast = plan.binary_reply if serialization == _BINARY else plan.json_reply
            head = fast(header, ext, opaque)  # type: ignore[arg-type]  # constant, as tested
        if head is None:
            head = self._head(serialization, reply.code, FLAG_REPLY, opaque, reply)
        return append_frame(out, serialization, head, reply.body)

    def encode_request(
        self, out: list[Buffer], serialization: int, opaque: int, request: Request
    ) -> int:
        """Append the frame of a request to ``out`` without copying its body; return its size."""
        if not fits_binary(request.code):
            serialization = _JSON
        flag = FLAG_ONEWAY if request.is_oneway else 0
        head = self._head(serialization, request.code, flag, opaque, request)
        return append_frame(out, serialization, head, request.body)

    def _head(
        self, serialization: int, code: int, flag: int, opaque: int, said: Reply | Request
    ) -> bytes:
        """Return any header, the plain way."""
        remark = said.remark if isinstance(said, Reply) else None
        if serialization == _BINARY:
            entries = self._binary_ext(said.header, said.ext)
            return _binary_head(int(code), flag, opaque, remark, entries)
        return _json_head(int(code), flag, opaque, remark, self._json_ext(said.header, said.ext))

    def _plan(self, header_type: type[msgspec.Struct]) -> HeaderPlan:
        plan = self._plans.get(header_type)
        if plan is None:
            plan = self._plans[header_type] = HeaderPlan(header_type)
        return plan

    def _json_ext(self, header: msgspec.Struct | None, ext: Mapping[str, str] | None) -> str:
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
        return entries + _binary_constant(ext)


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
