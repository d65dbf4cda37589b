# SPDX-License-Identifier: Apache-2.0
"""TLS settings under RocketMQ's keys, from a program's settings or from `tls.properties`.

A settings struct declares all keys of a server or of a client:

    tls_server_mode: ServerMode = field(default="permissive", name="tls.server.mode")

Compatibility: RocketMQ reads these keys as Java system properties and from the file
`tls.config.file`, if it exists; the file's values win. The mode and `tls.enable` are never read
from that file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.spelling import did_you_mean
from cometmq.remoting.transport.settings import TlsMode, TlsSettings
from cometmq.runtime import properties
from cometmq.runtime.settings_faults import Faults

CONFIG_FILE: Final = "/etc/rocketmq/tls.properties"
USE_TLS: Final = "useTLS"
"""The name of `tls.enable` in a broker's configuration file."""

_GUARD: Final = {"guard": True}

ServerMode = Annotated[
    str,
    Meta(
        pattern="^(disabled|permissive|enforcing)$",
        description=(
            "`disabled` (no TLS), `permissive` (TLS and plain connections on one port) or "
            "`enforcing` (TLS only)."
        ),
        extra=_GUARD,
    ),
]
TestMode = Annotated[
    str,
    Meta(
        pattern="^(true|false|)$",
        description="Use TLS with a certificate generated at startup; if empty, only when there is"
        " no other certificate.",
        extra=_GUARD,
    ),
]
ConfigFile = Annotated[
    str,
    Meta(description="File with further TLS settings; its values override these.", extra=_GUARD),
]
ServerCertPath = Annotated[str, Meta(description="Certificate chain (PEM).", extra=_GUARD)]
ServerKeyPath = Annotated[
    str,
    Meta(
        description="Private key (PEM); if empty, the certificate file contains it.", extra=_GUARD
    ),
]
KeyPassword = Annotated[
    str,
    Meta(description="Password of an encrypted private key.", extra={"secret": True, **_GUARD}),
]
ServerTrustCertPath = Annotated[
    str,
    Meta(
        description="CA certificates for verifying clients (PEM); if empty, the system's.",
        extra=_GUARD,
    ),
]
NeedClientAuth = Annotated[
    str,
    Meta(
        pattern="^(none|optional|require|NONE|OPTIONAL|REQUIRE)$",
        description="Whether clients must present a certificate: none, optional, require.",
        extra=_GUARD,
    ),
]
AuthClient = Annotated[
    bool,
    Meta(description="Require client certificates, like need.client.auth=require.", extra=_GUARD),
]
Enable = Annotated[
    bool, Meta(description="Connect to name servers and brokers over TLS.", extra=_GUARD)
]
ClientCertPath = Annotated[
    str, Meta(description="Certificate chain presented to servers (PEM).", extra=_GUARD)
]
ClientTrustCertPath = Annotated[
    str,
    Meta(
        description="CA certificates for verifying servers (PEM); if empty, the system's.",
        extra=_GUARD,
    ),
]
AuthServer = Annotated[bool, Meta(description="Verify the certificates of servers.", extra=_GUARD)]

_SERVER: Final = "tls.server."
_CLIENT: Final = "tls.client."
_AUTH_SERVER: Final = "tls.client.authServer"
_CLIENT_AUTH: Final = ("none", "optional", "require")
_IDENTITY: Final = ("certPath", "keyPath", "keyPassword", "trustCertPath")
FILE_KEYS: Final = frozenset(
    {
        *(_SERVER + name for name in (*_IDENTITY, "mode", "need.client.auth", "authClient")),
        *(_CLIENT + name for name in (*_IDENTITY, "authServer")),
        *("tls.enable", "tls.config.file", "tls.test.mode.enable"),
    }
)
"""All keys of RocketMQ's `tls.properties`."""


