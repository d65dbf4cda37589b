# SPDX-License-Identifier: Apache-2.0
"""The smallest remoting call: enough to ask a server whether it serves.

Written without `cometmq.remoting` on purpose: what judges a server must not share its code.
"""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

GET_BROKER_CLUSTER_INFO: Final = 106
_LENGTHS: Final = struct.Struct(">II")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF


@dataclass(frozen=True)
class Answer:
    """Code, remark, extension fields and body of a response."""

    code: int
    remark: str | None
    fields: Mapping[str, str]
    body: bytes


def call(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    timeout_s: float = 3.0,
) -> Answer:
    """Send one request with a JSON header on its own connection and read the answer."""
    header = json.dumps(
        {
            "code": code,
            "language": "JAVA",
            "version": 401,
            "opaque": 1,
            "flag": 0,
            "extFields": dict(fields or {}),
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    frame = _LENGTHS.pack(4 + len(header) + len(body), len(header)) + header + body
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=timeout_s) as connection:
        connection.settimeout(timeout_s)
        connection.sendall(frame)
        return _read_answer(connection)


def _read_answer(connection: socket.socket) -> Answer:
    """Read one frame; its header must be JSON, as the request's was."""
    total, header_word = _LENGTHS.unpack(_read_exactly(connection, _LENGTHS.size))
    rest = _read_exactly(connection, total - 4)
    header_length = header_word & _HEADER_LENGTH_MASK
    header: dict[str, Any] = json.loads(rest[:header_length])
    return Answer(
        code=header["code"],
        remark=header.get("remark"),
        fields=header.get("extFields") or {},
        body=rest[header_length:],
    )


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes or fail when the peer closes."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the peer closed the connection")
        data += part
    return bytes(data)


def registered_brokers(namesrv_addr: str) -> set[str]:
    """Names of the brokers that a name server lists; empty while it does not answer."""
    try:
        answer = call(namesrv_addr, GET_BROKER_CLUSTER_INFO)
    except OSError:
        return set()
    text = answer.body.decode()
    return set(_names_in_table(text)) if answer.code == 0 else set()


def _names_in_table(text: str) -> list[str]:
    """The values of every `brokerName` key; the dialect leaves integer keys unquoted."""
    return [part.split('"', 2)[1] for part in text.split('"brokerName":')[1:]]
