# SPDX-License-Identifier: Apache-2.0
"""Encode typed headers as frames: field by field, or with a template built once per type.

A template is filled in one step. Headers with an unusual set of empty fields are encoded through a
dictionary.

Hot path: `encode_reply` runs once per answer, `json_request` once per request that a client sends.
Budget: 0.6 us for the answer to a send, 2 us for the send itself (bench/micro/bench_header.py).
"""

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring as quote
from typing import Any, Final

import msgspec

from cometmq.remoting.command import ConstantExt, Reply, Request
from cometmq.remoting.commands.pull import PullMessageReply
from cometmq.remoting.errors import LocalProtocolError
from cometmq.remoting.frame import PREFIX_BYTES, frame_prefix
from cometmq.remoting.header import LARGE_BYTES, encode_binary_ext, fits_binary
from cometmq.remoting.raw import FLAG_ONEWAY, FLAG_REPLY, Body
from cometmq.remoting.types import Buffer, Language, Serialization
from cometmq.remoting.versions import CURRENT_VERSION

_JSON: Final = int(Serialization.JSON)
_BINARY: Final = int(Serialization.ROCKETMQ)
LANGUAGE: Final = int(Language.PYTHON)
MIDDLE: Final = f',"language":"{Language.PYTHON.name}","opaque":'
TAIL: Final = f',"serializeTypeCurrentRPC":"JSON","version":{CURRENT_VERSION}}}'
_encode_json: Final = msgspec.json.Encoder().encode
_pack_length: Final = struct.Struct(">i").pack
_pack_short: Final = struct.Struct(">H").pack
_pack_fixed: Final = struct.Struct(">hBhiiii").pack
"""Code, language, version, opaque, flag, remark length 0, ext length."""
_astuple: Final = msgspec.structs.astuple

_NO_EXT: Final = ConstantExt({})
_TEMPLATE_TEXT_MAX: Final = 255  # a template has one byte for each length

Values = tuple[Any, ...]


class HeaderPlan:
    """Encodes one header type as ext fields.

    The templates contain the fields that are never empty. They fit headers whose other fields are
    all empty, as in nearly every reply.
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
        "_request_template",
    )

    def __init__(self, header_type: type[msgspec.Struct]) -> None:
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
        self._request_template = (
            f'{{"code":%s,"extFields":{self._json_ext(_NO_EXT)},"flag":%s{MIDDLE}%s{TAIL}'
        )

    def ext(self, header: msgspec.Struct) -> dict[str, str]:
        """Return the ext fields of a header; empty fields are omitted."""
        pairs = zip(self._names, _astuple(header), strict=True)
        return {name: field_text(value) for name, value in pairs if value is not None}

    def json_reply(
        self, header: msgspec.Struct, constant: ConstantExt | None, opaque: int, reply: Reply
    ) -> bytes | None:
        """Fill the template of a reply's JSON header; return None if the reply does not fit."""
        texts = self._json_texts(header)
        if texts is None:
            return None
        template = (constant or _NO_EXT).encoded.get(self)
        if template is None:
            template = self._json_template(constant or _NO_EXT)
        remark = "" if reply.remark is None else f',"remark":{quote(reply.remark)}'
        text: str = template % (reply.code, *texts, opaque, remark)
        return text.encode("utf-8", "replace")

    def json_request(
        self, header: msgspec.Struct, code: int, flag: int, opaque: int
    ) -> bytes | None:
        """Fill the template of a request's JSON header; return None if the request does not fit."""
        texts = self._json_texts(header)
        if texts is None:
            return None
        text = self._request_template % (code, *texts, flag, opaque)
        return text.encode("utf-8", "replace")

    def _json_texts(self, header: msgspec.Struct) -> list[str] | None:
        values = _astuple(header)
        if values.count(None) != self._nullable_count:
            return None
        # One call encodes all values; headers with a comma in a text take the slow path. The ids of
        # a batch have 2 MB and up to 65,535 commas: to split at all of them takes 8 ms.
        encoded, count = _encode_json(self._keep(values)), self._kept_count
        if len(encoded) > LARGE_BYTES:
            return None
        texts = encoded.decode()[1:-1].split(",", count)
        return texts if len(texts) == count else None

    def binary_reply(
        self, header: msgspec.Struct, constant: ConstantExt | None, opaque: int, reply: Reply
    ) -> bytes | None:
        """Fill the template of a reply's binary header; return None if the reply does not fit."""
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
            entries += binary_constant(constant)
        return binary_head(reply.code, FLAG_REPLY, opaque, reply.remark, entries)

    def _json_template(self, constant: ConstantExt) -> str:
        """Return the JSON header of replies with a placeholder for each value."""
        ext = self._json_ext(constant)
        template = f'{{"code":%s,"extFields":{ext},"flag":{FLAG_REPLY}{MIDDLE}%s%s{TAIL}'
        constant.encoded[self] = template
        return template

    def _json_ext(self, constant: ConstantExt) -> str:
        """Return the ext fields with placeholders; string values are inserted with quotes."""
        fields = [
            _percent(quote(name)) + (":%s" if is_text else ':"%s"')
            for name, is_text in zip(self._kept_names, self._kept_texts, strict=True)
        ]
        fields += [_percent(f"{quote(k)}:{quote(v)}") for k, v in constant.items()]
        return "{" + ",".join(fields) + "}"

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


