# SPDX-License-Identifier: Apache-2.0
"""The state shared by all producers and consumers with the same client id: connections, routes,
heartbeats.

Invariants
    Every broker in a route receives a heartbeat when it is first seen, after its connection is
    lost, and every `heartbeat_interval_ms`.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from cometmq.client import request_reply
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.cluster import broker_requests
from cometmq.client.cluster.broker_requests import ConsumerMember, TransactionMember
from cometmq.client.cluster.discovery import POLL_INTERVAL_MS
from cometmq.client.cluster.late_sends import LateSends
from cometmq.client.cluster.namesrv import Namesrv, find_addresses
from cometmq.client.cluster.outages import Outages
from cometmq.client.cluster.route_book import RouteBook
from cometmq.client.cluster.routes import Route
from cometmq.client.errors import (
    BrokerMissing,
    ClientStateError,
    InvalidArgument,
    NoNamesrv,
)
from cometmq.client.identity import DEFAULT_INSTANCE, client_id_of
from cometmq.client.namespace import namespace_of
from cometmq.client.option_checks import tls_files_named
from cometmq.client.request_reply import PendingReplies
from cometmq.client.settings import ClientOptions
from cometmq.client.wakeup import Wakeup
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat, ProducerData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands import handlers_of
from cometmq.remoting.commands.clients import UnregisterClient
from cometmq.remoting.commands.table import Service
from cometmq.remoting.errors import (
    AccessDenied,
    CometError,
    Overloaded,
    RequestTimeout,
    TransportError,
)
from cometmq.remoting.log import Log
from cometmq.remoting.signature import signing
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.settings import ClientSettings, TlsSettings
from cometmq.remoting.transport.tasks import TaskSet, describe

CALLBACKS: Final = handlers_of(Service.CLIENT, broker_requests, request_reply)
"""The functions that answer requests from brokers."""

RETRY_SOON_MS: Final = 1_000
"""Delay before a retry to an unreachable broker, and before a rebalance after a failure."""

MOVE_MS: Final = 300
"""Delay before a connection is renewed: the route may name another master, and the group's address
needs a moment to lead there."""
MOVE_AGAIN_MS: Final = 700

_INSTANCES: Final["WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, ClientInstance]]"] = (
    WeakKeyDictionary()
)


class ClientInstance:
    """The connections of one client id, shared by any number of producers and consumers."""

    def __init__(
        self,
        options: ClientOptions,
        addresses: Sequence[str],
        *,
        suffix: str,
        is_named: bool = False,
        log: Log,
    ) -> None:
        """Create an instance on the running event loop; no connection is opened yet."""
        self.options = options
        self.client_id = client_id_of(options, suffix=suffix, is_named=is_named)
        self.namespace = namespace_of(options)
        self.replies = PendingReplies()
        self._key = (options, suffix)
        with tls_files_named(options.tls):
            self.remoting = RemotingClient(
                ClientSettings(serialization=options.serialization, tls=options.tls),
                clock_ms=wall_ms,
                handlers=CALLBACKS,
                context=self,
                log=log,
                before=() if options.credentials is None else (signing(options.credentials),),
                on_close=self._on_close,
            )
        self.namesrv = Namesrv(addresses, self.remoting, timeout_ms=options.api_timeout_ms)
        self.producers: set[str] = set()
        self.consumers: dict[str, ConsumerMember] = {}
        self.transaction_producers: dict[str, TransactionMember] = {}
        self.log = log
        self.background = TaskSet(log)
        self.outages = Outages(log, groups=self._groups, is_probed=self._is_probed)
        self.routes = RouteBook(
            self.namesrv,
            wanted=self._wanted_topics,
            changed=self._route_changed,
            outages=self.outages,
            background=self.background,
            log=log,
        )
        self.late_sends = LateSends(self, self.background, log)
        self.heartbeat_ms = monotonic_ms()
        """When the last heartbeat was sent."""
        self.refusals: dict[str, AccessDenied] = {}
        """Why brokers refused the last heartbeat, by address."""
        self._greeted: set[str] = set()
        self._moving: set[str] = set()
        """Addresses whose connections are being renewed."""
        self._heartbeat_due = Wakeup()
        self._user_count = 0
        self._process_id = os.getpid()
        self._loop = asyncio.get_running_loop()

    # -- life ---------------------------------------------------------------------------------

    @classmethod
    async def acquire(
        cls, options: ClientOptions, *, suffix: str = "", is_named: bool = False, log: Log
    ) -> "ClientInstance":
        """Return the instance with this name on the current event loop, creating it if necessary.

        The name DEFAULT creates a new instance every time, unless `is_named` is set. Clients that
        keep files under their client id set `is_named`, so that they find the files again.
        """
        base = _base_options(options)
        addresses = await find_addresses(base.namesrv, base.namesrv_url)
        shared = _INSTANCES.setdefault(asyncio.get_running_loop(), {})
        may_share = is_named or base.instance_name != DEFAULT_INSTANCE
        instance = shared.get((base, suffix)) if may_share else None
        if instance is None or instance.is_of_parent:
            instance = cls(base, addresses, suffix=suffix, is_named=is_named, log=log)
            _warn_if_unverified(base.tls, log)
            if may_share:
                shared[base, suffix] = instance
            instance.routes.start(interval_ms=base.poll_namesrv_interval_ms)
            if base.namesrv_url:
                instance.background.keep(instance._keep_namesrv_list, name="client-namesrvs")
            instance.background.keep(instance._keep_heartbeats, name="client-heartbeats")
        instance._user_count += 1
        return instance

    async def release(self) -> None:
        """Close all connections when the last client releases the instance."""
        self._user_count -= 1
        if self._user_count:
            return
        shared = _INSTANCES.get(asyncio.get_running_loop(), {})
        if shared.get(self._key) is self:
            del shared[self._key]
        await self.background.close()
        await self.remoting.close()

    @property
    def is_of_parent(self) -> bool:
        """Return whether this process was forked after the instance was created."""
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        """Raise in a forked child, because the sockets belong to its parent."""
        if self.is_of_parent:
            raise ClientStateError("this client was started before a fork: start one in the child")

    def check_loop(self, kind: str) -> None:
        """Raise ClientStateError in an event loop other than the client's, because calls there
        would never return.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # a plain call from a thread, such as a listener's
        if loop is not self._loop:
            end = "has ended" if self._loop.is_closed() else "runs elsewhere"
            raise ClientStateError(
                f"this {kind} belongs to the event loop in which it was started, which {end}: "
                "start, use and close it inside one `asyncio.run(...)`, or use cometmq.client.sync"
            )

    def register_producer(self, group: str) -> None:
        """Include the producer group in heartbeats."""
        if group in self.producers:
            raise InvalidArgument(
                f"this client already has a producer of the group {group}: use that one, or give "
                "one of them another group or instance_name"
            )
        self.producers.add(group)

    def register_consumer(self, group: str, consumer: ConsumerMember) -> None:
        """Include the group in heartbeats, and forward broker requests to the consumer."""
        if group in self.consumers:
            raise InvalidArgument(
                f"this client already has a consumer of the group {group}: use that one, or give "
                "one of them another group or instance_name"
            )
        self.consumers[group] = consumer

    async def unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Leave a group at every broker, so that the other members take over at once."""
        if producer_group is not None:
            self.producers.discard(producer_group)
        if consumer_group is not None:
            self.consumers.pop(consumer_group, None)
        header = UnregisterClient(self.client_id, producer_group, consumer_group)
        async with asyncio.TaskGroup() as group:
            for address in set(self.routes.addresses(with_slaves=True)):
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
            self.outages.failed("client.unregister_failed", error, peer=address)

    # -- brokers ------------------------------------------------------------------------------

    def master(self, broker_name: str) -> str:
        """Return the address of the master; raise BrokerMissing if there is none."""
        return self.channel(self.routes.master(broker_name))

    async def find_master(self, broker_name: str, topic: str, *, wait_ms: int) -> str:
        """Return the address of the master; if there is none, look up the route of `topic`."""
        return self.channel(await self.routes.find_master(broker_name, topic, wait_ms=wait_ms))

    def channel(self, address: str) -> str:
        """Return the address for all requests except pulls; `vip_channel` selects the VIP port."""
        if not self.options.vip_channel:
            return address
        host, port = parse_address(address)
        return f"{host}:{port - 2}"

    def suspect(self, address: str) -> None:
        """Check soon whether an unresponsive broker is alive and still in the routes.

        Unreachable brokers are already checked every second.
        """
        if address in self.outages:
            return
        self.log.debug("broker.suspected", peer=address)
        self.routes.look_soon()
        self._heartbeat_due.set()

    def forwarded(self, address: str, broker_name: str, topic: str) -> None:
        """Look for the master, because a broker that is not the master has passed on a request."""
        self.routes.outdated(topic)
        if address not in self._moving:
            self._moving.add(address)
            self.background.spawn(self._move(address, broker_name), name="client-move")

    async def _move(self, address: str, broker_name: str) -> None:
        """Open a new connection to an address that the route still gives for the master.

        It leads to the new master if it is the address of the group.
        """
        try:
            await asyncio.sleep(MOVE_MS / 1000)
            if self.current_master(broker_name) == address:
                self.log.debug("connection.moved", peer=address)
                self.remoting.renew(address)
                self._greeted.discard(address)
                self._heartbeat_due.set()
                for consumer in self.consumers.values():
                    consumer.wake()
                await asyncio.sleep(MOVE_AGAIN_MS / 1000)
        finally:
            self._moving.discard(address)

    # -- the interface `Brokers` of late sends -----------------------------------------------

    def current_master(self, broker_name: str) -> str | None:
        """Return the address for requests to a master, or None if there is none."""
        try:
            return self.master(broker_name)
        except BrokerMissing:
            return None

    async def look_up(self, topic: str) -> None:
        """Refresh the route of a topic; if no name server answers, the routes are left
        unchanged."""
        try:
            await self.routes.refresh(topic)
        except CometError as error:
            self.log.debug("route.unknown", topic=topic, error=describe(error))

    async def answers(self, address: str, *, timeout_ms: int) -> bool:
        """Return whether a broker answers a heartbeat in time, or anything else moves on its
        connection: a heartbeat waits behind large messages.
        """
        code, body = RequestCode.HEART_BEAT, self._heartbeat_body()
        watch = self.remoting.watch(address)
        try:
            await self.remoting.invoke(address, code, None, body, timeout_ms=timeout_ms)
        except Overloaded:  # nothing can be sent
            await asyncio.sleep(timeout_ms / 1000)
        except TransportError:
            pass
        except CometError:
            return True
        else:
            return True
        return watch is not None and watch.has_moved()

    async def answers_anew(self, address: str, *, timeout_ms: int) -> bool:
        """Return whether a broker answers over a new connection in time.

        The heartbeat names no groups: brokers would drop them when the connection is closed.
        """
        code, body = RequestCode.HEART_BEAT, encode_json(Heartbeat(client_id=self.client_id))
        return await self.remoting.answers_anew(address, code, body, timeout_ms=timeout_ms)

    def drop(self, address: str, reason: str) -> None:
        """Close the connection to a broker; its pending requests fail with the reason."""
        self.remoting.disconnect(address, reason)

    def _groups(self) -> list[str]:
        return sorted(self.producers | self.consumers.keys())

    def _is_probed(self, address: str) -> bool:
        """Return whether heartbeats are sent to an address."""
        is_member = bool(self.producers or self.consumers)
        return is_member and address in self.routes.addresses(with_slaves=bool(self.consumers))

    def _route_changed(self, route: Route) -> None:
        self.outages.keep_only(set(self.routes.addresses(with_slaves=True)))
        if not self._greeted.issuperset(self.routes.addresses(with_slaves=True)):
            self._heartbeat_due.set()
        for consumer in self.consumers.values():
            if route.topic in consumer.topics:
                consumer.wake()

    def _wanted_topics(self) -> set[str]:
        return {topic for consumer in self.consumers.values() for topic in consumer.topics}

    async def _keep_namesrv_list(self) -> None:
        options = self.options
        while True:
            await asyncio.sleep(POLL_INTERVAL_MS / 1000)
            try:
                addresses = await find_addresses(options.namesrv, options.namesrv_url)
            except NoNamesrv as error:
                self.log.warning("namesrv.list_kept", error=str(error))
                continue
            if self.namesrv.replace(addresses):
                self.log.info("namesrv.list_changed", addresses=addresses)

    # -- heartbeats ---------------------------------------------------------------------------

    def heartbeat_soon(self) -> None:
        """Send a heartbeat soon, to announce changes."""
        self._heartbeat_due.set()

    async def be_known(self) -> None:
        """Wait until every known broker has received our heartbeat and can send us requests."""
        if not self._greeted.issuperset(self.routes.addresses(with_slaves=False)):
            await self.heartbeat()

    async def heartbeat(self) -> bool:
        """Send a heartbeat to every known broker; return False if one needs a retry soon."""
        if not self.producers and not self.consumers:
            return True
        self.heartbeat_ms = monotonic_ms()
        body = self._heartbeat_body()
        addresses = set(self.routes.addresses(with_slaves=bool(self.consumers)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._heartbeat_at(a, body)) for a in addresses]
        return all(task.result() for task in tasks)

    def _heartbeat_body(self) -> bytes:
        heartbeat = Heartbeat(
            client_id=self.client_id,
            consumer_data_set=[c.heartbeat_data() for c in self.consumers.values()],
            producer_data_set=[ProducerData(group) for group in sorted(self.producers)],
        )
        return encode_json(heartbeat)

    async def _heartbeat_at(self, address: str, body: bytes) -> bool:
        try:
            await self.remoting.invoke(
                address, RequestCode.HEART_BEAT, None, body, timeout_ms=self.options.api_timeout_ms
            )
        except CometError as error:
            if isinstance(error, TransportError):
                self.outages.note(address, error)
                self.log.debug("heartbeat.failed", peer=address, error=describe(error))
            else:
                self.log.warning("heartbeat.failed", peer=address, error=describe(error))
            if isinstance(error, AccessDenied):
                self.refusals[address] = error
                return True  # refused by a live broker: no early retry
            if isinstance(error, RequestTimeout):
                # A cut cable leaves the connection open; drop it, so pending requests fail over.
                self.remoting.disconnect(address, describe(error))
            return False
        self._greeted.add(address)
        self.refusals.pop(address, None)
        self.outages.end(address)
        return True

    async def _keep_heartbeats(self) -> None:
        interval_ms = self.options.heartbeat_interval_ms
        while True:
            await self._heartbeat_due.wait(interval_ms)
            is_complete = await self.heartbeat()
            if is_complete:
                interval_ms = self.options.heartbeat_interval_ms
            else:
                interval_ms = RETRY_SOON_MS
                self.routes.look_soon()

    def _on_close(self, peer: PeerProtocol) -> None:
        """Send a heartbeat soon, because brokers forget the groups of a lost connection."""
        if peer.address in self.namesrv.addresses or not self._user_count:
            return
        if peer.address in self._greeted:
            self._greeted.discard(peer.address)
        else:
            self._greeted.clear()  # the routes have a different address for it: greet all brokers
        self._heartbeat_due.set()
        for consumer in self.consumers.values():
            consumer.wake()


def _base_options(options: ClientOptions) -> ClientOptions:
    """Return the options common to all clients, which decide whether two can share an instance."""
    names = ClientOptions.__struct_fields__
    values: dict[str, Any] = {name: getattr(options, name) for name in names}
    return msgspec.convert(values, ClientOptions)


def _warn_if_unverified(tls: TlsSettings, log: Log) -> None:
    if tls.enable and tls.trust_cert_path is not None and not tls.auth_server:
        log.warning(
            "tls.unverified",
            trust_cert_path=str(tls.trust_cert_path),
            advice="any server is trusted: set auth_server=True (tls.client.authServer=true) to "
            "verify the servers' certificates",
        )
