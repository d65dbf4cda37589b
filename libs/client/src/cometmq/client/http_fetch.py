# SPDX-License-Identifier: Apache-2.0
"""Fetches a whole answer over HTTP, within a time and a number of bytes.

The time limit of urlopen is for each read: a server that sends a byte a second would hold the
caller for ever. Here it is for the answer with its head, its body and all redirects.
"""

import io
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from time import monotonic
from typing import Any
from urllib.request import HTTPHandler, HTTPSHandler, Request, build_opener


def fetch(request: str | Request, *, timeout_s: float, bytes_max: int) -> bytes:
    """Return the body of the answer; blocks.

    Raise OSError (HTTPError for a refusal) or HTTPException if there is no whole answer in time,
    and ValueError if it has more than `bytes_max` bytes. A name that stands for several addresses
    may take the time for each of them until one accepts the connection.
    """
    deadline = _Deadline(timeout_s)
    opener = build_opener(_Http(deadline), _Https(deadline))
    with opener.open(request, timeout=timeout_s) as answer:
        body: bytes = answer.read(bytes_max + 1)
    if len(body) > bytes_max:
        raise ValueError(f"the answer has more than {bytes_max:,} bytes")
    return body


class _Deadline:
    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._at = monotonic() + timeout_s

    def left_s(self) -> float:
        """Return the remaining time; raise TimeoutError if there is none."""
        left_s = self._at - monotonic()
        if left_s <= 0:
            raise TimeoutError(f"no whole answer within {self._timeout_s:g} s")
        return left_s

    def connection(self, kind: type[HTTPConnection]) -> Callable[..., HTTPConnection]:
        """Return a constructor of connections that end at the deadline."""

        def connected(host: str, **options: Any) -> HTTPConnection:
            connection = kind(host, **options | {"timeout": self.left_s()})
            connection.response_class = respond
            return connection

        respond: Any = self._response
        return connected

    def _response(self, sock: Any, *args: Any, **options: Any) -> HTTPResponse:
        response = HTTPResponse(sock, *args, **options)
        response.fp = io.BufferedReader(_Reads(self, sock, response.fp.detach()))
        return response


class _Reads(io.RawIOBase):
    """Reads of a socket, each with the time that is left."""

    def __init__(self, deadline: _Deadline, sock: Any, raw: io.RawIOBase) -> None:
        self._deadline = deadline
        self._sock = sock
        self._raw = raw

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left_s())
        try:
            return self._raw.readinto(buffer)
        except TimeoutError:
            self._deadline.left_s()  # its error has the better text
            raise

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Http(HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: Request) -> Any:
        return self.do_open(self._deadline.connection(HTTPConnection), req)


class _Https(HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: Request) -> Any:
        return self.do_open(self._deadline.connection(HTTPSConnection), req)
