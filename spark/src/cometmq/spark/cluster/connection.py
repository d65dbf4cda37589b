# SPDX-License-Identifier: Apache-2.0
"""A blocking, pipelined connection from a Spark worker to a broker or a name server.

`cometmq.remoting` implements the protocol; this module only sends and receives bytes. It uses
neither threads nor an event loop, and opens nothing at import, because Spark forks its workers.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Collection, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final, Self

import msgspec

from cometmq.client.credentials import credentials_from_file
from cometmq.client.errors import InvalidArgument
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Request, Response
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection, Done
from cometmq.remoting.errors import (
    CometError,
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    SettingsError,
    command_error,
)
from cometmq.remoting.signature import SessionCredentials, Signer
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.remoting.transport.tls_contexts import client_context
from cometmq.spark.errors import OptionError, Refused
from cometmq.spark.options.definitions import Options

FRAME_BYTES_MAX: Final = 256 << 20
"""Largest accepted answer: the offsets of all groups of a large broker exceed 16 MiB."""

CONNECT_TIMEOUT_MS: Final = 3000
_PIPELINE_MAX: Final = 256
_READ_BYTES: Final = 1 << 18
_SUCCESS: Final = (int(ResponseCode.SUCCESS),)
BUSY_CODES: Final = frozenset(
    {int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.SERVICE_NOT_AVAILABLE)}
)
"""Rejections after which a retry may succeed."""


class LinkSettings(msgspec.Struct, frozen=True):
    """Timeout, TLS settings and credentials of a connection."""

    timeout_ms: int = 3000
    tls: TlsSettings = TlsSettings()
    credentials: SessionCredentials | None = None
    secret_file: str = ""

    @classmethod
    def of(cls, options: Options) -> Self:
        """Extract the settings from options; raise OptionError if they contradict each other."""
        if bool(options.access_key) != bool(options.secret_key):
            raise OptionError("options `accessKey` and `secretKey` must be set together")
        if options.access_key and options.secret_file:
            raise OptionError("set either `accessKey` and `secretKey`, or `secretFile`, not both")
        credentials = None
        if options.access_key:
            credentials = SessionCredentials(
                options.access_key, options.secret_key, options.security_token
            )
        tls = TlsSettings(
            enable=options.use_tls,
            cert_path=_path(options.tls_cert_file),
            key_path=_path(options.tls_key_file),
            trust_cert_path=_path(options.tls_ca_file),
            auth_server=options.tls_verify,
        )
        return cls(options.pull_timeout_ms, tls, credentials, options.secret_file)

    def session(self) -> SessionCredentials | None:
        """Return the credentials; secret files are re-read on every call to allow rotation."""
        if not self.secret_file:
            return self.credentials
        try:
            return credentials_from_file(self.secret_file)
        except InvalidArgument as error:
            raise OptionError(f"option `secretFile`: {error}") from error


class Closable:
    """A context manager that calls `close` on exit."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BrokerConnection(Closable):
    """A connection with any number of pending requests."""

    def __init__(self, address: str, settings: LinkSettings) -> None:
        """Connect, or raise ConnectFailed."""
        self.address = address
        self._settings = settings
        self._credentials = settings.session()
        self._signer = Signer(self._credentials.secret_key) if self._credentials else None
        self._socket = _connect(address, settings.tls)
        self._connection = Connection(_codec(), None)  # type: ignore[arg-type]  # no server side

    @property
    def pending_count(self) -> int:
        return self._connection.pending_count

    def submit(self, request: Request, done: Done) -> None:
        """Queue a request. A later call to `exchange` passes the answer, or an error, to `done`."""
        if self._signer is not None:
            request = self._signed(request, self._signer)
        deadline_ms = _now_ms() + self._settings.timeout_ms
        self._connection.invoke(request, deadline_ms=deadline_ms, done=done)

    def exchange(self) -> None:
        """Send queued requests, then wait until an answer arrives or a request times out.

        If the connection is lost, fail all pending requests and raise ConnectionLost.
        """
        try:
            self._flush()
            if self._connection.pending_count:
                self._receive()
        except (OSError, RemoteProtocolError) as error:
            lost = ConnectionLost(f"{self.address}: {error}")
            self._connection.lost(lost)
            raise lost from error

    def invoke(
        self,
        code: int,
        header: msgspec.Struct | None = None,
        body: bytes = b"",
        *,
        ok: Collection[int] = _SUCCESS,
    ) -> Response:
        """Send a request and return its answer; raise Refused for a code that is not in `ok`."""
        answers = self.invoke_all([Request(code, header, body)])
        return accepted(answers[0], ok)

    def invoke_all(self, requests: Sequence[Request]) -> list[Response | CometError]:
        """Send all requests at once; return answers and errors in the order of the requests."""
        answers: dict[int, Response | CometError] = {}
        for index, request in enumerate(requests):
            self.submit(request, partial(answers.__setitem__, index))
            # Read in between: otherwise both peers could block on full send buffers.
            while self._connection.pending_count >= _PIPELINE_MAX:
                self.exchange()
        while len(answers) < len(requests):
            self.exchange()
        return [answers[index] for index in range(len(requests))]

    def close(self) -> None:
        """Close the connection; pending requests are dropped."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _flush(self) -> None:
        if self._connection.out:
            self._socket.settimeout(self._settings.timeout_ms / 1000)
            self._socket.sendall(self._connection.take())

    def _receive(self) -> None:
        """Read once; fail the requests whose deadline has passed."""
        deadline_ms = self._connection.next_deadline_ms
        assert deadline_ms is not None
        self._socket.settimeout(max(1, deadline_ms - _now_ms()) / 1000)
        try:
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            self._connection.expire(_now_ms())
            return
        if not data:
            raise ConnectionLost("closed by the peer")
        # Requests from the broker, such as notifications about consumers, are ignored here.
        self._connection.receive(data, 0)
        # A long answer may arrive slowly, but a server that sends anything else without an end
        # would never let the socket time out.
        late_ms = _now_ms() - self._settings.timeout_ms
        if deadline_ms <= late_ms:
            self._connection.expire(late_ms)

    def _signed(self, request: Request, signer: Signer) -> Request:
        assert self._credentials is not None
        ext = _codec().encoder.ext(request.header)
        ext.update(request.ext or {})
        body = request.body
        whole = body if isinstance(body, (bytes, bytearray, memoryview)) else b"".join(body)
        signer.add_to(ext, whole, self._credentials)
        return Request(request.code, None, whole, ext, request.is_oneway)


class Connections(Closable):
    """Connections keyed by address, each opened on first use."""

    def __init__(self, settings: LinkSettings) -> None:
        self._settings = settings
        self._open: dict[str, BrokerConnection] = {}

    def get(self, address: str) -> BrokerConnection:
        connection = self._open.get(address)
        if connection is None:
            connection = self._open[address] = BrokerConnection(address, self._settings)
        return connection

    def drop(self, address: str) -> None:
        connection = self._open.pop(address, None)
        if connection is not None:
            connection.close()

    def with_pending(self) -> list[BrokerConnection]:
        return [connection for connection in self._open.values() if connection.pending_count]

    def close(self) -> None:
        for address in list(self._open):
            self.drop(address)


def accepted(answer: Response | CometError, ok: Collection[int] = _SUCCESS) -> Response:
    """Return the answer if its code is in `ok`; otherwise raise it as an error."""
    if isinstance(answer, CometError):
        raise answer
    if answer.code not in ok:
        raise Refused(str(command_error(answer.code, answer.remark)))
    return answer


@cache
def _codec() -> Codec:
    return Codec(COMMANDS, frame_bytes_max=FRAME_BYTES_MAX)


def _connect(address: str, tls: TlsSettings) -> socket.socket:
    try:
        host, port = parse_address(address)
        context = client_context(tls) if tls.enable else None
    except SettingsError as error:
        raise OptionError(str(error)) from error
    try:
        plain = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_MS / 1000)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if context is None else context.wrap_socket(plain)
    except (OSError, ssl.SSLError) as error:
        reason = str(error) or type(error).__name__
        raise ConnectFailed(f"cannot connect to {address}: {reason}") from error


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
