# SPDX-License-Identifier: Apache-2.0
"""Finds the address of a request's client: the peer's, or the one that a trusted proxy reports."""

import ipaddress
from typing import Final

from cometmq.remoting.errors import SettingsError

_ALL: Final = "*"
KNOWN_MAX: Final = 1_000


class Proxies:
    """The trusted proxies, whose `X-Forwarded-For` names the client."""

    def __init__(self, text: str) -> None:
        """Parse addresses and networks, separated by commas; raise SettingsError for others."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        self._all = _ALL in words
        try:
            self._networks = [ipaddress.ip_network(it) for it in words if it != _ALL]
        except ValueError as error:
            raise SettingsError(f"trustedProxies={text}: {error}") from None

    def client(self, peer: str, forwarded: str) -> str:
        """Return the address of the client; `forwarded` is the value of X-Forwarded-For.

        Each proxy appends the address of its own peer. The last address that is not a trusted proxy
        is the client's; a client can invent those before it.
        """
        found = [peer, *(it.strip() for it in reversed(forwarded.split(",")) if it.strip())]
        for address in found:
            if not self._trusts(address):
                return address
        return found[-1]

    def _trusts(self, address: str) -> bool:
        if self._all:
            return True
        try:
            parsed = _parsed(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)


class Known:
    """The networks from which users have logged in since the start, or had made changes before it;
    the latest ones.

    Strangers may have many addresses, so what limits all of them together leaves these out.
    """

    def __init__(self) -> None:
        self._networks: dict[str, None] = {}  # the last one to log in is the last

    def __contains__(self, address: str) -> bool:
        return network_of(address) in self._networks

    def add(self, address: str) -> None:
        """Remember an address from which a user has logged in."""
        network = network_of(address)
        self._networks.pop(network, None)
        self._networks[network] = None
        while len(self._networks) > KNOWN_MAX:
            del self._networks[next(iter(self._networks))]


def network_of(address: str) -> str:
    """Return the network that a single client may own: the address for IPv4, its first 64 bits for
    IPv6.
    """
    try:
        found = _parsed(address)
    except ValueError:
        return address
    return str(found) if found.version == 4 else found.packed[:8].hex()


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(address.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found
