# SPDX-License-Identifier: Apache-2.0
"""Encodes whole frames of any command, with fields as strings, as Java does.

JSON fields are sorted by name, nulls are omitted, and there are no spaces. A code that does not fit
into the binary header's 16-bit field is sent as JSON.
"""

import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from cometmq.remoting.errors import LocalProtocolError
from cometmq.remoting.frame import frame_prefix
from cometmq.remoting.header import encode_binary_ext, fits_binary
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.types import Serialization, language_of

_FIXED: Final = struct.Struct(">hBhiiii")
"""Code, language, version, opaque, flag, remark length; ext length if there is no remark."""
_encode_json: Final = msgspec.json.Encoder().encode


class _JsonHeaderOut(msgspec.Struct, gc=False, omit_defaults=True, kw_only=True):
    code: int
    ext_fields: Mapping[str, str] | None = msgspec.field(name="extFields", default=None)
    flag: int
    language: str
    opaque: int
    remark: str | None = None
    serialization: str = msgspec.field(name="serializeTypeCurrentRPC")
    version: int


def encode_frame(command: RawCommand) -> bytes:
    """Return the whole frame of a command."""
    serialization = Serialization.JSON
    if command.serialization == Serialization.ROCKETMQ and fits_binary(command.code):
        serialization = Serialization.ROCKETMQ
        head = _encode_binary_header(command)
    else:
        head = _encode_json_header(command)
    prefix = frame_prefix(serialization, len(head), len(command.body))
    return b"".join((prefix, head, command.body))


def _encode_json_header(command: RawCommand) -> bytes:
    return _encode_json(
        _JsonHeaderOut(
            code=command.code,
            flag=command.flag,
            language=language_of(command.language).name,
            opaque=command.opaque,
            version=command.version,
            ext_fields=command.ext or None,
            remark=command.remark,
            serialization="JSON",
        )
    )


def _encode_binary_header(command: RawCommand) -> bytes:
    remark = (command.remark or "").encode("utf-8", "replace")
    ext = encode_binary_ext(command.ext)
    try:
        fixed = _FIXED.pack(
            command.code,
            command.language,
            command.version,
            command.opaque,
            command.flag,
            len(remark),
            len(ext),
        )
    except struct.error as error:
        raise LocalProtocolError(f"header does not fit the binary form: {command}") from error
    return b"".join((fixed[:-4], remark, fixed[-4:], ext))
