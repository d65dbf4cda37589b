# SPDX-License-Identifier: Apache-2.0
"""A minimal remoting client, just enough to check whether a server is up.

It does not use `cometmq.remoting`: code that judges a server must not share code with it.
"""

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

GET_BROKER_CLUSTER_INFO: Final = 106
CURRENT_VERSION: Final = 401
_ANSWER_FLAG: Final = 1
_LENGTHS: Final = struct.Struct(">II")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF


@dataclass(frozen=True)
class Answer:
    """Code, remark, extension fields and body of a response."""

    code: int
    remark: str | None
    fields: Mapping[str, str]
    body: bytes


class Connection:
    """A connection to a server that carries one request at a time."""

    def __init__(self, address: str, *, timeout_s: float = 60.0) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._opaque = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = CURRENT_VERSION,
    ) -> Answer:
        self._opaque += 1
        header = json.dumps(
            {
                "code": code,
                "language": "JAVA",
                "version": version,
                "opaque": self._opaque,
                "flag": 0,
                "extFields": dict(fields or {}),
                "serializeTypeCurrentRPC": "JSON",
            }
        ).encode()
        lengths = _LENGTHS.pack(4 + len(header) + len(body), len(header))
        self._socket.sendall(lengths + header + body)
        while True:
            answer_header, answer_body = self._read_frame()
            if answer_header["opaque"] == self._opaque and answer_header["flag"] & _ANSWER_FLAG:
                return Answer(
                    code=answer_header["code"],
                    remark=answer_header.get("remark"),
                    fields=answer_header.get("extFields") or {},
                    body=answer_body,
                )

    def _read_frame(self) -> tuple[dict[str, Any], bytes]:
        total, header_word = _LENGTHS.unpack(_read_exactly(self._socket, _LENGTHS.size))
        rest = _read_exactly(self._socket, total - 4)
        header_length = header_word & _HEADER_LENGTH_MASK
        header: dict[str, Any] = json.loads(rest[:header_length])
        return header, rest[header_length:]


def call(
    address: str,
    code: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    timeout_s: float = 60.0,
) -> Answer:
    with Connection(address, timeout_s=timeout_s) as connection:
        return connection.call(code, fields, body)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    """Read `size` bytes; raise an error if the peer closes the connection first."""
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the peer closed the connection")
        data += part
    return bytes(data)


def registered_brokers(namesrv_addr: str) -> set[str]:
    """Return the names of a name server's brokers; empty while it is not responding."""
    try:
        answer = call(namesrv_addr, GET_BROKER_CLUSTER_INFO)
    except OSError:
        return set()
    text = answer.body.decode()
    return set(_names_in_table(text)) if answer.code == 0 else set()


def _names_in_table(text: str) -> list[str]:
    """Return the value of every `brokerName` key; the dialect leaves integer keys unquoted."""
    return [part.split('"', 2)[1] for part in text.split('"brokerName":')[1:]]
