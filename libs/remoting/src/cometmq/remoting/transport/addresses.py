# SPDX-License-Identifier: Apache-2.0
"""Peer addresses, as strings and in the form used in records."""

import re
import socket
import struct
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from cometmq.remoting.errors import SettingsError

NO_HOST: Final = bytes(8)
_HOST: Final = re.compile(r"[^\s/@,;?#\\\x00-\x1f\x7f-\x9f]+")
"""A host name or IP address, without the characters that separate URLs and lists, and without
control characters."""
_PORT_DIGITS: Final = 5
_PART_CHARS: Final = 64


def peer_address(name: Any) -> tuple[str, bytes]:
    """Return the address of a socket's peer as `ip:port` and in the form used in records."""
    if not isinstance(name, tuple) or len(name) < 2:
        return "", NO_HOST
    host, port = str(name[0]), int(name[1])
    if "." in host:  # of an IPv4 client, perhaps mapped to IPv6
        host = host.removeprefix("::ffff:")
    if ":" in host:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
        return f"[{host}]:{port}", packed + struct.pack(">i", port)
    return f"{host}:{port}", socket.inet_aton(host) + struct.pack(">i", port)


def parse_address(address: str) -> tuple[str, int]:
    """Split `host:port`; an IPv6 host may be in brackets. Raise SettingsError for other texts."""
    host, _, port = address.strip().rpartition(":")
    is_ipv6 = ":" in host or host.startswith("[")
    if is_ipv6 and host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if (
        not _HOST.fullmatch(host)
        or not (_is_ipv6(host) if is_ipv6 else _can_be_looked_up(host))
        or not (port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS)
        or not 0 < int(port) <= 65535
    ):
        raise SettingsError(f"not an address: {address!r}; give host:port, port 1 to 65535")
    return host, int(port)


def host_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def with_port(address: str, port: int) -> str:
    """Add the port to an address without one: `host`, `[::1]` or `::1`. Keep all others.

    Compatibility: as in RocketMQ, the port of an IPv6 address without brackets follows its last
    colon, so `::1:9876` has one.
    """
    host, colon, _ = address.rpartition(":")
    if not colon:
        has_port = address.isdigit()  # the host was forgotten
    elif _is_ipv6(address) and not _is_ipv6(host):
        return host_port(address, port)
    else:
        has_port = not address.endswith("]")
    return address if has_port else f"{address}:{port}"


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def _can_be_looked_up(host: str) -> bool:
    """Return whether a name has only parts that DNS allows; for others, Python's resolver raises
    UnicodeError, which is not an OSError.
    """
    if host.isascii():  # as the codec, whose tables take 0.3 MiB
        *parts, last = host.split(".")
        return len(last) < _PART_CHARS and all(0 < len(it) < _PART_CHARS for it in parts)
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def is_address(text: str) -> bool:
    """Return whether a text is `host:port`."""
    try:
        parse_address(text)
    except SettingsError:
        return False
    return True


def is_same_address(one: str, other: str) -> bool:
    """Return whether two texts are the same `host:port`.

    An IPv6 address has several forms: `[::1]:1`, `[0:0:0:0:0:0:0:1]:1` in Java's message ids, and
    `::1:1` in the routes of RocketMQ.
    """
    return one == other or _plain(one) == _plain(other)


def _plain(address: str) -> tuple[str, str]:
    host, _, port = address.strip().rpartition(":")
    try:
        found = ip_address(host.strip("[]"))
    except ValueError:
        return host, port  # a host name
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found), port


def has_ipv6() -> bool:
    """Return whether programs can listen on IPv6 addresses on this system."""
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True