def binary_constant(constant: ConstantExt) -> bytes:
    """Return shared ext fields as binary entries, encoded once."""
    entries: bytes | None = constant.encoded.get(_BINARY)
    if entries is None:
        entries = constant.encoded[_BINARY] = encode_binary_ext(constant)
    return entries


def binary_head(code: int, flag: int, opaque: int, remark: str | None, ext: bytes) -> bytes:
    """Return a binary header with the given encoded ext fields."""
    if not remark:
        return _pack_fixed(code, LANGUAGE, CURRENT_VERSION, opaque, flag, 0, len(ext)) + ext
    text = remark.encode("utf-8", "replace")
    fixed = _pack_fixed(code, LANGUAGE, CURRENT_VERSION, opaque, flag, len(text), len(ext))
    return b"".join((fixed[:-4], text, fixed[-4:], ext))


def _is_text(field_type: object) -> bool:
    return field_type is str or getattr(field_type, "__origin__", None) is str


def _is_number(field_type: object) -> bool:
    return getattr(field_type, "__origin__", field_type) in (int, bool)


def field_text(value: object) -> str:
    """Return a header value as the string that an ext field holds."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    raise LocalProtocolError(
        f"header value {value!r} has no text form: not a string, number or boolean"
    )


class PullReplyPlan(HeaderPlan):
    """A hand-written plan for the answer to a pull, three times as fast as the templates."""

    __slots__ = ()

    def json_reply(
        self, header: Any, constant: ConstantExt | None, opaque: int, reply: Reply
    ) -> bytes | None:
        """Return the whole JSON header for the fields of `PullMessageReply`."""
        if constant is not None or reply.remark is None:
            return super().json_reply(header, constant, opaque, reply)
        return _PULLED % (
            reply.code,
            header.suggest_which_broker_id,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            opaque,
            quote(reply.remark).encode("utf-8", "replace"),
        )


_PULLED: Final = (
    '{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d",'
    f'"minOffset":"%d","maxOffset":"%d"}},"flag":{FLAG_REPLY}{MIDDLE}%d,"remark":%b{TAIL}'
).encode()


def lane_pieces(
    code: int, names: Sequence[str], constant: ConstantExt = _NO_EXT, remark: str | None = None
) -> dict[str, Any]:
    """Return the constant parts of answers, as arguments of an encoder outside Python.

    `json` has the parts of a JSON header around the values of `names`, which are plain ASCII, and
    the opaque; `binary_head` is code, language and version of a binary header. `plain_json` and
    `plain_binary` are the parts around the opaque of an answer without fields and remark.
    """
    fields = [f'{quote(name)}:"\0"' for name in names]
    fields += [f"{quote(name)}:{quote(value)}" for name, value in constant.items()]
    after, said = f'"flag":{FLAG_REPLY}{MIDDLE}\0', f',"remark":{quote(remark)}' if remark else ""
    json = f'{{"code":{code},"extFields":{{{",".join(fields)}}},{after}{said}{TAIL}'
    head = binary_head(code, FLAG_REPLY, 0, None, b"")
    return {
        "json": json.encode("utf-8", "replace").split(b"\0"),
        "binary_head": head[:5],
        "flag": FLAG_REPLY,
        "plain_json": f'{{"code":{code},{after}{TAIL}'.encode().split(b"\0"),
        "plain_binary": [head[:5], head[9:]],
    }


_PLAN_TYPES: Final[Mapping[type[msgspec.Struct], type[HeaderPlan]]] = {
    PullMessageReply: PullReplyPlan,
}
_pack_prefix: Final = struct.Struct(">II").pack


class FrameEncoder:
    """Encodes replies and requests with typed headers."""

    __slots__ = ("_plans",)

    def __init__(self) -> None:
        self._plans: dict[type[msgspec.Struct], HeaderPlan] = {}

    def ext(self, header: msgspec.Struct | None) -> dict[str, str]:
        """Return the ext fields of a header."""
        return {} if header is None else self._plan(type(header)).ext(header)

    def encode_reply(
        self, out: list[Buffer], serialization: int, opaque: int, reply: Reply | msgspec.Struct
    ) -> int:
        """Append the frame of an answer to `out` without copying its body; return its size.

        An answer that does not fit the binary form is encoded as JSON, which every client decodes:
        a client's answer that is forwarded may have any code. RocketMQ truncates it to 16 bits.
        """
        if type(reply) is not Reply:
            reply = Reply(header=reply)
        header, ext, head = reply.header, reply.ext, None
        try:
            if header is not None and (ext is None or type(ext) is ConstantExt):
                plan = self._plans.get(type(header)) or self._plan(type(header))
                fast = plan.binary_reply if serialization == _BINARY else plan.json_reply
                head = fast(header, ext, opaque, reply)
            if head is None:
                head = self._head(serialization, reply.code, FLAG_REPLY, opaque, reply)
        except struct.error:
            return self.encode_reply(out, _JSON, opaque, reply)
        if reply.body:
            return append_frame(out, serialization, head, reply.body)
        size = len(head)
        out.append(_pack_prefix(4 + size, serialization << 24 | size) + head)
        return PREFIX_BYTES + size

    def encode_request(
        self, out: list[Buffer], serialization: int, opaque: int, request: Request
    ) -> int:
        """Append the frame of a request to `out` without copying its body; return its size."""
        if not fits_binary(request.code):
            serialization = _JSON
        flag = FLAG_ONEWAY if request.is_oneway else 0
        header, head = request.header, None
        if header is not None and request.ext is None and serialization == _JSON:
            plan = self._plans.get(type(header)) or self._plan(type(header))
            head = plan.json_request(header, int(request.code), flag, opaque)
        if head is None:
            head = self._head(serialization, request.code, flag, opaque, request)
        return append_frame(out, serialization, head, request.body)

    def _head(
        self, serialization: int, code: int, flag: int, opaque: int, said: Reply | Request
    ) -> bytes:
        remark = said.remark if isinstance(said, Reply) else None
        if serialization == _BINARY:
            entries = self._binary_ext(said.header, said.ext)
            return binary_head(int(code), flag, opaque, remark, entries)
        return _json_head(int(code), flag, opaque, remark, self._json_ext(said.header, said.ext))

    def _plan(self, header_type: type[msgspec.Struct]) -> HeaderPlan:
        plan = self._plans.get(header_type)
        if plan is None:
            plan_type = _PLAN_TYPES.get(header_type, HeaderPlan)
            plan = self._plans[header_type] = plan_type(header_type)
        return plan

    def _json_ext(self, header: msgspec.Struct | None, ext: Mapping[str, str] | None) -> bytes:
        fields = self.ext(header)
        if ext is not None:
            fields.update(ext)
        if header is None and not fields:
            return b""
        return _encode_json(fields)

    def _binary_ext(self, header: msgspec.Struct | None, ext: Mapping[str, str] | None) -> bytes:
        entries = b"" if header is None else self._plan(type(header)).binary(header)
        if ext is None:
            return entries
        if type(ext) is not ConstantExt:
            return entries + encode_binary_ext(ext)
        return entries + binary_constant(ext)


def _json_head(code: int, flag: int, opaque: int, remark: str | None, ext: bytes) -> bytes:
    text = "" if remark is None else f',"remark":{quote(remark)}'
    rest = f'"flag":{flag}{MIDDLE}{opaque}{text}{TAIL}'.encode("utf-8", "replace")
    name, comma = (b'"extFields":', b",") if ext else (b"", b"")
    # In one step, because the ids of a batch have 2 MB, and to copy them takes 0.3 to 3 ms.
    return b'{"code":%d,%b%b%b%b' % (code, name, ext, comma, rest)


def append_frame(out: list[Buffer], serialization: int, head: bytes, body: Body) -> int:
    """Append prefix and header as one buffer, then the body; return the total size."""
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
