# SPDX-License-Identifier: Apache-2.0
"""Encode typed headers as frames.

Hot path: `encode_reply` runs once per answer; budget 0.6 us for the answer to a send
(bench/micro/bench_header.py). The fast paths are in `header_plan.py`.
"""

import struct
from collections.abc import Mapping
from json.encoder import encode_basestring as quote
from typing import Final

import msgspec

from cometmq.remoting.command import ConstantExt, Reply, Request
from cometmq.remoting.commands.pull import PullMessageReply
from cometmq.remoting.frame import PREFIX_BYTES, frame_prefix
from cometmq.remoting.header import encode_binary_ext, fits_binary
from cometmq.remoting.header_plan import (
    MIDDLE,
    TAIL,
    HeaderPlan,
    PullReplyPlan,
    binary_constant,
    binary_head,
)
from cometmq.remoting.raw import FLAG_ONEWAY, FLAG_REPLY, Body
from cometmq.remoting.types import Buffer, Serialization

_JSON: Final = int(Serialization.JSON)
_BINARY: Final = int(Serialization.ROCKETMQ)
_PLAN_TYPES: Final[Mapping[type[msgspec.Struct], type[HeaderPlan]]] = {
    PullMessageReply: PullReplyPlan,
}
_encode_json: Final = msgspec.json.Encoder().encode
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
