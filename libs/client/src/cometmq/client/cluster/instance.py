# SPDX-License-Identifier: Apache-2.0
"""What all clients with one client id share: connections, routes, heartbeats."""

import asyncio
import functools
import os
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec

from cometmq.client import request_reply
from cometmq.client.clock import wall_ms
from cometmq.client.cluster import broker_requests
from cometmq.client.cluster.broker_requests import LocalMembers
from cometmq.client.cluster.heartbeats import Heartbeats
from cometmq.client.cluster.late_sends import LateSends
from cometmq.client.cluster.namesrv import Namesrv, find_addresses
from cometmq.client.cluster.outages import Outages
from cometmq.client.cluster.route_book import Refreshes, RouteBook
from cometmq.client.cluster.routes import MASTER_ID, Route
from cometmq.client.errors import BrokerMissing, ClientStateError, InvalidArgument, NoNamesrv
from cometmq.client.namespace import DEFAULT_INSTANCE, client_id_of, namespace_of
from cometmq.client.option_checks import POLL_INTERVAL_MS, with_own_names
from cometmq.client.settings import ClientOptions
from cometmq.client.turns import for_each
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands import handlers_of
from cometmq.remoting.commands.clients import UnregisterClient
from cometmq.remoting.commands.table import Service
from cometmq.remoting.errors import CometError, Overloaded, SettingsError, TransportError
from cometmq.remoting.log import Log
from cometmq.remoting.signature import signing
from cometmq.remoting.transport.addresses import parse_address
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.settings import ClientSettings, TlsSettings
from cometmq.remoting.transport.tasks import TaskSet, describe

CALLBACKS: Final = handlers_of(Service.CLIENT, broker_requests, request_reply)
"""The functions that answer requests from brokers."""

