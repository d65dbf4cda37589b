# SPDX-License-Identifier: Apache-2.0
"""TLS on the same port as plain connections.

A TLS handshake always begins with the byte 0x16, and a plain frame never does. A server can
therefore tell them apart by the first byte, on a connection to which all limits already apply. The
pipe converts between the socket's bytes and the protocol's; it uses neither a socket nor a loop.
"""

import asyncio
import contextlib
import ssl
from collections import Counter
from time import time  # noqa: TID251  # certificates expire by the system's clock
from typing import Any, Final, TypeAlias

from cometmq.remoting.errors import LocalProtocolError, RemoteProtocolError, SettingsError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.settings import TlsMode, TlsSettings
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.remoting.transport.tls_contexts import (
    ServerTls,
    TlsEngine,
    WatchedContext,
    server_tls,
)
from cometmq.remoting.types import Buffer

_READ_BYTES: Final = 64 * 1024
_RECORD_HEADER_BYTES: Final = 5
_RECORDS_PER_FEED: Final = 32
IDLE_RECORDS_MAX: Final = 32
"""How many records without data a peer may send after the handshake; as many as rustls allows in a
row. A new key, which such a record may ask for, takes as long as 50 KB of data."""
IDLE_RECORD_BYTES: Final = 1 << 20
"""A peer may send one more record without data for each such number of data bytes. Peers change
their keys only after gigabytes.
"""


class UnsupportedPeerError(Exception):
    """Native code supports nothing that the peer offers, so OpenSSL must serve the connection."""

    def __init__(self, pipe: "TlsPipe", received: bytes) -> None:
        super().__init__()
        self.pipe = pipe
        self.received = received


