# SPDX-License-Identifier: Apache-2.0
"""TLS settings under RocketMQ's keys, from a program's settings or from `tls.properties`.

A settings struct has them as groups:

    tls_server: ServerKeys = field(default_factory=ServerKeys)
    tls_config_file: ConfigFile = CONFIG_FILE_FIELD

Compatibility: RocketMQ reads these keys as Java system properties and from the file
`tls.config.file`, if it exists; the file's values win. The mode and `tls.enable` are never read
from that file.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Meta, field

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.setting_facts import GUARD, PATH, SECRET
from cometmq.remoting.spelling import did_you_mean
from cometmq.remoting.transport.certificate import first_expiry_of
from cometmq.remoting.transport.settings import TlsMode, TlsSettings
from cometmq.remoting.transport.tls_contexts import as_given
from cometmq.runtime import properties
from cometmq.runtime.files import at_home
from cometmq.runtime.settings import load
from cometmq.runtime.settings.faults import Faults

CONFIG_FILE: Final = "/etc/rocketmq/tls.properties"
USE_TLS: Final = "useTLS"
"""The name of `tls.enable` in a broker's configuration file."""


ServerMode = Annotated[
    str,
    Meta(pattern="^(disabled|permissive|enforcing)$"),
    GUARD,
    "`disabled` (no TLS), `permissive` (TLS and plain connections on one port) or `enforcing` "
    "(TLS only).",
]
ConfigFile = Annotated[
    str, PATH, GUARD, "File with further TLS settings; its values override these."
]
CONFIG_FILE_FIELD: Final[Any] = field(default=CONFIG_FILE, name="tls.config.file")
_KeyPath = Annotated[
    str, PATH, GUARD, "Private key (PEM); if empty, the certificate file contains it."
]
_KeyPassword = Annotated[str, SECRET, GUARD, "Password of an encrypted private key."]
AuthServer = Annotated[bool, GUARD, "Verify the certificates of servers."]
_Enable = Annotated[bool, GUARD, "Connect to name servers and brokers over TLS."]


class ServerKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The TLS settings of a server, under RocketMQ's keys."""

    mode: ServerMode = field(default="permissive", name="tls.server.mode")
    cert_path: Annotated[str, PATH, GUARD, "Certificate chain (PEM)."] = field(
        default="", name="tls.server.certPath"
    )
    key_path: _KeyPath = field(default="", name="tls.server.keyPath")
    key_password: _KeyPassword = field(default="", name="tls.server.keyPassword")
    trust_cert_path: Annotated[
        str, PATH, GUARD, "CA certificates for verifying clients (PEM); if empty, the system's."
    ] = field(default="", name="tls.server.trustCertPath")
    need_client_auth: Annotated[
        str,
        Meta(pattern="^(none|optional|require|NONE|OPTIONAL|REQUIRE)$"),
        GUARD,
        "Whether clients must present a certificate: none, optional, require.",
    ] = field(default="none", name="tls.server.need.client.auth")
    auth_client: Annotated[
        bool, GUARD, "Require client certificates, like need.client.auth=require."
    ] = field(default=False, name="tls.server.authClient")
    test_mode: Annotated[
        str,
        Meta(pattern="^(true|false|)$"),
        GUARD,
        "Use TLS with a certificate generated at startup; if empty, only when there is no other "
        "certificate.",
    ] = field(default="", name="tls.test.mode.enable")


class ClientKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The TLS settings of a program that connects to servers, under RocketMQ's keys."""

    enable: _Enable = field(default=False, name="tls.enable")
    use_tls: _Enable = field(default=False, name=USE_TLS)
    cert_path: Annotated[str, PATH, GUARD, "Certificate chain presented to servers (PEM)."] = field(
        default="", name="tls.client.certPath"
    )
    key_path: _KeyPath = field(default="", name="tls.client.keyPath")
    key_password: _KeyPassword = field(default="", name="tls.client.keyPassword")
    trust_cert_path: Annotated[
        str, PATH, GUARD, "CA certificates for verifying servers (PEM); if empty, the system's."
    ] = field(default="", name="tls.client.trustCertPath")
    auth_server: AuthServer = field(default=False, name="tls.client.authServer")

    @property
    def is_on(self) -> bool:
        """Return whether connections use TLS."""
        return self.enable or self.use_tls