def server_tls(settings: Any) -> TlsSettings:
    """Return a server's TLS settings, read from its settings and its `tls.config.file`."""
    values = {
        "tls.server.certPath": settings.tls_server_cert_path,
        "tls.server.keyPath": settings.tls_server_key_path,
        "tls.server.keyPassword": settings.tls_server_key_password,
        "tls.server.trustCertPath": settings.tls_server_trust_cert_path,
        "tls.server.need.client.auth": settings.tls_server_need_client_auth,
        "tls.server.authClient": settings.tls_server_auth_client,
        "tls.test.mode.enable": settings.tls_test_mode_enable,
        **_of_settings_file(settings),
    }
    mode = TlsMode(settings.tls_server_mode)
    wanted = values.get("tls.server.mode")
    if wanted == TlsMode.ENFORCING and mode is not TlsMode.ENFORCING:
        raise SettingsError(
            f"tls.config.file={settings.tls_config_file}: tls.server.mode=enforcing has no effect"
            " in this file, as in RocketMQ: set it in the settings of the program"
        )
    test_mode = str(values["tls.test.mode.enable"])
    if test_mode and _is_true(test_mode, "tls.test.mode.enable"):
        return TlsSettings(mode=mode, test_mode=True)
    need = str(values["tls.server.need.client.auth"]).strip().lower()
    if need not in _CLIENT_AUTH:
        raise SettingsError(
            f"tls.server.need.client.auth={need}: it must be {', '.join(_CLIENT_AUTH)}"
        )
    if _is_true(values["tls.server.authClient"], "tls.server.authClient") and need == "none":
        need = "require"
    identity = _identity(values, _SERVER)
    return TlsSettings(
        mode=mode,
        test_mode=not test_mode and identity["cert_path"] is None,
        need_client_auth=need,
        trust_cert_path=_path(values, f"{_SERVER}trustCertPath"),
        **identity,
    )


def client_tls(settings: Any) -> TlsSettings:
    """Return the TLS settings of a program that connects to servers."""
    values = {
        "tls.client.certPath": settings.tls_client_cert_path,
        "tls.client.keyPath": settings.tls_client_key_path,
        "tls.client.keyPassword": settings.tls_client_key_password,
        "tls.client.trustCertPath": settings.tls_client_trust_cert_path,
        "tls.client.authServer": settings.tls_client_auth_server,
        **_of_settings_file(settings),
    }
    return _client(values, is_on=settings.tls_enable or settings.use_tls)


def client_tls_of_file(path: Path) -> TlsSettings:
    """Return the TLS settings in a `tls.properties` file, for programs without TLS settings.

    An unknown key is an error, because a mistyped authServer would disable server verification.
    """
    values = _parsed(path)
    faults = Faults()
    for name in sorted(values.keys() - FILE_KEYS):
        guess = did_you_mean(name, FILE_KEYS)
        faults.add(f"tls.config.file={path}: {name} is an unknown key{guess}")
    faults.raise_all()
    return _client(values, is_on=True)


def _client(values: Mapping[str, Any], *, is_on: bool) -> TlsSettings:
    return TlsSettings(
        enable=is_on,
        auth_server=_is_true(values.get(_AUTH_SERVER), _AUTH_SERVER),
        trust_cert_path=_path(values, f"{_CLIENT}trustCertPath"),
        **_identity(values, _CLIENT),
    )


def _identity(values: Mapping[str, Any], end: str) -> dict[str, Any]:
    return {
        "cert_path": _path(values, f"{end}certPath"),
        "key_path": _path(values, f"{end}keyPath"),
        "key_password": str(values.get(f"{end}keyPassword") or "") or None,
    }


def _of_settings_file(settings: Any) -> dict[str, str]:
    """Read `tls.config.file`; a file at the default path is optional, any other must exist."""
    path = Path(settings.tls_config_file or CONFIG_FILE).expanduser()
    return _of_file(path) if path != Path(CONFIG_FILE) or path.is_file() else {}


def _of_file(path: Path) -> dict[str, str]:
    """Return the keys of TLS in a server's file; as in RocketMQ, it may have other keys."""
    values = _parsed(path)
    faults = Faults()
    for name in sorted(values.keys() - FILE_KEYS):
        if guess := did_you_mean(name, FILE_KEYS):
            faults.add(f"tls.config.file={path}: {name} is an unknown key{guess}")
    faults.raise_all()
    return {name: value for name, value in values.items() if name.startswith("tls.")}


def _parsed(path: Path) -> dict[str, str]:
    try:
        return properties.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"tls.config.file={path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"tls.config.file={path}: {error}") from error


def _path(values: Mapping[str, Any], name: str) -> Path | None:
    text = values.get(name)
    return Path(str(text)).expanduser() if text else None


def _is_true(value: Any, name: str) -> bool:
    """Parse `true` or `false`; None means that the key is not set.

    Reject other words and an empty value, because Java would read `yes` as false.
    """
    text = "false" if value is None else str(value).strip().lower()
    if text not in {"true", "false"}:
        raise SettingsError(f"{name}={value}: it must be true or false")
    return text == "true"
