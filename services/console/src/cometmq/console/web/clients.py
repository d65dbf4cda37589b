# SPDX-License-Identifier: Apache-2.0
"""The networks of users who have logged in, and the proxies that may tell a client's address."""

from ipaddress import ip_network
from typing import Final

from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.http.server import network_of

KNOWN_MAX: Final = 1_000
_ALL: Final = "*"
_STRANGERS: Final = "strangers"  # no network has this name


def proxies_of(text: str) -> str:
    """Return the trusted proxies as uvicorn takes them; raise SettingsError for what is neither an
    address nor a network.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        for word in words:
            if word != _ALL:
                ip_network(word)
    except ValueError as error:
        raise SettingsError(f"trustedProxies={text}: {error}") from None
    return _ALL if _ALL in words else ",".join(words)


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

    def requester(self, client: str) -> Requester:
        """Return whose turn a client takes: that of its network, or the one of all strangers."""
        network = network_of(client)
        return Requester(network) if client in self else Requester(_STRANGERS, network)
