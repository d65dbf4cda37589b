# SPDX-License-Identifier: Apache-2.0
"""Answers to lines that are no messages of the protocol; the SDK drops them without an answer."""

from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.shared.message import SessionMessage
from mcp_types.jsonrpc import jsonrpc_message_adapter

TEXT_MAX: Final = 200
ID_BYTES_MAX: Final = 255
BATCH: Final = "a batch is not accepted: send each message on a line of its own"


ODD_ID: Final = "id: Input should be an integer or a string"


class _Request(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw()


def refusal_of(line: bytes) -> SessionMessage | None:
    """Return the error that answers a line, or None if the line is a message."""
    if line.lstrip()[:1] == b"[":  # not decoded: a batch of 16 MiB takes 400 MB
        return _error(types.INVALID_REQUEST, BATCH)
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        invalid: Any = error  # a ValidationError of pydantic, which only the SDK imports
        first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            return _error(types.PARSE_ERROR, first["msg"], _id_of(line))
        place = ".".join(map(str, first["loc"][1:]))
        return _error(types.INVALID_REQUEST, f"{place}: {first['msg']}", _id_of(line))
    # The SDK takes a request with an odd id for a notification, which has no answer.
    is_odd = isinstance(message, types.JSONRPCNotification) and bool(_raw_id_of(line))
    return _error(types.INVALID_REQUEST, ODD_ID) if is_odd else None


def _error(code: int, why: str, request_id: int | str | None = None) -> SessionMessage:
    text = f"this line is no message of JSON-RPC 2.0, and was ignored: {why[:TEXT_MAX]}"
    data = types.ErrorData(code=code, message=text)
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=data))


def _id_of(line: bytes) -> int | str | None:
    """Return the id of a malformed request, so that the client can match the error to it."""
    raw = _raw_id_of(line)
    if len(raw) > ID_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(raw, type=int | str)
    except ValueError:  # bytes that are no UTF-8, too
        return None


def _raw_id_of(line: bytes) -> bytes:
    """Return the JSON text of the field `id`; empty if the line has none, or is not an object."""
    try:
        return bytes(msgspec.json.decode(line, type=_Request).id)
    except (ValueError, RecursionError):
        return b""
