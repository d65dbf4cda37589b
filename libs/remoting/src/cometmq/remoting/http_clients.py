# SPDX-License-Identifier: Apache-2.0
"""HTTP clients at a port of the remoting protocol, and the answers that their users see; pure.

The first four bytes of an HTTP request would be the length of a frame above a gigabyte, so no peer
of RocketMQ sends them. A gRPC client shows its user the status of the call, but only after it has
opened a stream: a connection that ends earlier is tried again until the call's deadline.
"""

import struct
from typing import Final

from cometmq.remoting.errors import RemoteProtocolError

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_METHODS: Final = (b"PRI ", b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN")
LENGTHS: Final = {int.from_bytes(method, "big"): method.decode().rstrip() for method in _METHODS}
"""The lengths that the first four bytes of HTTP requests would be, and these bytes."""
_GRPC: Final = (
    "this is a gRPC client of RocketMQ 5.x, and this port speaks the remoting protocol: use a"
    " remoting client, in Java rocketmq-client"
)
_HTTP: Final = (
    "this is an HTTP client, and this port speaks RocketMQ's remoting protocol: use a remoting"
    " client; metrics and health checks have a port of their own (httpPort)"
)
FRAME_BYTES_MAX: Final = 16_384
RECEIVED_BYTES_MAX: Final = 65_536
_HEAD_BYTES: Final = 9
_HEADERS, _SETTINGS, _GOAWAY = 1, 4, 7
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_UNIMPLEMENTED: Final = b"12"


class HttpSpoken(RemoteProtocolError):
    """The peer speaks HTTP."""

    def __init__(self, data: bytes) -> None:
        """`data` is what the peer has sent."""
        self.data = data
        self.code = int.from_bytes(data[:4], "big")
        """Stands for a request code; one of LENGTHS."""
        self.version = "HTTP/2" if data.startswith(PREFACE[:4]) else "HTTP/1"
        super().__init__(_GRPC if self.version == "HTTP/2" else _HTTP)


class Farewell:
    """The answer to one HTTP client."""

    def __init__(self, error: HttpSpoken) -> None:
        self._text = str(error).encode()
        self._is_http_2 = error.version == "HTTP/2"
        self._waiting = b""
        self._preface_left = len(PREFACE)
        self._received_bytes = 0
        self.is_over = False
        """Whether the whole answer was given."""

    def feed(self, data: bytes) -> bytes:
        """Return what must be sent after these bytes of the client."""
        if self.is_over:
            return b""
        if not self._is_http_2:
            return self._bad_request()
        out = [] if self._received_bytes else [_frame(_SETTINGS, 0, 0)]
        self._received_bytes += len(data)
        if self._received_bytes > RECEIVED_BYTES_MAX:
            return self.end()
        self._waiting += data[self._preface_left :]
        self._preface_left = max(0, self._preface_left - len(data))
        while len(self._waiting) >= _HEAD_BYTES:
            size = int.from_bytes(self._waiting[:3], "big")
            if size > FRAME_BYTES_MAX or len(self._waiting) < _HEAD_BYTES + size:
                break
            kind, flags = self._waiting[3], self._waiting[4]
            stream = int.from_bytes(self._waiting[5:_HEAD_BYTES], "big")
            self._waiting = self._waiting[_HEAD_BYTES + size :]
            if kind == _SETTINGS and not flags & _ACK:
                out.append(_frame(_SETTINGS, _ACK, 0))
            elif kind == _HEADERS:
                out += (self._trailers(stream), self.end(stream))
                break
        return b"".join(out)

    def end(self, last_stream: int = 0) -> bytes:
        """Return what must be sent before the connection ends."""
        if self.is_over:
            return b""
        self.is_over = True
        content = struct.pack(">II", last_stream, 0) + self._text
        return _frame(_GOAWAY, 0, 0, content) if self._is_http_2 else b""

    def _trailers(self, stream: int) -> bytes:
        """Return the whole answer to a call: its status and the reason."""
        fields = (
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"grpc-status", _UNIMPLEMENTED),
            (b"grpc-message", self._text),
        )
        content = b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)
        return _frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, content)

    def _bad_request(self) -> bytes:
        self.is_over = True
        return (
            b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b\n" % (len(self._text) + 1, self._text)
        )


def _frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    """Return a frame of HTTP/2 (RFC 9113, 4.1)."""
    return struct.pack(">I", len(content))[1:] + struct.pack(">BBI", kind, flags, stream) + content


def _string(text: bytes) -> bytes:
    """Return a string literal of HPACK (RFC 7541, 5.2) of less than 255 bytes."""
    size = len(text)
    return (bytes((size,)) if size < 127 else bytes((127, size - 127))) + text
