# SPDX-License-Identifier: Apache-2.0
"""The TLS contexts of both ends, built from files and rebuilt when the files change.

Compatibility: error messages name the keys of RocketMQ's `tls.properties`, or the names under which
the user has set them. If clients must present a certificate, it is always verified; RocketMQ
accepts any certificate unless `authClient` is set.
"""

import hashlib
import ssl
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.certificate import self_signed_pem
from cometmq.remoting.transport.settings import TlsSettings

_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}
_SERVER: Final = "tls.server"
_CLIENT: Final = "tls.client"
_ENCRYPTED: Final = b"ENCRYPTED"

Contents = tuple[bytes | None, ...]


class WatchedContext:
    """A TLS context that is rebuilt when its files change."""

    __slots__ = ("_build", "_changing", "_paths", "_seen", "_settings", "context")

    def __init__(
        self, settings: TlsSettings, build: Callable[[TlsSettings], ssl.SSLContext]
    ) -> None:
        """Build the first context; raise SettingsError if the files are unusable."""
        self._settings = settings
        self._build = build
        self._paths = (settings.cert_path, settings.key_path, settings.trust_cert_path)
        self._seen: Contents = tuple(self._digests())
        self._changing: Contents = self._seen
        self.context = build(settings)

    @property
    def has_files(self) -> bool:
        """Whether there are files to watch."""
        return any(self._paths)

    def refresh(self) -> bool:
        """Reload files that have changed and settled; return whether there is a new context.

        Blocks. A certificate and its key are replaced one after the other, so a change takes effect
        only if the next call finds the same content. Unusable files raise SettingsError once, and
        the old context remains in use until they change again.
        """
        contents = tuple(self._digests())
        is_at_rest = contents == self._changing
        self._changing = contents
        if contents == self._seen or not is_at_rest:
            return False
        self._seen = contents
        self.context = self._build(self._settings)
        return True

    def _digests(self) -> Iterator[bytes | None]:
        for path in self._paths:
            try:
                yield None if path is None else hashlib.sha256(path.read_bytes()).digest()
            except OSError:
                yield b""  # unreadable: building the context reports it


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.need_client_auth not in _CLIENT_AUTH:
        raise SettingsError(
            f"{as_given(settings, f'{_SERVER}.need.client.auth', settings.need_client_auth)}: "
            "must be none, optional or require"
        )
    if settings.cert_path is not None:
        _load_identity(context, settings, _SERVER)
    elif settings.test_mode and settings.need_client_auth != "require":
        _load_test_identity(context)
        return context
    else:
        cert, key = (name_of(settings, f"{_SERVER}.{it}") for it in ("certPath", "keyPath"))
        raise SettingsError(f"TLS needs {cert} and {key}")
    context.verify_mode = _CLIENT_AUTH[settings.need_client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        _load_trust(context, settings, _SERVER)
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context of a client.

    Host names are not checked, because servers are given by address.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    if settings.auth_server:
        _load_trust(context, settings, _CLIENT)
    else:
        context.verify_mode = ssl.CERT_NONE
    if settings.cert_path is not None:
        _load_identity(context, settings, _CLIENT)
    return context


def name_of(settings: TlsSettings, key: str) -> str:
    """Return the name under which the user sets a `tls.*` key."""
    return dict(settings.names).get(key, key)


def as_given(settings: TlsSettings, key: str, value: object) -> str:
    """Return a setting as the user has given it, such as `--tls-server-cert-path=FILE`."""
    name, _, place = name_of(settings, key).partition(" ")
    return f"{name}={value} {place}".rstrip()


def _load_identity(context: ssl.SSLContext, settings: TlsSettings, end: str) -> None:
    cert, key = settings.cert_path, settings.key_path or settings.cert_path
    assert cert is not None
    assert key is not None
    _read(cert, settings, f"{end}.certPath")
    key_text = _read(key, settings, f"{end}.keyPath")
    try:
        context.load_cert_chain(cert, key, settings.key_password or "")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise SettingsError(_identity_fault(error, settings, key_text, end)) from error


def _identity_fault(error: Exception, settings: TlsSettings, key_text: bytes, end: str) -> str:
    """Explain in one line why a certificate and its key are unusable."""
    cert = as_given(settings, f"{end}.certPath", settings.cert_path)
    key = as_given(settings, f"{end}.keyPath", settings.key_path or settings.cert_path)
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"{cert} and {key} do not match"
    if _ENCRYPTED in key_text:
        given = "is wrong" if settings.key_password else "is missing, and the key is encrypted"
        return f"{key}: {name_of(settings, f'{end}.keyPassword')} {given}"
    return f"{cert}, {key}: no certificate and key in PEM form"


def _load_trust(context: ssl.SSLContext, settings: TlsSettings, end: str) -> None:
    path = settings.trust_cert_path
    if path is None:
        context.load_default_certs()
        return
    key = f"{end}.trustCertPath"
    _read(path, settings, key)
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"{as_given(settings, key, path)}: no certificates in PEM form"
        ) from error


def _read(path: Path, settings: TlsSettings, key: str) -> bytes:
    """Return a file's content; raise a SettingsError that names the setting if it is unreadable."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{as_given(settings, key, path)}: {error.strerror}") from error


def _load_test_identity(context: ssl.SSLContext) -> None:
    """Load a new certificate from a temporary file, because the ssl module reads only files."""
    with tempfile.TemporaryDirectory(prefix="cometmq-tls-") as folder:
        path = Path(folder) / "test.pem"
        path.touch(mode=0o600)
        path.write_text(self_signed_pem("cometmq-test"), encoding="ascii")
        context.load_cert_chain(path)
