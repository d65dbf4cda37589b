# SPDX-License-Identifier: Apache-2.0
"""Heartbeats, which tell brokers the groups of a client.

Invariants
    Every broker in a route receives a heartbeat when it is first seen, after its connection is
    lost, and every `heartbeat_interval_ms`.
"""

import asyncio
from collections.abc import Collection
from typing import Final

from cometmq.client.clock import monotonic_ms
from cometmq.client.cluster.broker_requests import LocalMembers
from cometmq.client.cluster.outages import Outages
from cometmq.client.cluster.route_book import Refreshes, RouteBook
from cometmq.client.settings import ClientOptions
from cometmq.client.turns import APART_MS, Wakeup, for_each
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat, ProducerData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import AccessDenied, CometError, RequestTimeout, TransportError
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.tasks import describe

RETRY_SOON_MS: Final = 1_000
"""Delay before a retry to an unreachable broker, and before a rebalance after a failure."""


class Heartbeats:
    """Sends the heartbeats of one client instance."""

    def __init__(
        self,
        client_id: str,
        members: LocalMembers,
        remoting: RemotingClient,
        routes: RouteBook,
        refreshes: Refreshes,
        outages: Outages,
        options: ClientOptions,
    ) -> None:
        self._client_id = client_id
        self._members = members
        self._remoting = remoting
        self._routes = routes
        self._refreshes = refreshes
        self._outages = outages
        self._options = options
        self._log = outages.log
        self.sent_ms = monotonic_ms()
        """When the last heartbeat was sent."""
        self.refusals: dict[str, AccessDenied] = {}
        """Why brokers refused the last heartbeat, by address."""
        self._greeted: set[str] = set()
        """The addresses of brokers that know our groups."""
        self._due = Wakeup()

    def soon(self) -> None:
        self._due.set()

    def greet_new(self) -> None:
        """Send a heartbeat soon if a broker in a route has not received one yet."""
        if not self._greeted.issuperset(self._routes.brokers.all(with_slaves=True)):
            self._due.set()

    def keep_only(self, addresses: Collection[str]) -> None:
        """Forget the brokers that are no longer in any route."""
        self._greeted.intersection_update(addresses)
        for gone in self.refusals.keys() - addresses:
            del self.refusals[gone]

    def lost(self, address: str) -> None:
        """Send a heartbeat soon, because brokers forget the groups of a lost connection; but wait
        for APART_MS since the last one, because a broker may close each connection.
        """
        if address not in self._greeted:
            self._greeted.clear()  # the routes have a different address for it: greet all brokers
        self._greeted.discard(address)
        left_ms = max(0, self.sent_ms + APART_MS - monotonic_ms())
        asyncio.get_running_loop().call_later(left_ms / 1000, self._due.set)

    def greet_again(self, address: str) -> None:
        self._greeted.discard(address)
        self._due.set()

    async def be_known(self) -> None:
        """Wait until every known broker has received our heartbeat and can send us requests."""
        if not self._greeted.issuperset(self._routes.brokers.all(with_slaves=False)):
            await self.send()

    async def send(self) -> bool:
        """Send a heartbeat to every known broker; return False if a broker needs a retry soon."""
        if not self._members:
            return True
        self.sent_ms = monotonic_ms()
        body = self.body()
        addresses = set(self._routes.brokers.all(with_slaves=bool(self._members.consumers)))
        failed: list[str] = []

        async def send_to(address: str) -> None:
            if not await self._send_to(address, body):
                failed.append(address)

        # All of them at once: a hung broker must not delay the heartbeats of others.
        await for_each(addresses, send_to, running_max=len(addresses))
        return not failed

    def body(self) -> bytes:
        heartbeat = Heartbeat(
            client_id=self._client_id,
            consumer_data_set=[c.heartbeat_data() for c in self._members.consumers.values()],
            producer_data_set=[ProducerData(group) for group in sorted(self._members.producers)],
        )
        return encode_json(heartbeat)

    async def _send_to(self, address: str, body: bytes) -> bool:
        timeout_ms = self._options.api_timeout_ms
        try:
            await self._remoting.invoke(
                address, RequestCode.HEART_BEAT, None, body, timeout_ms=timeout_ms
            )
        except CometError as error:
            if isinstance(error, TransportError):
                self._outages.note(address, error)
                self._log.debug("heartbeat.failed", peer=address, error=describe(error))
            else:
                self._log.warning("heartbeat.failed", peer=address, error=describe(error))
            if isinstance(error, AccessDenied):
                self.refusals[address] = error
                return True  # refused by a live broker: no early retry
            if isinstance(error, RequestTimeout):
                # A cut cable leaves the connection open; drop it, so pending requests fail over.
                self._remoting.disconnect(address, describe(error))
            return False
        self._greeted.add(address)
        self.refusals.pop(address, None)
        self._outages.end(address)
        return True

    async def run(self) -> None:
        """Send at intervals, and sooner after failures and changes."""
        interval_ms = self._options.heartbeat_interval_ms
        while True:
            await self._due.wait(interval_ms)
            is_complete = await self.send()
            if is_complete:
                interval_ms = self._options.heartbeat_interval_ms
            else:
                interval_ms = RETRY_SOON_MS
                self._refreshes.look_soon()
