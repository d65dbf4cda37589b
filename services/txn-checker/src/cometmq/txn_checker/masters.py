# SPDX-License-Identifier: Apache-2.0
"""The connections to name servers and masters."""

from collections.abc import Sequence

from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.remoting.log import Log


class Masters(AdminClient):
    """An admin client that also records which brokers have no master."""

    def __init__(self, *, options: ClientOptions, log: Log) -> None:
        super().__init__(options=options, log=log)
        self._masterless: set[str] = set()

    def without_master(self, name: str, _slaves: Sequence[str]) -> None:
        self._masterless.add(name)

    def take_masterless(self) -> set[str]:
        """Return the brokers found to have only slaves since the last call."""
        found, self._masterless = self._masterless, set()
        return found

    def drop(self, address: str, reason: str) -> None:
        """Close the connection to a broker."""
        self._running().remoting.disconnect(address, reason)