class NativePipe:
    """Encrypts and decrypts one connection with a native session (`cometmq.accel.TlsSession`)."""

    __slots__ = ("_context", "_seen", "session")

    def __init__(self, session: Any, context: ssl.SSLContext) -> None:
        """Use `context` if native code supports nothing that the peer offers."""
        self.session = session
        self._context: ssl.SSLContext | None = context
        self._seen = b""  # what was received before anything was sent

    @property
    def is_ready(self) -> bool:
        """Whether the handshake is complete."""
        return bool(self.session.is_ready)

    @property
    def is_finished(self) -> bool:
        """Whether the peer has announced the end of its input."""
        return bool(self.session.is_finished)

    def decrypt(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the decrypted bytes, and the bytes that TLS itself has to send."""
        try:
            plain, answer = self.session.decrypt(data)
        except ValueError as error:
            if self._context is not None and self.session.is_incompatible:
                raise UnsupportedPeerError(TlsPipe(self._context), self._seen + data) from error
            raise RemoteProtocolError(f"TLS failed: {error}") from error
        if self._context is not None:
            self._seen += data
            if answer:
                self._context, self._seen = None, b""
        return plain, answer

    def encrypt(self, data: Buffer) -> bytes:
        """Return plain bytes as TLS records; raise LocalProtocolError before the handshake."""
        try:
            sealed: bytes = self.session.encrypt(data)
        except ValueError as error:
            raise LocalProtocolError(str(error)) from error
        return sealed

    def alert(self) -> bytes:
        """Return the alert that tells the peer why `decrypt` failed; empty if there is none."""
        return bytes(self.session.alert())

    def close(self) -> bytes:
        """Return the alert that announces the end of the connection."""
        return bytes(self.session.close())


class Records:
    """Finds the ends of records in a TLS stream that arrives in pieces of any size."""

    __slots__ = ("_header", "_left")

    def __init__(self) -> None:
        self._header = b""  # the received part of a header
        self._left = 0  # the bytes missing from a record whose header is known

    def take(self, data: bytes, start: int) -> tuple[int, int]:
        """Return where to cut the bytes from `start`, and how many records end before the cut: at
        most _RECORDS_PER_FEED.
        """
        count = 0
        while count < _RECORDS_PER_FEED:
            if not self._left:
                end = start + _RECORD_HEADER_BYTES - len(self._header)
                header = self._header + data[start:end]
                start = min(end, len(data))
                if len(header) < _RECORD_HEADER_BYTES:
                    self._header = header
                    break
                self._header, self._left = b"", int.from_bytes(header[3:])
            taken = min(self._left, len(data) - start)
            start += taken
            self._left -= taken
            if self._left:
                break
            count += 1
        return start, count


class TlsPipe:
    """Encrypts and decrypts one connection with OpenSSL.

    OpenSSL processes any number of records without data in one call, so they are counted and
    limited here.
    """

    __slots__ = (
        "_idle_left",
        "_incoming",
        "_outgoing",
        "_records",
        "_tls",
        "is_finished",
        "is_ready",
    )

    session: None = None

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._records = Records()
        self._idle_left: float = IDLE_RECORDS_MAX
        self.is_ready = False
        self.is_finished = False

    def decrypt(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the decrypted bytes, and the bytes that TLS itself has to send."""
        plain: list[bytes] = []
        start, view = 0, memoryview(data)
        while start < len(data) and not self.is_finished:
            end, count = self._records.take(data, start)
            self._incoming.write(view[start:end])
            start, known, was_ready = end, len(plain), self.is_ready
            try:
                self._read(plain)
            except ssl.SSLError as error:
                raise RemoteProtocolError(f"TLS failed: {error}") from error
            if was_ready:
                self._note_records(count, plain[known:])
        return b"".join(plain), self._outgoing.read()

    def _read(self, plain: list[bytes]) -> None:
        """Append the data of each record that has arrived, one at a time."""
        try:
            with contextlib.suppress(ssl.SSLWantReadError):  # the rest arrives with the next bytes
                if not self.is_ready:
                    self._tls.do_handshake()
                    self.is_ready = True
                while chunk := self._tls.read(_READ_BYTES):
                    plain.append(chunk)
                self.is_finished = True
        except ssl.SSLZeroReturnError:
            self.is_finished = True

    def _note_records(self, count: int, chunks: list[bytes]) -> None:
        """Count records without data, which cost much more time than bytes."""
        self._idle_left -= count - len(chunks)
        if self._idle_left < 0 and not self.is_finished:
            raise RemoteProtocolError("TLS failed: too many records without data")
        earned = sum(map(len, chunks)) / IDLE_RECORD_BYTES
        self._idle_left = min(self._idle_left + earned, IDLE_RECORDS_MAX)

    def encrypt(self, data: Buffer) -> bytes:
        """Return plain bytes as TLS records; raise LocalProtocolError before the handshake."""
        if not self.is_ready:
            raise LocalProtocolError("nothing can be sent before the handshake")
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()

    def alert(self) -> bytes:
        """Return the alert that tells the peer why `decrypt` failed; empty if there is none."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """Return the alert that announces the end of the connection."""
        with contextlib.suppress(ssl.SSLError):  # the peer's own alert may never arrive
            self._tls.unwrap()
        return self._outgoing.read()


Pipe: TypeAlias = NativePipe | TlsPipe
"""The server's end of one TLS connection, which works on bytes instead of a socket."""


def tls_advice(error: Exception) -> str:
    """Return advice if the server's alert asks for a client certificate, otherwise ""."""
    if not isinstance(error, ssl.SSLError) or "CERTIFICATE_REQUIRED" not in str(error):
        return ""
    return (
        "; the server asks for a client certificate: set tls.client.certPath and"
        " tls.client.keyPath (in the file of --tls-config of cometmq), or in Python cert_path and"
        " key_path of TlsSettings"
    )


TLS_REQUIRED: Final = (
    "TLS is required on this port (tls.server.mode=enforcing): connect with TLS, "
    "for example tls.enable=true, the option --tls of cometmq, or in Python the option "
    "tls=TlsSettings(enable=True)"
)
TLS_DISABLED: Final = "TLS is disabled on this port (tls.server.mode=disabled)"
REFUSED_LINGER_S: Final = 1.0
"""How long a server still answers requests on a plain connection that it has refused.

If it closed the connection at once, requests already on their way would fail without giving the
reason.
"""
NO_TLS_ALERT: Final = bytes((0x15, 3, 1, 0, 2, 2, 49))
"""The fatal alert `access_denied`, for a peer that starts TLS where it is off (RFC 5246, 7.2)."""


class TlsGate:
    """Admits or refuses TLS and plain connections, according to the settings."""

    def __init__(self, settings: TlsSettings) -> None:
        """Load the certificate now, so that a faulty one is reported at startup."""
        self._settings = settings
        self._engine: TlsEngine | None = None
        self._watched: WatchedContext[ServerTls] | None = None
        self.handshakes: Counter[bytes] = Counter()
        """The incomplete handshakes of each host."""
        is_configured = settings.cert_path is not None or settings.need_client_auth != "none"
        if settings.mode != TlsMode.DISABLED and is_configured:
            self._watched = WatchedContext(settings, self._build)

    def use(self, engine: TlsEngine) -> str:
        """Serve new connections with native code; return why it cannot serve them, or ""."""
        self._engine = engine
        if self._watched is None:
            return ""
        self._watched.rebuild()
        return self._watched.context.fault

    @property
    def watched(self) -> WatchedContext[ServerTls] | None:
        """The context whose files may change; None until the first one is built."""
        return self._watched

    def open(self, *, is_tls: bool) -> "Pipe | None":
        """Return the pipe of a TLS connection, or None for a plain one.

        Raise RemoteProtocolError if the settings do not allow the connection.
        """
        mode = self._settings.mode
        if is_tls:
            if mode == TlsMode.DISABLED:
                raise RemoteProtocolError(TLS_DISABLED)
            tls = self._server_tls()
            if tls.native is not None:
                return NativePipe(tls.native.session(), tls.context)
            return TlsPipe(tls.context)
        if mode == TlsMode.ENFORCING:
            raise RemoteProtocolError(TLS_REQUIRED)
        return None

    def _build(self, settings: TlsSettings) -> ServerTls:
        return server_tls(settings, self._engine)

    def _server_tls(self) -> ServerTls:
        if self._watched is None:  # test mode: build it for the first peer that uses TLS
            try:
                self._watched = WatchedContext(self._settings, self._build)
            except SettingsError as error:
                raise RemoteProtocolError(str(error)) from error
        return self._watched.context


class CertificateWatch:
    """Checks whether certificates have changed or expired, on a thread because it reads files."""

    def __init__(self, tasks: TaskSet, log: Log) -> None:
        self._tasks = tasks
        self._log = log
        self._is_looking = False

    def look(self, watched: "WatchedContext[Any] | None") -> None:
        """Start a check, unless the previous one is still running."""
        if watched is not None and watched.has_files and not self._is_looking:
            self._is_looking = True
            self._tasks.spawn(self._look(watched), name="remoting-tls")

    async def _look(self, watched: "WatchedContext[Any]") -> None:
        try:
            if await asyncio.to_thread(watched.refresh):
                self._log.info("certificate.reloaded")
                self.note_fault(getattr(watched.context, "fault", ""))
            if expired := watched.expired(time()):
                self._log.warning("certificate.expired", certificate=expired[0], since=expired[1])
        except SettingsError as error:
            self._log.error("certificate.unreadable", error=str(error))
        finally:
            self._is_looking = False

    def note_fault(self, fault: str) -> None:
        """Log why native code does not serve TLS connections, if it cannot."""
        if fault:
            self._log.info("certificate.unaccelerated", reason=fault)
