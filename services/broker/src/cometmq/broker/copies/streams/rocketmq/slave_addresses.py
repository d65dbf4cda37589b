# SPDX-License-Identifier: Apache-2.0
"""Which hosts may read the log over RocketMQ's stream, which has no proof of identity.

By default these are this host and the hosts of the slaves that name servers list under this
broker's name. A slave may register only shortly after it connects. Therefore the connection of an
unknown host waits for WAIT_MS, while the name servers are asked again, before it is refused. If no
name server answers, the last known slaves remain allowed.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, NamedTuple

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.log import Log

REGISTERED: Final = "registered"
ANY: Final = "*"
LOOK_UP_INTERVAL_MS: Final = 500
"""Minimum interval between requests to the name servers, however many hosts connect."""

LOOK_UP_TIMEOUT_S: Final = 2.0
FRESH_MS: Final = 30_000
"""How long an answer is used: a stopped slave's address may go to another program."""

WAIT_MS: Final = 3_000

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LookUp = Callable[[], Awaitable[Iterable[str] | None]]


class Allowed(NamedTuple):
    registered: bool
    any: bool
    networks: tuple[Network, ...]


def parse_allowed(text: str) -> Allowed:
    """Parse haSlaveAddresses; raise SettingsError if a part is no address and no network."""
    parts = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    networks: list[Network] = []
    for part in parts:
        if part in (REGISTERED, ANY):
            continue
        try:
            networks.append(ipaddress.ip_network(part, strict=False))
        except ValueError as error:
            raise SettingsError(
                f"haSlaveAddresses: {part!r} is no IP address and no network such as 10.0.0.0/24;"
                f" {REGISTERED!r} stands for this host and the registered slaves, {ANY!r} for any"
            ) from error
    return Allowed(REGISTERED in parts, ANY in parts, tuple(networks))


class SlaveAddresses:
    """The allowed hosts; `run` must be running to keep the registered slaves up to date."""

    def __init__(
        self, allowed: Allowed, look_up: LookUp, *, now_ms: Callable[[], int], log: Log
    ) -> None:
        self.changed: Callable[[], None] = lambda: None
        """Called after each answer of the name servers."""
        self._allowed = allowed
        self._look_up = look_up
        self._now_ms = now_ms
        self._log = log
        self._registered: frozenset[str] = frozenset()
        self._answered_ms: int | None = None
        self._is_wanted = asyncio.Event()

    @property
    def is_explicit(self) -> bool:
        return self._allowed.any or bool(self._allowed.networks)

    def is_known(self, host: str, own_host: str) -> bool:
        """Return whether a host was allowed when the name servers were last asked.

        `own_host` is this host's address of the connection, as a slave on this host has.
        """
        return self._is_given(host, own_host) or (
            self._allowed.registered and not _texts([host]).isdisjoint(self._registered)
        )

    def is_allowed(self, host: str, own_host: str) -> bool:
        """Return whether a host is allowed now; if not, `ask` may change that."""
        if self._is_given(host, own_host):
            return True
        is_fresh = self._answered_ms is not None and (
            self._now_ms() - self._answered_ms <= FRESH_MS
        )
        return is_fresh and self.is_known(host, own_host)

    @property
    def may_ask(self) -> bool:
        """Whether registered slaves are allowed, so that an unknown host may be one."""
        return self._allowed.registered

    def ask(self) -> None:
        """Make `run` ask the name servers as soon as LOOK_UP_INTERVAL_MS allows."""
        self._is_wanted.set()

    async def run(self) -> None:
        """Ask the name servers after each call of `ask`, until cancelled."""
        while True:
            await self._is_wanted.wait()
            self._is_wanted.clear()
            try:
                async with asyncio.timeout(LOOK_UP_TIMEOUT_S):
                    found = await self._look_up()
                    if found is not None:
                        self._registered = await _resolved(found)
            except TimeoutError:
                self._log.debug("slave.addresses_unknown")
            self._answered_ms = self._now_ms()  # without an answer, the last one goes on counting
            self.changed()
            await asyncio.sleep(LOOK_UP_INTERVAL_MS / 1000)

    def _is_given(self, host: str, own_host: str) -> bool:
        address = _address(host)
        if self._allowed.any or address is None:
            return self._allowed.any
        if any(address in network for network in self._allowed.networks):
            return True
        is_here = address.is_loopback or str(address) in _texts([own_host])
        return self._allowed.registered and is_here


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _texts(hosts: Iterable[str]) -> set[str]:
    return {str(address) for host in hosts if (address := _address(host)) is not None}


async def _resolved(hosts: Iterable[str]) -> frozenset[str]:
    known = set(hosts)
    found = _texts(known)
    loop = asyncio.get_running_loop()
    for name in sorted(host for host in known if _address(host) is None):
        try:
            infos = await loop.getaddrinfo(name, None)
        except OSError:
            continue
        found |= _texts(str(info[4][0]) for info in infos)
    return frozenset(found)
