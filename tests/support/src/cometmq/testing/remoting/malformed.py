# SPDX-License-Identifier: Apache-2.0
"""Requests of any code whose header or body is empty, cut off, of another form, or random."""

import inspect
import struct
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Final

import msgspec

from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.errors import CommandError, RemoteProtocolError
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.raw import RawCommand
from cometmq.testing.remoting.frames import encode_frame
from cometmq.testing.remoting.peer import FakePeer

NAME: Final = "T"
"""The value of all strings in header fields; a test may create a topic or group with this name."""
_VALUES: Final = ("", "x", "-1", "9223372036854775808", "\0", "{", "é" * 300)
_RECORD: Final = encode_record(
    NewMessage(NAME, 0, 0, 0, 1, bytes(8), bytes(8), b"body", f"PGROUP\x01{NAME}"), 0, 0, 1
)
_JSON: Final = b'{"group":"T","consumerGroup":"T","clientId":"c","topic":"T","table":{"a":1}}'
_BODIES: Final = (
    *(b"", b"{", b"{}", b"[]", b"[1]", b"null", b"1", b'"T"', b"\xff" * 9, b"x\x9c", bytes(99)),
    *(b'{"a":{"b":[{}]}}', b"[" * 3_000, b"T=1\nT", _JSON, _JSON[:-1], _RECORD),
    *(_RECORD[:size] for size in (1, 4, 8, 40, 88, len(_RECORD) - 1)),
    *(_RECORD[:4] + bytes(4) + _RECORD[8:], b"\x7f\xff\xff\xff" + _RECORD[4:], _RECORD + b"x"),
)


def malformed(code: int, random: Random) -> Iterator[bytes]:
    """Yield requests of a code, as frames; some are valid, and their opaques are not unique."""
    ext = _plain_fields(code)
    noise = [random.randbytes(random.choice((5, 90, 400))) for _ in range(4)]
    bodies = (*_BODIES, *noise, *(random.randbytes(4) + _RECORD[4:] for _ in range(2)))
    headers = [{}, *({**ext, name: value} for name in ext for value in _VALUES)]
    headers += [{other: ext[other] for other in ext if other != name} for name in ext]
    for body in bodies:
        yield _frame(code, ext, body)
    for header in headers:
        yield _frame(code, header, random.choice((b"", _JSON, _RECORD)))
    whole = _frame(code, ext, _RECORD)
    head_bytes = struct.unpack_from(">I", whole, 4)[0] & 0xFFFFFF
    for _ in range(4):
        damaged = bytearray(whole)
        damaged[8 + random.randrange(head_bytes)] = random.randrange(256)
        yield bytes(damaged)


async def failures(
    handlers: Mapping[int, Any], context: object, code: int, random: Random
) -> list[Exception]:
    """Serve malformed requests of a code; return the exceptions of its handler that are not
    refusals.

    Raise AssertionError if no request reaches the handler.
    """
    codec, found, served = Codec(COMMANDS), [], 0
    for request in malformed(code, random):
        connection = Connection(codec, FakePeer())
        try:
            calls = connection.receive(request, 0)
        except RemoteProtocolError:
            continue
        for call in calls:
            if any(call is fault.call for fault in connection.faults) or call.code != code:
                continue
            served += 1
            try:
                answer = handlers[code](context, call)
                if inspect.isawaitable(answer):
                    await answer
            except CommandError:
                continue
            except Exception as error:  # noqa: BLE001  # as the dispatcher
                found.append(error)
    assert served, "no request reaches the handler"
    return found


def _plain_fields(code: int) -> dict[str, str]:
    """Return a value that fits its type for each field of a request's header."""
    ext = {}
    for field in msgspec.structs.fields(COMMANDS[code].header_type):
        kind = str(field.type)
        ext[field.encode_name] = "0" if "int" in kind else "true" if "bool" in kind else NAME
    return ext


def _frame(code: int, ext: dict[str, str], body: bytes) -> bytes:
    return encode_frame(RawCommand(code=code, ext=ext, body=body))
