# SPDX-License-Identifier: Apache-2.0
"""What the producers and consumers with one client id share: connections, routes, heartbeats.

Invariants
    A broker that is in a route gets a heartbeat at once when it is seen first, when its
    connection was lost, and then every `heartbeat_interval_ms`. Routes are never forgotten
    because a name server has lost them: it may just have been restarted.
"""

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from cometmq.client.background import Background, Signal, described
from cometmq.client.callbacks import CALLBACKS, ConsumerMember
from cometmq.client.clock import wall_ms
from cometmq.client.discovery import POLL_INTERVAL_MS
from cometmq.client.errors import (
    BrokerMissing,
    ClientStateError,
    InvalidArgument,
    NoNamesrv,
    NoRoute,
)
from cometmq.client.identity import DEFAULT_INSTANCE, client_id_of
from cometmq.client.namesrv import Namesrv, find_addresses
from cometmq.client.routes import MASTER_ID, Route, as_default_route, route_of
from cometmq.client.settings import DEFAULT_TOPIC, ClientOptions
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat, ProducerData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.clients import UnregisterClient
from cometmq.remoting.errors import CometError, RequestTimeout
from cometmq.remoting.log import Log
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.settings import ClientSettings

RETRY_SOON_MS: Final = 1_000
"""How soon a missing route is asked for again, and an unreachable broker tried again."""

MISSING_MS: Final = 500
MISSING_SOON_COUNT: Final = 120
MISSING_LATER_MS: Final = 5_000
"""How often the route of a subscribed topic that does not exist is asked for."""

_INSTANCES: Final["WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, ClientInstance]]"] = (
    WeakKeyDictionary()
)