MOVE_MS: Final = 300
"""Delay before a connection is renewed. Meanwhile, the route may change to a new master, or the
address of the broker group may begin to lead to it.
"""
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
        self.members = LocalMembers()
        self._key = (options, suffix)
        try:
            self.remoting = RemotingClient(
                ClientSettings(
                    serialization=options.serialization, tls=with_own_names(options.tls)
                ),
                clock_ms=wall_ms,
                handlers=CALLBACKS,
                context=self.members,
                log=log,
                before=() if options.credentials is None else (signing(options.credentials),),
                on_close=self._on_close,
            )
        except SettingsError as error:
            text = str(error) if options.tls.names else f"invalid option {error}"
            raise InvalidArgument(text) from error
        self.namesrv = Namesrv(addresses, self.remoting, timeout_ms=options.api_timeout_ms)
        self.log = log
        self.background = TaskSet(log)
        self.outages = Outages(log, groups=self.members.groups, is_probed=self._is_probed)
        self.routes = RouteBook(
            self.namesrv,
            wanted=self.members.topics,
            changed=self._route_changed,
            outages=self.outages,
            background=self.background,
            log=log,
        )
        self.refreshes = Refreshes(self.routes, self.background)
        self.late_sends = LateSends(self, self.background, log)
        self.heartbeats = Heartbeats(
            self.client_id,
            self.members,
            self.remoting,
            self.routes,
            self.refreshes,
            self.outages,
            options,
        )
        self._moving: set[str] = set()
        """Addresses whose connections are being renewed."""
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
            instance.refreshes.start(interval_ms=base.poll_namesrv_interval_ms)
            if base.namesrv_url:
                instance.background.keep(instance._keep_namesrv_list, name="client-namesrvs")
            instance.background.keep(instance.heartbeats.run, name="client-heartbeats")
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
        """Raise ClientStateError in another event loop, where calls would never return."""
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

    async def unregister(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        """Leave a group at every broker, so that the other members take over at once."""
        if producer_group is not None:
            self.members.producers.discard(producer_group)
        if consumer_group is not None:
            self.members.consumers.pop(consumer_group, None)
        header = UnregisterClient(self.client_id, producer_group, consumer_group)
        addresses = set(self.routes.brokers.all(with_slaves=True))
        connected = [*filter(self.remoting.is_connected, addresses)]
        leave = functools.partial(self._unregister_at, header)
        await for_each(connected, leave, running_max=len(connected))

    async def _unregister_at(self, header: UnregisterClient, address: str) -> None:
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
        return self.channel(self.routes.brokers.master(broker_name))

    async def find_master(self, broker_name: str, topic: str, *, wait_ms: int) -> str:
        """Return the address of the master; if there is none, look up the route of `topic`."""
        return self.channel(await self.routes.find_master(broker_name, topic, wait_ms=wait_ms))

    def is_connection_to(self, broker_name: str, peer: object) -> bool:
        addresses = self.routes.brokers.get(broker_name).values()
        return any(self.remoting.is_connection_to(address, peer) for address in addresses)

    def channel(self, address: str) -> str:
        """Return the address for all requests except pulls; `vip_channel` selects the VIP port."""
        if not self.options.vip_channel:
            return address
        host, port = parse_address(address)
        return f"{host}:{port - 2}"

    def suspect(self, address: str, silence: TransportError | None = None) -> None:
        """Check soon whether an unresponsive broker is alive and still in the routes.

        Unreachable brokers are already checked every second; after a `silence`, the broker counts
        as unreachable until it answers a heartbeat.
        """
        if address in self.outages:
            return
        if silence is not None and self._is_probed(address):
            self.outages.note(address, silence)
        self.log.debug("broker.suspected", peer=address)
        self.refreshes.look_soon()
        self.heartbeats.soon()

    def forwarded(self, address: str, broker_name: str, topic: str) -> None:
        """Look for the master, because a broker that is not the master has passed on a request."""
        self.refreshes.outdated(topic)
        if address not in self._moving:
            self._moving.add(address)
            self.background.spawn(self._move(address, broker_name), name="client-move")

    async def _move(self, address: str, broker_name: str) -> None:
        """Open a new connection to `address` if the route still names it as the master's.

        If it is the address of the whole broker group, the new connection leads to the new master.
        """
        try:
            await asyncio.sleep(MOVE_MS / 1000)
            if self.current_master(broker_name) == address:
                self.log.debug("connection.moved", peer=address)
                self.remoting.renew(address)
                self.heartbeats.greet_again(address)
                self.members.wake()
                await asyncio.sleep(MOVE_AGAIN_MS / 1000)
        finally:
            self._moving.discard(address)

    # -- for late sends -----------------------------------------------------------------------

    def reachable(self, queues: Sequence[MessageQueue]) -> Sequence[MessageQueue]:
        """Return the queues whose masters answer heartbeats; all of them if none does.

        A send to a frozen broker waits for its whole timeout, so later sends avoid that broker.
        """
        if not self.outages:
            return queues
        addresses = self.routes.brokers.get
        return [
            it for it in queues if addresses(it.broker_name).get(MASTER_ID, "") not in self.outages
        ] or queues

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
        """Return whether a broker answers a heartbeat in time, or its connection transfers other
        bytes.

        Bytes count, because a heartbeat waits behind large messages.
        """
        code, body = RequestCode.HEART_BEAT, self.heartbeats.body()
        watch = self.remoting.watch(address)
        try:
            await self.remoting.invoke(address, code, None, body, timeout_ms=timeout_ms)
        except Overloaded:  # nothing can be sent
            await asyncio.sleep(timeout_ms / 1000)
        except TransportError:  # no answer: what moved on the connection decides
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

    def _is_probed(self, address: str) -> bool:
        has_consumers = bool(self.members.consumers)
        return bool(self.members) and address in self.routes.brokers.all(with_slaves=has_consumers)

    def _route_changed(self, route: Route) -> None:
        addresses = set(self.routes.brokers.all(with_slaves=True))
        self.outages.keep_only(addresses)
        self.heartbeats.keep_only(addresses)
        self.heartbeats.greet_new()
        self.members.wake(route.topic)

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

    def _on_close(self, peer: PeerProtocol) -> None:
        """Send a heartbeat soon, because brokers forget the groups of a lost connection."""
        if peer.address not in self.namesrv.addresses and self._user_count:
            self.heartbeats.lost(peer.address)
            self.members.wake()


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
