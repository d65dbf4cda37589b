# SPDX-License-Identifier: Apache-2.0
"""Checks the options that a client was given: their class, types and bounds."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Final, TypeVar

import msgspec

from cometmq.client.addresses import parse_addresses
from cometmq.client.arguments import check_encodable, timestamp
from cometmq.client.errors import InvalidArgument, shown
from cometmq.client.message import check_topic
from cometmq.client.settings import ClientOptions, OptionsT
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.settings import TlsSettings

StructT = TypeVar("StructT", bound=msgspec.Struct)

_TOPIC_OPTIONS: Final = ("default_topic", "trace_topic")
_TLS_FIELDS: Final = (
    *("cert_path", "key_path", "key_password", "trust_cert_path", "auth_server"),
    *("mode", "need_client_auth"),
)
"""The fields of TlsSettings that ask for TLS; without `enable`, they have no effect."""
_TLS_NAMES: Final = {
    "certPath": "cert_path",
    "keyPath": "key_path",
    "keyPassword": "key_password",
    "trustCertPath": "trust_cert_path",
}
_TLS_KEY: Final = re.compile(rf"\btls\.client\.({'|'.join(_TLS_NAMES)})\b")


def checked(
    options: OptionsT,
    namesrv: str = "",
    *,
    kind: type[ClientOptions] = ClientOptions,
    is_exact: bool = False,
) -> OptionsT:
    """Return the options with `namesrv` filled in; raise InvalidArgument if one is out of bounds.

    The argument and the `namesrv` option may both be given only if they name the same servers. If
    `is_exact`, options of another client are rejected even if they derive from `kind`. msgspec
    checks bounds only on conversion, not on construction, so the options are converted here.
    """
    if not isinstance(options, kind) or (is_exact and type(options) is not kind):
        raise InvalidArgument(
            f"the options must be {kind.__name__}(...), not {type(options).__name__}"
            f"{_meant(options, kind)}"
        )
    if not isinstance(namesrv, str):
        raise InvalidArgument(
            "namesrv must be a string such as '127.0.0.1:9876;127.0.0.2:9876', not "
            f"{shown(namesrv)}"
        )
    found = _converted(options)
    for name in ("credentials", "tls"):
        if (value := getattr(found, name)) is not None:
            _converted(value, f"{name}.")
    _check_tls(found.tls)
    _check_ip(found.client_ip)
    timestamp(getattr(found, "consume_timestamp_ms", 0), name="invalid option consume_timestamp_ms")
    _check_topics(found)
    servers = [set(parse_addresses(text)) for text in (found.namesrv, namesrv) if text]
    if not namesrv:
        return found
    if len(servers) == 2 and servers[0] != servers[1]:
        raise InvalidArgument(
            f"the argument namesrv is {namesrv!r}, but the option namesrv is {found.namesrv!r}: "
            "give only one of them"
        )
    return msgspec.structs.replace(found, namesrv=namesrv)


def _converted(value: StructT, prefix: str = "") -> StructT:
    """Return a struct whose fields have their types; raise InvalidArgument that names the option,
    but not its value, which may be a secret.
    """
    fields = msgspec.structs.asdict(value)
    for name, text in fields.items():
        if isinstance(text, str):
            check_encodable(text, f"the option {prefix}{name}")
    try:
        return msgspec.convert(fields, type(value))
    except msgspec.ValidationError as error:
        reason, _, name = str(error).rpartition(" - at `$.")
        raise InvalidArgument(f"invalid option {prefix}{name.rstrip('`')}: {reason}") from None


def _check_tls(tls: TlsSettings) -> None:
    """Raise InvalidArgument for settings that have no effect because TLS is off."""
    default = TlsSettings()
    for name in () if tls.enable else _TLS_FIELDS:
        if getattr(tls, name) != getattr(default, name):
            raise InvalidArgument(
                f"invalid option tls.{name}: it has no effect while TLS is off; add enable=True, as"
                f" in TlsSettings(enable=True, {name}=...), or leave it out"
            )


@contextmanager
def tls_files_named(tls: TlsSettings) -> Iterator[None]:
    """Raise InvalidArgument, with the names of our options, for TLS files that cannot be used.

    The error also contains the key in RocketMQ's `tls.properties`, because some programs read such
    files. If the program has set `tls.names`, the error contains only these names.
    """
    try:
        yield
    except SettingsError as error:
        if tls.names:
            raise InvalidArgument(str(error)) from error
        text = _TLS_KEY.sub(lambda key: f"tls.{_TLS_NAMES[key[1]]} ({key[0]})", str(error))
        raise InvalidArgument(f"invalid option {text}") from error


def _check_ip(address: str) -> None:
    try:
        ip_address(address or "127.0.0.1")
    except ValueError:
        raise InvalidArgument(
            f"invalid option client_ip={shown(address)}: it must be an IP address such as "
            "'10.0.0.1', or empty for the address of this machine; names go into instance_name"
        ) from None


def _check_topics(options: ClientOptions) -> None:
    for name in _TOPIC_OPTIONS:
        topic = getattr(options, name, None)
        if topic is None:
            continue
        try:
            check_topic(topic)
        except InvalidArgument as error:
            raise InvalidArgument(f"invalid option {name}={shown(topic)}: {error}") from None


def _meant(options: object, kind: type[ClientOptions]) -> str:
    """Return a hint that names the right class if the options belong to another client."""
    if isinstance(options, Mapping):
        return f": did you mean {kind.__name__}(**options)?"
    if not isinstance(options, ClientOptions):
        return ""
    defaults = type(options)()
    known = set(kind.__struct_fields__)
    chosen = [
        f"{name}=..."  # the values may be secrets
        for name in options.__struct_fields__
        if name in known and getattr(options, name) != getattr(defaults, name)
    ]
    return f": did you mean {kind.__name__}({', '.join(chosen)})?"
