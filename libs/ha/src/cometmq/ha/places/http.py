# SPDX-License-Identifier: Apache-2.0
"""One HTTP/1.0 request per connection, so that responses are never chunked."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from cometmq.remoting.errors import CometError

ANSWER_BYTES_MAX: Final = 1 << 20
JSON: Final = "application/json"


class HttpError(CometError):
    """The response is missing or unusable; the server may have served the request."""


class NotSent(HttpError):
    """The request was not sent, so the server cannot have served it."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request, without the address of the server."""

    method: str
    path: str
    body: bytes = b""
    content_type: str = JSON
    token: str = ""
    """The value of the Authorization header, which is not sent if this is empty."""


async def send(
    host: str, port: int, request: Request, *, tls: ssl.SSLContext | None
) -> tuple[int, bytes]:
    """Send a request; return the response's status and body. The caller sets the deadline."""
    async with _sent(host, port, request, tls=tls) as reader:
        answer = await _read(reader)
    return _parsed(answer, f"{host}:{port}")


async def post(
    host: str, port: int, path: str, body: bytes, *, tls: ssl.SSLContext | None, token: str = ""
) -> tuple[int, bytes]:
    """Send a POST request with a JSON body, as `send` does."""
    request = Request(method="POST", path=path, body=body, token=token)
    return await send(host, port, request, tls=tls)


async def stream(
    host: str,
    port: int,
    request: Request,
    *,
    tls: ssl.SSLContext | None,
    waits_s: tuple[float, float],
) -> AsyncIterator[bytes]:
    """Yield b"" once the server has accepted a request, then the lines of its body as they arrive.

    `waits_s` bounds the wait for the status and for each line. Raise HttpError after a longer wait,
    and for any status but 200.
    """
    address = f"{host}:{port}"
    answer_s, line_s = waits_s
    async with _sent(host, port, request, tls=tls) as reader:
        try:
            async with asyncio.timeout(answer_s):
                head = await reader.readuntil(b"\r\n\r\n")
            status, _ = _parsed(head, address, is_whole=False)
            if status != 200:
                raise HttpError(f"{address} answered {status}")
            yield b""
            while True:
                async with asyncio.timeout(line_s):
                    line = await reader.readline()
                if not line:
                    return
                yield line
        except TimeoutError as error:
            raise HttpError(f"{address} was silent for more than {answer_s} s") from error
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            raise HttpError(f"{address} sent no usable response: {error}") from error


@asynccontextmanager
async def _sent(
    host: str, port: int, request: Request, *, tls: ssl.SSLContext | None
) -> AsyncIterator[asyncio.StreamReader]:
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=ANSWER_BYTES_MAX)
    except OSError as error:
        raise NotSent(f"cannot connect to {host}:{port}: {error}") from error
    try:
        headers = [
            f"{request.method} {request.path} HTTP/1.0",
            f"Host: {host}:{port}",
            f"Content-Type: {request.content_type}",
            f"Content-Length: {len(request.body)}",
            *([f"Authorization: {request.token}"] if request.token else []),
        ]
        writer.write("\r\n".join([*headers, "", ""]).encode() + request.body)
        await writer.drain()
        yield reader
    except OSError as error:
        raise HttpError(f"{host}:{port} closed the connection: {error}") from error
    finally:
        writer.transport.abort()  # the response is complete or no longer needed


async def _read(reader: asyncio.StreamReader) -> bytes:
    parts = bytearray()
    while part := await reader.read(65_536):
        parts += part
        if len(parts) > ANSWER_BYTES_MAX:
            raise HttpError(f"a response has more than {ANSWER_BYTES_MAX} bytes")
    return bytes(parts)


def _parsed(answer: bytes, address: str, *, is_whole: bool = True) -> tuple[int, bytes]:
    head, separator, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    words = lines[0].split(maxsplit=2)
    if not (separator and lines[0].startswith(b"HTTP/") and len(words) > 1 and words[1].isdigit()):
        raise HttpError(f"{address} answered {answer[:80]!r}, which is not HTTP")
    for line in lines[1:] if is_whole else ():
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length" and value.strip() != b"%d" % len(body):
            raise HttpError(f"{address} closed the connection in the middle of its response")
    return int(words[1]), body
