# SPDX-License-Identifier: Apache-2.0
"""The addresses of the name servers: the entries of `namesrvAddr`, resolved at each use.

A DNS name stands for all its addresses: behind a headless service, the broker must register with
each name server. If a lookup fails, the addresses from the previous one remain in use.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.addresses import host_port, parse_address, with_port

DEFAULT_PORT: Final = 9876
LOOKUP_TIMEOUT_MS: Final = 5_000

Lookup: TypeAlias = Callable[[str], Awaitable[list[str]]]


class HostPort(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


def parse_addresses(text: str) -> list[HostPort]:
    """Parse `host:port;host:port`; raise a SettingsError that names a malformed part."""
    return [_parse(part) for part in text.replace(",", ";").split(";") if part.strip()]


class NamesrvAddresses:
    def __init__(self, text: str, *, lookup: Lookup | None = None, log: Log = NO_LOG) -> None:
        """`lookup` returns the IP addresses of a host name."""
        self._entries = parse_addresses(text)
        self._lookup = lookup or system_lookup
        self._log = log
        self._known: dict[str, list[str]] = {}

    def replace(self, text: str) -> None:
        self._entries = parse_addresses(text)

    async def resolve(self) -> list[str]:
        """Return each name server as `ip:port`, without duplicates, in the order of the setting."""
        found: dict[str, None] = {}
        for entry in self._entries:
            for ip in await self._addresses(entry.host):
                found[str(HostPort(ip, entry.port))] = None
        return list(found)

    async def _addresses(self, host: str) -> list[str]:
        if _is_ip(host):
            return [host]
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_MS / 1000):
                addresses = await self._lookup(host)
        except OSError as error:  # includes TimeoutError and socket.gaierror
            self._log.warning("namesrv.lookup_failed", host=host, error=str(error) or "timed out")
            return self._known.get(host, [])
        if addresses != self._known.get(host):
            self._log.info("namesrv.resolved", host=host, addresses=addresses)
        self._known[host] = addresses
        return addresses


async def system_lookup(host: str) -> list[str]:
    """Ask the system's resolver; return IPv6 addresses only if the name has no IPv4 address."""
    loop = asyncio.get_running_loop()
    infos = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    v4 = sorted({str(info[4][0]) for info in infos if info[0] == socket.AF_INET})
    return v4 or sorted({str(info[4][0]) for info in infos if info[0] == socket.AF_INET6})


def _parse(part: str) -> HostPort:
    # Compatibility: as in clients, `http://` is ignored, because hosted services give it.
    text = part.strip().removeprefix("http://")
    try:
        return HostPort(*parse_address(with_port(text, DEFAULT_PORT)))
    except SettingsError as error:
        raise SettingsError(f"namesrvAddr={part}: must be host:port") from error


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