class _WithFile(Protocol):
    @property
    def tls_config_file(self) -> str: ...


class _Server(_WithFile, Protocol):
    @property
    def tls_server(self) -> ServerKeys: ...


class _Client(_WithFile, Protocol):
    @property
    def tls_client(self) -> ClientKeys: ...


_SERVER: Final = "tls.server."
_CLIENT: Final = "tls.client."
_AUTH_SERVER: Final = "tls.client.authServer"
_SWITCHES: Final = frozenset({"tls.server.mode", "tls.enable", USE_TLS})
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


Label = Callable[[str], str]
"""Returns the option, variable or line of a file that sets a key, as `Loaded.label` does."""


def server_tls(settings: _Server, label: Label = str) -> TlsSettings:
    """Return a server's TLS settings, read from its settings and its `tls.config.file`.

    `label` names the settings in error messages. Raise SettingsError if they contradict each other.
    """
    keys = settings.tls_server
    given = _given(keys, settings, label)
    mode = TlsMode(keys.mode)
    wanted = given.get("tls.server.mode")
    if wanted == TlsMode.ENFORCING and mode is not TlsMode.ENFORCING:
        raise SettingsError(
            f"{given.shown('tls.server.mode')} has no effect in this file, as in RocketMQ: set it"
            " in the settings of the program"
        )
    test_mode = str(given.get("tls.test.mode.enable"))
    if test_mode and given.is_true("tls.test.mode.enable"):
        return TlsSettings(mode=mode, test_mode=True)
    need = str(given.get("tls.server.need.client.auth")).strip().lower()
    if need not in _CLIENT_AUTH:
        shown = given.shown("tls.server.need.client.auth")
        raise SettingsError(f"{shown}: it must be {', '.join(_CLIENT_AUTH)}")
    if given.is_true("tls.server.authClient") and need == "none":
        need = "require"
    identity = given.identity(_SERVER)
    return TlsSettings(
        mode=mode,
        test_mode=not test_mode and identity["cert_path"] is None,
        need_client_auth=need,
        trust_cert_path=given.path(f"{_SERVER}trustCertPath"),
        names=given.names(),
        **identity,
    )


def client_tls(settings: _Client, label: Label = str) -> TlsSettings:
    """Return the TLS settings of a program that connects to servers."""
    keys = settings.tls_client
    return _client(_given(keys, settings, label), is_on=keys.is_on)


def client_tls_if_on(settings: _Client, label: Label = str) -> TlsSettings:
    """Return `client_tls`, or default settings if TLS is off: the keys in tls.properties may be
    meant for another program that reads the same file.
    """
    tls = client_tls(settings, label)
    return tls if tls.enable else TlsSettings()


def client_tls_of_file(path: Path, setting: str = "tls.config.file") -> TlsSettings:
    """Return the TLS settings in a `tls.properties` file, for programs without TLS settings.

    An unknown key is an error, because a mistyped authServer would disable server verification.
    `setting` is the name of the option or variable that gives the path.
    """
    found = _parsed(path, f"{setting}={path}")
    faults = Faults()
    for name in sorted(found.keys() - FILE_KEYS):
        guess = did_you_mean(name, FILE_KEYS)
        faults.add(f"{setting}={path}: {name} is an unknown key{guess}")
    faults.raise_all()
    return _client(_Values({}, str).updated(found), is_on=True)