class ClientInstance:
    """One client id at all brokers, used by any number of producers and consumers."""

    def __init__(
        self, options: ClientOptions, addresses: Sequence[str], *, suffix: str, log: Log
    ) -> None:
        """Prepare on the running loop; nothing is connected yet."""
        self.options = options
        self.client_id = client_id_of(options, suffix=suffix)
        self._key = (options, suffix)
        self.remoting = RemotingClient(
            ClientSettings(serialization=options.serialization, tls=options.tls),
            clock_ms=wall_ms,
            handlers=CALLBACKS,
            context=self,
            log=log,
            on_close=self._on_close,
        )
        self.namesrv = Namesrv(addresses, self.remoting, timeout_ms=options.api_timeout_ms)
        self.producers: set[str] = set()
        self.consumers: dict[str, ConsumerMember] = {}
        self.routes: dict[str, Route] = {}
        self.log = log
        self.background = Background(log)
        self.broker_versions: dict[str, int] = {}
        self._brokers: dict[str, Mapping[int, str]] = {}
        self._fetching: dict[str, asyncio.Lock] = {}
        self._heartbeat_due = Signal()
        self._routes_due = Signal()
        self._missing_due = Signal()
        self._user_count = 0
        self._process_id = os.getpid()

    # -- life ---------------------------------------------------------------------------------

    @classmethod
    async def acquire(
        cls, options: ClientOptions, *, suffix: str = "", log: Log
    ) -> "ClientInstance":
        """Return the instance of that name on this loop; DEFAULT always makes a new one."""
        base = _base_options(options)
        addresses = await find_addresses(base.namesrv, base.namesrv_url)
        shared = _INSTANCES.setdefault(asyncio.get_running_loop(), {})
        instance = shared.get((base, suffix))
        if instance is None:
            instance = cls(base, addresses, suffix=suffix, log=log)
            if base.instance_name != DEFAULT_INSTANCE:
                shared[base, suffix] = instance
            instance.background.spawn(instance._keep_routes(), name="client-routes")
            instance.background.spawn(instance._find_missing_routes(), name="client-missing")
            if base.namesrv_url:
                instance.background.spawn(instance._keep_namesrv_list(), name="client-namesrvs")
            instance.background.spawn(instance._keep_heartbeats(), name="client-heartbeats")
        instance._user_count += 1
        return instance

    async def release(self) -> None:
        """Close everything when the last user leaves."""
        self._user_count -= 1
        if self._user_count:
            return
        shared = _INSTANCES.get(asyncio.get_running_loop(), {})
        if shared.get(self._key) is self:
            del shared[self._key]
        await self.background.close()
        await self.remoting.close()

    def check_process(self) -> None:
        """Refuse to work in a child process: the sockets belong to the parent."""
        if os.getpid() != self._process_id:
            raise ClientStateError("this client was started before a fork: start one in the child")

    def register_producer(self, group: str) -> None:
        """Name the group in heartbeats from now on."""
        if group in self.producers:
            raise InvalidArgument(
                f"The producer group[{group}] has been created before, specify another name please."
            )
        self.producers.add(group)

    def register_consumer(self, group: str, consumer: ConsumerMember) -> None:
        """Name the group in heartbeats, and pass its callbacks on, from now on."""
        if group in self.consumers:
            raise InvalidArgument(
                f"The consumer group[{group}] has been created before, specify another name please."
            )
        self.consumers[group] = consumer

    async def unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Leave a group at every broker, so that the others take over at once."""
        if producer_group is not None:
            self.producers.discard(producer_group)
        if consumer_group is not None:
            self.consumers.pop(consumer_group, None)
        header = UnregisterClient(self.client_id, producer_group, consumer_group)
        async with asyncio.TaskGroup() as group:
            for address in self._heartbeat_addresses(with_slaves=True):
                if self.remoting.is_connected(address):
                    group.create_task(self._unregister_at(address, header))

    async def _unregister_at(self, address: str, header: UnregisterClient) -> None:
        try:
            await self.remoting.invoke(
                address,
                RequestCode.UNREGISTER_CLIENT,
                header,
                timeout_ms=self.options.api_timeout_ms,
            )
        except CometError as error:
            self.log.warning("client.unregister_failed", peer=address, error=described(error))

    # -- routes -------------------------------------------------------------------------------

    async def route(self, topic: str) -> Route:
        """Return the route of a topic, asking once if it is unknown; NoRoute without one."""
        found = self.routes.get(topic) or await self.refresh_route(topic)
        if found is None:
            raise NoRoute(f"No route info of this topic: {topic}")
        return found

    async def publish_route(self, topic: str, *, default_topic: str, queue_nums: int) -> Route:
        """Return where to send: an unknown topic goes where new topics are created."""
        found = self.routes.get(topic) or await self.refresh_route(topic)
        if found is None:
            data = await self.namesrv.route(default_topic)
            if data is not None:
                found = as_default_route(topic, data, queue_nums=queue_nums)
                self._take_route(found)
        if found is None or not found.publish_queues:
            raise NoRoute(f"No route info of this topic: {topic}")
        return found

    async def refresh_route(self, topic: str) -> Route | None:
        """Ask a name server, keep what it says, and tell consumers what has changed."""
        lock = self._fetching.setdefault(topic, asyncio.Lock())
        try:
            async with lock:
                data = await self.namesrv.route(topic)
        finally:
            if not lock.locked():
                self._fetching.pop(topic, None)
        if data is None:
            return self.routes.get(topic)
        route = route_of(topic, data)
        if route != self.routes.get(topic):
            self._take_route(route)
        return route

    def suspect(self, address: str) -> None:
        """Find out soon whether a broker that does not answer is alive, and in the routes."""
        self.log.info("broker.suspected", peer=address)
        self._routes_due.set()
        self._heartbeat_due.set()

    def _take_route(self, route: Route) -> None:
        self.routes[route.topic] = route
        brokers: dict[str, Mapping[int, str]] = {}
        for known in self.routes.values():
            brokers.update(known.brokers)
        if brokers != self._brokers:
            self._brokers = brokers
            self._heartbeat_due.set()
        self.log.info("route.changed", topic=route.topic, brokers=sorted(route.brokers))
        for consumer in self.consumers.values():
            if route.topic in consumer.topics:
                consumer.wake()

    async def find_routes(self, topics: Collection[str]) -> None:
        """Ask for the routes of topics at a start; those that are missing may come later."""
        for topic in sorted(topics):
            try:
                await self.refresh_route(topic)
            except CometError as error:
                self.log.warning("route.unknown", topic=topic, error=described(error))

    async def meet_brokers(self, topics: Collection[str]) -> None:
        """Find the brokers of topics; for one that does not exist yet, those that may create it.

        So a group is known there, with its subscription, before the first message is.
        """
        await self.find_routes(topics)
        if not self.routes.keys() >= set(topics):
            await self.find_routes([DEFAULT_TOPIC])

    def find_routes_soon(self) -> None:
        """Look for the routes of newly subscribed topics."""
        self._missing_due.set()

    def _wanted_topics(self) -> set[str]:
        return {topic for consumer in self.consumers.values() for topic in consumer.topics}

    async def _keep_routes(self) -> None:
        while True:
            if await self._routes_due.wait(self.options.poll_namesrv_interval_ms):
                await asyncio.sleep(RETRY_SOON_MS / 1000)  # several failures, one look
            await self.find_routes(self.routes.keys() | self._wanted_topics())

    async def _find_missing_routes(self) -> None:
        """Ask for subscribed topics that do not exist yet: often at first, then more rarely."""
        round_count = 0
        while True:
            interval_ms = MISSING_MS if round_count < MISSING_SOON_COUNT else MISSING_LATER_MS
            if await self._missing_due.wait(interval_ms):
                round_count = 0
            missing = self._wanted_topics() - self.routes.keys()
            round_count = round_count + 1 if missing else 0
            await self.find_routes(missing)

    async def _keep_namesrv_list(self) -> None:
        options = self.options
        while True:
            await self.background.sleep(POLL_INTERVAL_MS)
            try:
                addresses = await find_addresses(options.namesrv, options.namesrv_url)
            except NoNamesrv as error:
                self.log.warning("namesrv.list_kept", error=str(error))
                continue
            if self.namesrv.replace(addresses):
                self.log.info("namesrv.list_changed", addresses=addresses)

    # -- brokers ------------------------------------------------------------------------------

    def broker_ids(self, broker_name: str) -> Mapping[int, str]:
        """Return the addresses of a broker group by broker id; BrokerMissing if unknown."""
        addresses = self._brokers.get(broker_name)
        if not addresses:
            raise BrokerMissing(f"The broker[{broker_name}] not exist")
        return addresses

    def master(self, broker_name: str) -> str:
        """Return the address that takes writes; BrokerMissing if there is none."""
        address = self.broker_ids(broker_name).get(MASTER_ID)
        if address is None:
            raise BrokerMissing(f"The broker[{broker_name}] not exist")
        return self.channel(address)

    def any_of(self, broker_name: str, *, preferred_id: int = MASTER_ID) -> tuple[int, str]:
        """Return id and address of the preferred broker of a group, else of another."""
        addresses = self.broker_ids(broker_name)
        for broker_id in (preferred_id, preferred_id + 1, *sorted(addresses)):
            if broker_id in addresses:
                return broker_id, addresses[broker_id]
        raise BrokerMissing(f"The broker[{broker_name}] not exist")

    def channel(self, address: str) -> str:
        """Return the address to use for all but pulls: the VIP port if that is wanted."""
        if not self.options.vip_channel:
            return address
        host, port = parse_address(address)
        return f"{host}:{port - 2}"

    # -- heartbeats ---------------------------------------------------------------------------

    def heartbeat_soon(self) -> None:
        """Announce what has changed without waiting for the next round."""
        self._heartbeat_due.set()

    async def heartbeat(self) -> bool:
        """Tell every known broker who is here; False if one of them does not answer."""
        if not self.producers and not self.consumers:
            return True
        heartbeat = Heartbeat(
            client_id=self.client_id,
            consumer_data_set=[c.heartbeat_data() for c in self.consumers.values()],
            producer_data_set=[ProducerData(group) for group in sorted(self.producers)],
        )
        body = encode_json(heartbeat)
        addresses = self._heartbeat_addresses(with_slaves=bool(self.consumers))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._heartbeat_at(a, body)) for a in addresses]
        return all(task.result() for task in tasks)

    async def _heartbeat_at(self, address: str, body: bytes) -> bool:
        try:
            response = await self.remoting.invoke(
                address, RequestCode.HEART_BEAT, None, body, timeout_ms=self.options.api_timeout_ms
            )
        except CometError as error:
            self.log.warning("heartbeat.failed", peer=address, error=described(error))
            if isinstance(error, RequestTimeout):
                # A cut cable closes no connection; what waits on this one is tried again.
                self.remoting.disconnect(address)
            return False
        self.broker_versions[address] = response.version
        return True

    def _heartbeat_addresses(self, *, with_slaves: bool) -> Collection[str]:
        return {
            address
            for broker in self._brokers.values()
            for broker_id, address in broker.items()
            if with_slaves or broker_id == MASTER_ID
        }

    async def _keep_heartbeats(self) -> None:
        interval_ms = self.options.heartbeat_interval_ms
        while True:
            await self._heartbeat_due.wait(interval_ms)
            is_complete = await self.heartbeat()
            if is_complete:
                interval_ms = self.options.heartbeat_interval_ms
            else:
                interval_ms = RETRY_SOON_MS
                self._routes_due.set()

    def _on_close(self, peer: PeerProtocol) -> None:
        """A broker forgets the groups of a lost connection: announce them on the next."""
        addresses = self._heartbeat_addresses(with_slaves=True)
        if peer.address in addresses and self._user_count:
            self._heartbeat_due.set()
            for consumer in self.consumers.values():
                consumer.wake()


def _base_options(options: ClientOptions) -> ClientOptions:
    """Return what all clients have in common, for two that may share an instance to compare."""
    names = ClientOptions.__struct_fields__
    values: dict[str, Any] = {name: getattr(options, name) for name in names}
    return msgspec.convert(values, ClientOptions)
