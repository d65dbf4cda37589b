# SPDX-License-Identifier: Apache-2.0
"""Who sends a request: the address of the peer, or the one that a trusted proxy names."""

import ipaddress
from typing import Final

from cometmq.remoting.errors import SettingsError

_ALL: Final = "*"


class Proxies:
    """The proxies whose `X-Forwarded-For` names the client."""

    def __init__(self, text: str) -> None:
        """Parse addresses and networks, separated by commas; raise SettingsError for others."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        self._all = _ALL in words
        try:
            self._networks = [ipaddress.ip_network(it) for it in words if it != _ALL]
        except ValueError as error:
            raise SettingsError(f"trustedProxies={text}: {error}") from None

    def client(self, peer: str, forwarded: str) -> str:
        """Return the address of the client; `forwarded` has the addresses that proxies noted.

        Each proxy adds the address of its own peer, so the last one that is no trusted proxy
        counts; a client can invent the addresses before it.
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


def network_of(address: str) -> str:
    """Return the network that one stranger may have whole: an IPv4 address, or 64 bits of IPv6."""
    try:
        found = _parsed(address)
    except ValueError:
        return address
    return str(found) if found.version == 4 else found.packed[:8].hex()


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(address.partition("%")[0])
    return getattr(found, "ipv4_mapped", None) or found