class _Values:
    """The values of TLS keys, and the names under which the user set them."""

    def __init__(self, values: Mapping[str, Any], label: Label) -> None:
        self._values = dict(values)
        self._labels = {name: label(name) for name in values}

    def updated(self, found: "Mapping[str, _InFile]") -> "_Values":
        """Take the values of a file; they override earlier ones."""
        self._values |= {name: it.value for name, it in found.items()}
        self._labels |= {name: f"{name} in {it.place}" for name, it in found.items()}
        return self

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def names(self) -> tuple[tuple[str, str], ...]:
        """Return (key, name) pairs for the keys that the user set under a different name."""
        return tuple(pair for pair in self._labels.items() if pair[0] != pair[1])

    def shown(self, name: str) -> str:
        """Return a setting as the user wrote it."""
        return as_given(TlsSettings(names=self.names()), name, self.get(name))

    def path(self, name: str) -> Path | None:
        text = self.get(name)
        return Path(at_home(str(text), self.shown(name))) if text else None

    def identity(self, end: str) -> dict[str, Any]:
        return {
            "cert_path": self.path(f"{end}certPath"),
            "key_path": self.path(f"{end}keyPath"),
            "key_password": str(self.get(f"{end}keyPassword") or "") or None,
        }

    def is_true(self, name: str) -> bool:
        """Parse `true` or `false`; a key that is not set is false.

        Reject other words and an empty value, because Java would read `yes` as false.
        """
        value = self.get(name)
        text = "false" if value is None else str(value).strip().lower()
        if text not in {"true", "false"}:
            raise SettingsError(f"{self.shown(name)}: it must be true or false")
        return text == "true"


class _InFile(NamedTuple):
    """A value in a `tls.properties` file."""

    value: str
    place: str


def _given(keys: msgspec.Struct, settings: _WithFile, label: Label) -> _Values:
    """Return the TLS values of a program: those of its keys, overridden by those of its
    `tls.config.file`. Keys that turn TLS on are left out.
    """
    values = {
        it.encode_name: getattr(keys, it.name)
        for it in msgspec.structs.fields(keys)
        if it.encode_name not in _SWITCHES
    }
    return _Values(values, label).updated(_of_settings_file(settings, label))


def _client(given: _Values, *, is_on: bool) -> TlsSettings:
    return TlsSettings(
        enable=is_on,
        auth_server=given.is_true(_AUTH_SERVER),
        trust_cert_path=given.path(f"{_CLIENT}trustCertPath"),
        names=given.names(),
        **given.identity(_CLIENT),
    )


def _of_settings_file(settings: _WithFile, label: Label) -> dict[str, _InFile]:
    """Read `tls.config.file`; a file at the default path is optional, any other must exist."""
    path = Path(settings.tls_config_file or CONFIG_FILE).expanduser()
    if path == Path(CONFIG_FILE) and not path.is_file():
        return {}
    names = (("tls.config.file", label("tls.config.file")),)
    return _of_file(path, as_given(TlsSettings(names=names), "tls.config.file", path))


def _of_file(path: Path, shown: str) -> dict[str, _InFile]:
    """Return the TLS keys in a server's file; as in RocketMQ, it may contain other keys."""
    found = _parsed(path, shown)
    faults = Faults()
    for name in sorted(found.keys() - FILE_KEYS):
        if guess := did_you_mean(name, FILE_KEYS):
            faults.add(f"{shown}: {name} is an unknown key{guess}")
    faults.raise_all()
    return {name: value for name, value in found.items() if name.startswith("tls.")}


def _parsed(path: Path, shown: str) -> dict[str, _InFile]:
    try:
        lines = properties.parse_lines(path.read_text(encoding="utf-8"))
        return {it.key: _InFile(it.value, f"{path}:{it.line}") for it in lines}
    except OSError as error:
        raise SettingsError(f"{shown}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"{shown}: {error}") from error


class _Tls(msgspec.Struct, frozen=True, kw_only=True):
    tls_client: ClientKeys = field(default_factory=ClientKeys)
    tls_config_file: ConfigFile = CONFIG_FILE_FIELD


def expiries_named_in(file: Path) -> dict[str, float]:
    """Return when the first certificate in each TLS file of a client program expires, in seconds
    since 1970, by setting; empty if the program connects without TLS.

    Files that cannot be read are left out. Raise SettingsError if the settings file cannot be used.
    """
    loaded = load(_Tls, prefix="", file=file, env={}, is_part=True)
    tls = client_tls(loaded.value, loaded.label)
    if not tls.enable:
        return {}
    found: dict[str, float] = {}
    for name, path in (("certPath", tls.cert_path), ("trustCertPath", tls.trust_cert_path)):
        if path is None:
            continue
        try:
            expiry_s = first_expiry_of(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if expiry_s is not None:
            found[f"tls.client.{name}"] = expiry_s
    return found
