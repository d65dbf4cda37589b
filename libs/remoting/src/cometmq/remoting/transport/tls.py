# SPDX-License-Identifier: Apache-2.0
"""TLS on the same port as plain connections, and the contexts of both ends.

A plain frame never begins with 0x16, a TLS handshake always does; so a server decides when the
first byte is there, inside a connection that all bounds already hold for. The pipe between
bytes of the socket and bytes of the protocol knows no socket and no loop.
"""

import contextlib
import ssl
import tempfile
from pathlib import Path
from typing import Final

from cometmq.remoting.errors import LocalProtocolError, RemoteProtocolError, SettingsError
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.remoting.transport.settings import TlsMode, TlsSettings
from cometmq.remoting.types import Buffer

_READ_BYTES: Final = 64 * 1024
_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


class TlsPipe:
    """The server's end of one TLS connection, over bytes."""

    __slots__ = ("_incoming", "_is_ready", "_outgoing", "_tls", "is_finished")

    def __init__(self, context: ssl.SSLContext) -> None:
        """Wait for the peer's first handshake message."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_ready = False
        self.is_finished = False

    def decrypt(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the plain bytes that came, and bytes to send for TLS's own sake."""
        self._incoming.write(data)
        plain: list[bytes] = []
        try:
            with contextlib.suppress(ssl.SSLWantReadError):  # the rest comes with the next bytes
                if not self._is_ready:
                    self._tls.do_handshake()
                    self._is_ready = True
                while chunk := self._tls.read(_READ_BYTES):
                    plain.append(chunk)
                self.is_finished = True
        except ssl.SSLZeroReturnError:
            self.is_finished = True
        except ssl.SSLError as error:
            raise RemoteProtocolError(f"TLS failed: {error}") from error
        return b"".join(plain), self._outgoing.read()

    def encrypt(self, data: Buffer) -> bytes:
        """Return plain bytes as TLS records."""
        if not self._is_ready:
            raise LocalProtocolError("nothing can be sent before the handshake")
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()

    def close(self) -> bytes:
        """Return the bytes that say goodbye."""
        with contextlib.suppress(ssl.SSLError):  # the peer's goodbye may never come
            self._tls.unwrap()
        return self._outgoing.read()


class TlsGate:
    """What a server does with the first byte of each connection."""

    def __init__(self, settings: TlsSettings) -> None:
        """Read the certificate now, so that a wrong one is seen at start."""
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        self._files = self._file_times()
        if settings.mode != TlsMode.DISABLED and settings.cert_path is not None:
            self._context = server_context(settings)

    def open(self, *, is_tls: bool) -> TlsPipe | None:
        """Return the pipe of a TLS connection, None for a plain one; or refuse it."""
        mode = self._settings.mode
        if is_tls:
            if mode == TlsMode.DISABLED:
                raise RemoteProtocolError("TLS is disabled here")
            return TlsPipe(self._server_context())
        if mode == TlsMode.ENFORCING:
            raise RemoteProtocolError("plain connections are refused here")
        return None

    def reload(self) -> bool:
        """Read certificate and key again if both files changed; say whether they were."""
        times = self._file_times()
        if any(new == old for new, old in zip(times, self._files, strict=True)):
            return False
        context = server_context(self._settings)
        self._context, self._files = context, times
        return True

    def _server_context(self) -> ssl.SSLContext:
        if self._context is None:  # test mode: made when the first peer wants it
            try:
                self._context = server_context(self._settings)
            except SettingsError as error:
                raise RemoteProtocolError(str(error)) from error
        return self._context

    def _file_times(self) -> tuple[int, int]:
        paths = (self._settings.cert_path, self._settings.key_path)
        times = [p.stat().st_mtime_ns if p is not None and p.exists() else 0 for p in paths]
        return times[0], times[1]


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.cert_path is not None:
        _load_identity(context, settings)
    elif settings.test_mode:
        _load_test_identity(context)
    else:
        raise SettingsError("TLS needs tls.server.certPath and tls.server.keyPath")
    if settings.need_client_auth not in _CLIENT_AUTH:
        raise SettingsError(f"tls.server.need.client.auth={settings.need_client_auth}")
    if not settings.test_mode:
        context.verify_mode = _CLIENT_AUTH[settings.need_client_auth]
        _load_trust(context, settings)
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a client; names are not checked, as servers are given by address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    if settings.test_mode or not settings.auth_server:
        context.verify_mode = ssl.CERT_NONE
    else:
        _load_trust(context, settings)
    if settings.cert_path is not None:
        _load_identity(context, settings)
    return context


def _load_identity(context: ssl.SSLContext, settings: TlsSettings) -> None:
    assert settings.cert_path is not None
    try:
        context.load_cert_chain(settings.cert_path, settings.key_path, settings.key_password or "")
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"TLS certificate {settings.cert_path}: {error}") from error


def _load_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.trust_cert_path is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(settings.trust_cert_path)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"TLS trust {settings.trust_cert_path}: {error}") from error


def _load_test_identity(context: ssl.SSLContext) -> None:
    """Load a certificate made now; the ssl module reads such things from files only."""
    with tempfile.TemporaryDirectory(prefix="cometmq-tls-") as folder:
        path = Path(folder) / "test.pem"
        path.touch(mode=0o600)
        path.write_text(self_signed_pem("cometmq-test"), encoding="ascii")
        context.load_cert_chain(path)
