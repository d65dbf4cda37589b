# SPDX-License-Identifier: Apache-2.0
"""The TLS contexts of both ends, built from files and rebuilt when the files change.

Compatibility: error messages name the keys of RocketMQ's `tls.properties`, or the names under which
the user has set them. If clients must present a certificate, it is always verified; RocketMQ
accepts any certificate unless `authClient` is set.
"""

import hashlib
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.settled import Settled
from cometmq.remoting.transport.settings import TlsSettings

_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}
_SERVER: Final = "tls.server"
_CLIENT: Final = "tls.client"
HTTP_2: Final = "h2"
_ENCRYPTED: Final = b"ENCRYPTED"
_TEST_NAME: Final = "cometmq-test"

Contents = tuple[bytes | None, ...]


TlsEngine = Callable[..., Any]
"""Makes a native context of a certificate chain and a key in PEM form, of `trusted` certificates,
and of whether clients must show one (`is_required`); raises ValueError if it cannot use them. See
`cometmq.accel.TlsContext`.
"""


class ServerTls(NamedTuple):
    """How a server serves TLS connections."""

    context: ssl.SSLContext
    native: Any
    """The native context that serves connections; None if OpenSSL serves them."""
    fault: str
    """Why native code cannot serve connections although it is installed; otherwise empty."""


ContextT = TypeVar("ContextT")


class WatchedContext(Generic[ContextT]):
    """A TLS context that is rebuilt when its files change."""

    __slots__ = (
        "_build",
        "_contents",
        "_expiry_s",
        "_paths",
        "_settings",
        "context",
        "expiries_s",
    )

    context: ContextT

    def __init__(self, settings: TlsSettings, build: Callable[[TlsSettings], ContextT]) -> None:
        """Build the first context; raise SettingsError if the files are unusable."""
        self._settings = settings
        self._build = build
        self._paths = (settings.cert_path, settings.key_path, settings.trust_cert_path)
        self._contents: Settled[Contents] = Settled(tuple(self._digests()))
        self._expiry_s: float | None = None
        self.expiries_s: dict[str, float] = {}
        """When the first certificate in each file expires, in seconds since 1970, by the end of the
        setting's name: `certPath`, `trustCertPath`.
        """
        self.rebuild()

    @property
    def settings(self) -> TlsSettings:
        """The settings from which contexts are built."""
        return self._settings

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
        if not self._contents.take(tuple(self._digests())):
            return False
        self.rebuild()
        return True

    def rebuild(self) -> None:
        """Build the context from the files as they are now."""
        self.context = self._build(self._settings)
        settings = self._settings
        self.expiries_s = {}
        for name, path in (
            ("certPath", settings.cert_path), ("trustCertPath", settings.trust_cert_path),
        ):  # fmt: skip
            text = _text(path)
            if text and (expiry_s := _certificate().first_expiry_of(text)) is not None:
                self.expiries_s[name] = expiry_s
            if name == "certPath":
                self._expiry_s = _certificate().expiry_of(text) if text else None

    def expired(self, now_s: float) -> tuple[str, str] | None:
        """Return the file of this side's certificate and when it has expired; None if it is valid,
        or if an earlier call has reported it.
        """
        expiry_s = self._expiry_s
        if expiry_s is None or expiry_s > now_s:
            return None
        self._expiry_s = None
        return str(self._settings.cert_path), datetime.fromtimestamp(expiry_s, UTC).isoformat()

    def _digests(self) -> Iterator[bytes | None]:
        for path in self._paths:
            try:
                yield None if path is None else hashlib.sha256(path.read_bytes()).digest()
            except OSError:
                yield b""  # unreadable: building the context reports it


def _text(path: Path | None) -> str:
    """Return the text of a file; "" if it is not set or unreadable, as an unused trust file may
    be.
    """
    try:
        return "" if path is None else path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def server_tls(settings: TlsSettings, engine: TlsEngine | None) -> ServerTls:
    """Return how a server serves TLS connections; raise SettingsError if its files are unusable."""
    context = server_context(settings)
    if engine is None:
        return ServerTls(context, None, "")
    try:
        return ServerTls(context, _native_context(settings, engine), "")
    except (OSError, ValueError) as error:
        return ServerTls(context, None, str(error))


def _native_context(settings: TlsSettings, engine: TlsEngine) -> Any:
    """Raise ValueError with the reason if native code cannot use the files."""
    if settings.cert_path is None:  # test mode
        pem = _certificate().self_signed_pem(_TEST_NAME).encode()
        return engine(pem, pem, trusted=None, is_required=False)
    key_path = settings.key_path or settings.cert_path
    chain, key = settings.cert_path.read_bytes(), key_path.read_bytes()
    if _ENCRYPTED in key:
        given = as_given(settings, f"{_SERVER}.keyPath", key_path)
        raise ValueError(
            f"{given} is encrypted: native code reads only keys without a password, for example"
            f" made by `openssl pkey -in {key_path.name} -out plain.key`"
        )
    if _CLIENT_AUTH[settings.need_client_auth] is ssl.CERT_NONE:
        return engine(chain, key, trusted=None, is_required=False)
    trust_path = settings.trust_cert_path or _system_trust()
    return engine(
        chain,
        key,
        trusted=trust_path.read_bytes(),
        is_required=settings.need_client_auth == "require",
    )


def _system_trust() -> Path:
    paths = ssl.get_default_verify_paths()
    if paths.cafile is None:
        raise ValueError("the system's CA certificates are not in one file")
    return Path(paths.cafile)


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the OpenSSL context of a server; raise SettingsError if settings or files are
    unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([HTTP_2])  # gRPC clients need it to see why they are refused
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


def renewing(watched: WatchedContext[ssl.SSLContext]) -> ssl.SSLContext:
    """Return a context for a server that takes only one: it serves each new connection with the
    newest context of `watched`.
    """

    def renew(tls: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
        tls.context = watched.context

    first = server_context(watched.settings)
    first.sni_callback = renew
    return first


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


def _certificate() -> Any:
    return import_module("cometmq.remoting.transport.certificate")  # clients need none of it


def _load_test_identity(context: ssl.SSLContext) -> None:
    """Load a new certificate from a temporary file, because the ssl module reads only files."""
    from tempfile import TemporaryDirectory  # noqa: PLC0415  # for tests only, and takes 0.4 MiB

    with TemporaryDirectory(prefix="cometmq-tls-") as folder:
        path = Path(folder) / "test.pem"
        path.touch(mode=0o600)
        path.write_text(_certificate().self_signed_pem(_TEST_NAME), encoding="ascii")
        context.load_cert_chain(path)
