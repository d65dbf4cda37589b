# SPDX-License-Identifier: Apache-2.0
"""Checks the options that a client was given, and finds the name servers that they name."""

import asyncio
from ipaddress import ip_address
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from cometmq.client.arguments import check_encodable, timestamp
from cometmq.client.errors import InvalidArgument, NoNamesrv, shown
from cometmq.client.message import check_topic
from cometmq.client.settings import NAMESRV_VARIABLE, ClientOptions, OptionsT
from cometmq.remoting.transport.addresses import is_address, with_port
from cometmq.remoting.transport.settings import TlsSettings

DEFAULT_PORT: Final = 9876


def parse_addresses(text: str) -> list[str]:
    """Parse `host:port;host:port`; an address without a port gets 9876, as on brokers.

    Raise NoNamesrv if the text is empty, and InvalidArgument if it is malformed.

    Compatibility: `http://` before an address is ignored, because hosted services add it.
    """
    if not isinstance(text, str):
        raise InvalidArgument(
            "name servers must be a string such as '127.0.0.1:9876;127.0.0.2:9876', not "
            f"{shown(text)}"
        )
    addresses = [_parse(part) for it in text.split(";") if (part := it.strip())]
    if not addresses:
        raise NoNamesrv(
            "no name server address: give one, as in Producer(group, '127.0.0.1:9876'), or set the "
            f"environment variable {NAMESRV_VARIABLE}"
        )
    return addresses


def _parse(text: str) -> str:
    address = with_port(text.removeprefix("http://"), DEFAULT_PORT)
    if not is_address(address):
        raise InvalidArgument(
            f"not a name server address: {shown(text)}; write host:port, and several as "
            "host:port;host:port"
        )
    return address


POLL_INTERVAL_MS: Final = 120_000
TIMEOUT_MS: Final = 3_000
_LIST_BYTES_MAX: Final = 64 * 1024


def check_url(url: str) -> None:
    """Raise InvalidArgument unless `url` is an HTTP or HTTPS URL."""
    if urlsplit(url).scheme not in {"http", "https"}:
        raise InvalidArgument(f"namesrv_url is not an HTTP URL: {shown(url)}")


async def fetch_namesrv_list(url: str) -> str:
    """Fetch the list from an address server; raise NoNamesrv on failure."""
    check_url(url)
    try:
        async with asyncio.timeout(TIMEOUT_MS / 1000 + 1):
            text = await asyncio.to_thread(_fetch, url)
    except (OSError, ValueError, TimeoutError) as error:
        raise NoNamesrv(f"the address server {url} does not answer: {error}") from error
    first, *_ = text.strip().splitlines() or [""]
    if not first.strip():
        raise NoNamesrv(f"the address server {url} returned no name server address")
    return first.strip()


def _fetch(url: str) -> str:
    # Loading urllib.request takes 11 ms, and few clients use an address server.
    from http.client import HTTPException  # noqa: PLC0415
    from urllib.error import HTTPError  # noqa: PLC0415

    from cometmq.client.http_fetch import fetch  # noqa: PLC0415

    try:
        data = fetch(url, timeout_s=TIMEOUT_MS / 1000, bytes_max=_LIST_BYTES_MAX)
    except HTTPError as error:
        error.close()  # it holds the connection
        raise
    except HTTPException as error:
        raise ValueError(f"no HTTP answer: {error!r}") from error
    return data.decode("utf-8", "replace")


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
