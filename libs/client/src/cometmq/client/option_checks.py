# SPDX-License-Identifier: Apache-2.0
"""Checks the options that a client was given: their class, types and bounds."""

from ipaddress import ip_address
from typing import Final, TypeVar

import msgspec

from cometmq.client.addresses import parse_addresses
from cometmq.client.arguments import check_encodable, timestamp
from cometmq.client.errors import InvalidArgument, shown
from cometmq.client.message import check_topic
from cometmq.client.settings import ClientOptions, OptionsT
from cometmq.remoting.transport.settings import TlsSettings

StructT = TypeVar("StructT", bound=msgspec.Struct)

_TOPIC_OPTIONS: Final = ("default_topic", "trace_topic")
_TLS_NAMES: Final = tuple(
    (f"tls.client.{key}", f"tls.{name}")
    for key, name in (
        ("certPath", "cert_path"),
        ("keyPath", "key_path"),
        ("keyPassword", "key_password"),
        ("trustCertPath", "trust_cert_path"),
    )
)
"""Our options for the keys of RocketMQ's `tls.properties`."""


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
    if tls.enable:
        return
    default = msgspec.structs.asdict(TlsSettings())
    for name, value in msgspec.structs.asdict(tls).items():
        if value != default[name] and name not in ("test_mode", "names"):
            raise InvalidArgument(
                f"invalid option tls.{name}: it has no effect while TLS is off; add enable=True"
            )


def with_own_names(tls: TlsSettings) -> TlsSettings:
    """Return settings whose errors name our options, unless the program has set `names`."""
    return tls if tls.names else msgspec.structs.replace(tls, names=_TLS_NAMES)


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
