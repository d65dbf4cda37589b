# SPDX-License-Identifier: Apache-2.0
"""One POST on a connection of its own: HTTP/1.0, so that answers are never sent in chunks."""

import asyncio
import ssl
from typing import Final

from cometmq.remoting.errors import CometError

ANSWER_BYTES_MAX: Final = 1 << 20


class HttpError(CometError):
    """There is no usable answer; the server may have served the request."""


class NotSent(HttpError):
    """The request was certainly not served."""


async def post(
    host: str, port: int, path: str, body: bytes, *, tls: ssl.SSLContext | None, token: str = ""
) -> tuple[int, bytes]:
    """Send a POST request; return the response's status and body. The caller sets the deadline."""
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    except OSError as error:
        raise NotSent(f"cannot connect to {host}:{port}: {error}") from error
    try:
        headers = [
            f"POST {path} HTTP/1.0",
            f"Host: {host}:{port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *([f"Authorization: {token}"] if token else []),
        ]
        writer.write("\r\n".join([*headers, "", ""]).encode() + body)
        await writer.drain()
        answer = await _read(reader)
    except OSError as error:
        raise HttpError(f"{host}:{port} closed the connection: {error}") from error
    finally:
        writer.transport.abort()  # the answer is complete or does not matter
    return _parsed(answer, f"{host}:{port}")


async def _read(reader: asyncio.StreamReader) -> bytes:
    parts = bytearray()
    while part := await reader.read(65_536):
        parts += part
        if len(parts) > ANSWER_BYTES_MAX:
            raise HttpError(f"an answer has more than {ANSWER_BYTES_MAX} bytes")
    return bytes(parts)


def _parsed(answer: bytes, address: str) -> tuple[int, bytes]:
    head, separator, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    words = lines[0].split(maxsplit=2)
    if not (separator and lines[0].startswith(b"HTTP/") and len(words) > 1 and words[1].isdigit()):
        raise HttpError(f"{address} answered {answer[:80]!r}, which is not HTTP")
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip() != b"%d" % len(body):
            raise HttpError(f"{address} closed the connection in the middle of its answer")
    return int(words[1]), body
