# SPDX-License-Identifier: Apache-2.0
"""The addresses of the brokers in the routes of a client."""

from collections.abc import Iterator, Mapping

from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import broker_missing, master_missing


class BrokerAddresses:
    """Addresses by broker name and broker id."""

    def __init__(self) -> None:
        self._brokers: dict[str, Mapping[int, str]] = {}

    def get(self, broker_name: str) -> Mapping[int, str]:
        """Return the addresses of a broker name by id; empty if the name is unknown."""
        return self._brokers.get(broker_name, {})

    def update(self, brokers: Mapping[str, Mapping[int, str]]) -> None:
        """Add or replace broker groups."""
        self._brokers.update(brokers)

    def clear(self) -> None:
        """Forget all broker groups."""
        self._brokers.clear()

    def all(self, *, with_slaves: bool) -> Iterator[str]:
        """Yield the addresses of all known masters, and on request of their slaves."""
        for broker in self._brokers.values():
            for broker_id, address in broker.items():
                if with_slaves or broker_id == MASTER_ID:
                    yield address

    def has_master(self, broker_name: str) -> bool:
        """Return whether the address of the master is known."""
        return MASTER_ID in self.get(broker_name)

    def master(self, broker_name: str) -> str:
        """Return the address of the master; raise BrokerMissing if there is none."""
        address = self._ids(broker_name).get(MASTER_ID)
        if address is None:
            raise master_missing([broker_name])
        return address

    def any_of(self, broker_name: str, *, preferred_id: int = MASTER_ID) -> tuple[int, str]:
        """Return the id and address of the preferred broker of a broker group, or of any other
        member.
        """
        addresses = self._ids(broker_name)
        for broker_id in (preferred_id, preferred_id + 1):
            if broker_id in addresses:
                return broker_id, addresses[broker_id]
        return min(addresses.items())

    def _ids(self, broker_name: str) -> Mapping[int, str]:
        addresses = self.get(broker_name)
        if not addresses:
            raise broker_missing(broker_name)
        return addresses
