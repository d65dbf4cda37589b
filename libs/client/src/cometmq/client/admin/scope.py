# SPDX-License-Identifier: Apache-2.0
"""The scope of an admin call: the name servers, brokers, clusters and topics that it covers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import ClassVar, Self, TypeVar

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.arguments import (
    check_address,
    check_kind,
    check_names,
    check_queue,
    whole_or,
)
from cometmq.client.cluster.instance import ClientInstance
from cometmq.client.cluster.lifecycle import Client, ClientState
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import BrokerMissing, InvalidArgument, no_brokers, no_route
from cometmq.client.log import AnyLog
from cometmq.client.message import check_named
from cometmq.client.option_checks import checked
from cometmq.client.settings import ClientOptions
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.route import BrokerData, ClusterInfo, TopicRoute
from cometmq.remoting.errors import NO_ANSWER, AccessDenied, CometError, TopicNotExist
from cometmq.remoting.message.flags import Perm

T = TypeVar("T")


class AdminBase(Client):
    """The base of admin clients; it finds the servers for each call."""

    KIND = "admin"
    OPTIONS: ClassVar = ClientOptions
    unchanged = "nothing was changed: "
    """Prefix of errors that end a call before its first change; empty if a client only reads."""

    def __init__(
        self, namesrv: str = "", *, options: ClientOptions | None = None, log: AnyLog = None
    ) -> None:
        """Use the name servers in `namesrv`; if it is empty, use the option `namesrv`."""
        super().__init__(log)
        given = ClientOptions() if options is None else options
        self.options = checked(given, namesrv, is_exact=True)

    @classmethod
    def attached(cls, instance: ClientInstance, log: AnyLog) -> Self:
        """Return an admin client over a running client's connections, which it leaves open."""
        found = cls(options=instance.options, log=log)
        found.state = ClientState.RUNNING
        found._instance = instance
        return found

    async def _enter(self, stack: AsyncExitStack) -> ClientInstance:
        instance = await ClientInstance.acquire(self.options, log=self._log)
        stack.push_async_callback(instance.release)
        return instance

    @property
    def namesrv(self) -> NamesrvAdmin:
        """The name servers' administration; raises ClientStateError unless the client runs."""
        return NamesrvAdmin(self._running().namesrv)

    def broker(self, address: str, *, name: str = "", timeout_ms: int | None = None) -> BrokerAdmin:
        """Return the broker at an address, `host:port`."""
        check_address(address, "address")
        return BrokerAdmin(
            self._running().remoting,
            address,
            timeout_ms=whole_or(self.options.api_timeout_ms, timeout_ms, "timeout_ms"),
            name=name,
            on_damage=self.damaged,
        )

    async def cluster(self) -> ClusterInfo:
        """Return all broker groups and the clusters they belong to."""
        return await self.namesrv.cluster()

    async def broker_groups(self, cluster: str | None = None) -> dict[str, dict[int, BrokerAdmin]]:
        """Return all brokers by name and id, of one cluster or of all."""
        if cluster is not None:
            check_kind(cluster, str, "cluster")
        info = await self.cluster()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise BrokerMissing(f"there is no cluster {cluster}; the clusters are: {known}")
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster]
        return {
            name: {
                broker_id: self.broker(address, name=name)
                for broker_id, address in sorted(info.broker_addr_table[name].broker_addrs.items())
            }
            for name in sorted(names)
        }

    async def masters(self, cluster: str | None = None) -> dict[str, BrokerAdmin]:
        """Return the masters by broker name; call `without_master` for a broker without one."""
        masters: dict[str, BrokerAdmin] = {}
        for name, group in (await self.broker_groups(cluster)).items():
            if MASTER_ID in group:
                masters[name] = group[MASTER_ID]
            else:
                self.without_master(name, [slave.address for slave in group.values()])
        return masters

    async def masters_to_change(
        self, cluster: str | None = None, names: Iterable[str] | None = None
    ) -> dict[str, BrokerAdmin]:
        """Return the masters of the brokers in `names`, or of all brokers, for a change.

        Raise BrokerMissing if a broker has no master, because that broker would miss the change.
        """
        if names is not None:
            names = check_names(names, "broker_names")
            if not names:
                raise InvalidArgument(
                    "broker_names is empty: name the brokers to change, or leave it out for all"
                )
        groups = await self.broker_groups(cluster)
        wanted = sorted(set(groups if names is None else names))
        unknown = [name for name in wanted if name not in groups]
        if unknown or not wanted:
            known = ", ".join(groups) or "none"
            missing = ", ".join(unknown) or "at all"
            raise BrokerMissing(f"there is no master {missing}; the brokers are: {known}")
        self._check_masters({name: [*groups[name]] for name in wanted})
        return {name: groups[name][MASTER_ID] for name in wanted}

    def _check_masters(self, ids: Mapping[str, Iterable[int]]) -> None:
        """Raise BrokerMissing if one of these brokers has no master."""
        without = [name for name, found in ids.items() if MASTER_ID not in found]
        if without:
            verb = "has" if len(without) == 1 else "have"
            raise BrokerMissing(
                f"{self.unchanged}{', '.join(without)} {verb} no master; start it first"
                " (a group with failover elects one: see cometmq ha status), or name the other"
                " brokers only"
            )

    def without_master(self, _name: str, _slaves: Sequence[str]) -> None:
        """Continue without a broker that has no master; a subclass may override this to record it.

        `_slaves` are the addresses of its registered slaves.
        """

    def unreachable(self, _broker: BrokerAdmin, error: CometError) -> None:
        """Raise for a broker without a usable answer; a subclass may continue instead."""
        raise error

    def refused(self, _broker: BrokerAdmin, error: CometError) -> None:
        """Raise for a broker that refused; a subclass may override this to continue instead."""
        raise error

    def without_topic(self, _broker: BrokerAdmin, _topic: str, error: TopicNotExist) -> None:
        """Raise for a broker that is in the route of a topic but does not have the topic; a
        subclass may override this to continue instead.
        """
        raise error

    def damaged(self, event: str, text: str) -> None:
        """Log damaged messages in a broker's answer; the call continues with the others."""
        self._log.error(event, error=text)

    async def change_each(
        self,
        brokers: Iterable[BrokerAdmin],
        change: Callable[[BrokerAdmin], Awaitable[T]],
        what: str,
    ) -> list[T]:
        """Change brokers one after another; stop at the first error.

        `what` names the change for a subclass that reports which brokers have changed.
        """
        return [await change(broker) for broker in brokers]

    async def ask_all(
        self, brokers: Iterable[BrokerAdmin], question: Callable[[BrokerAdmin], Awaitable[T]]
    ) -> list[tuple[BrokerAdmin, T]]:
        """Query brokers concurrently; raise the first error if one does not answer."""
        answers: list[tuple[BrokerAdmin, T]] = []
        for broker, outcome in await _outcomes(brokers, question):
            if isinstance(outcome, CometError):
                raise outcome
            answers.append((broker, outcome))
        return answers

    async def ask_each(
        self,
        brokers: Iterable[BrokerAdmin],
        question: Callable[[BrokerAdmin], Awaitable[T]],
        *,
        skip: tuple[type[CometError], ...] = (),
    ) -> list[tuple[BrokerAdmin, T]]:
        """Query brokers concurrently; return the answers in the order of the brokers.

        A broker that refuses with an error in `skip` is left out, unless it denies access.
        `refused` is called for any other refusal, and `unreachable` for a broker that gives no
        usable answer.
        """
        answers: list[tuple[BrokerAdmin, T]] = []
        for broker, outcome in await _outcomes(brokers, question):
            if isinstance(outcome, skip) and not isinstance(outcome, AccessDenied):
                continue
            if isinstance(outcome, NO_ANSWER):
                self.unreachable(broker, outcome)
            elif isinstance(outcome, CometError):
                self.refused(broker, outcome)
            else:
                answers.append((broker, outcome))
        return answers

    async def ask_brokers_of(
        self,
        topic: str,
        question: Callable[[BrokerAdmin], Awaitable[T]],
        *,
        timeout_ms: int | None = None,
    ) -> list[tuple[BrokerAdmin, T]]:
        """Query one broker of each replica group in the route of a topic, as `ask_each` does.

        `without_topic` is called for a broker that does not have the topic. If no broker has it,
        raise TopicNotExist.
        """
        refusals: list[tuple[BrokerAdmin, TopicNotExist]] = []

        async def asked(broker: BrokerAdmin) -> T:
            try:
                return await question(broker)
            except TopicNotExist as error:
                refusals.append((broker, error))
                raise

        brokers = await self._brokers_of(topic, timeout_ms=timeout_ms)
        answers = await self.ask_each(brokers, asked, skip=(TopicNotExist,))
        for broker, error in refusals:
            if not answers:
                raise error
            self.without_topic(broker, topic, error)
        return answers

    async def masters_of(self, topic: str) -> list[BrokerAdmin]:
        """Return the masters that hold a topic."""
        return _masters_in(self, (await self.route(topic)).broker_datas)

    async def masters_to_change_of(self, topic: str) -> list[BrokerAdmin]:
        """Return the masters of a topic for a change; raise BrokerMissing if a broker has none."""
        places = (await self.route(topic)).broker_datas
        self._check_masters({data.broker_name: data.broker_addrs for data in places})
        return _masters_in(self, places)

    async def _brokers_of(self, topic: str, *, timeout_ms: int | None = None) -> list[BrokerAdmin]:
        """Return one broker of each replica group that holds the topic, preferably the master."""
        found = []
        for data in (await self.route(topic)).broker_datas:
            if data.broker_addrs:
                address = data.broker_addrs[min(data.broker_addrs)]
                found.append(self.broker(address, name=data.broker_name, timeout_ms=timeout_ms))
        return found

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic; raise NoRoute if there is none.

        Wait up to 0.3 s for a topic that no name server knows: a send may just have created it.
        """
        check_named(topic, "topic")
        route = await self._running().routes.fetch(topic)
        if route is None:
            namesrv = self._running().namesrv
            if await namesrv.has_brokers():
                raise no_route(topic)
            raise no_brokers(topic, namesrv.addresses)
        return route

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read."""
        return sorted(
            MessageQueue(topic, data.broker_name, number)
            for data in (await self.route(topic)).queue_datas
            if data.perm & Perm.READ
            for number in range(data.read_queue_nums)
        )

    async def _master_of(self, queue: MessageQueue, *, may_be_missing: bool = False) -> BrokerAdmin:
        """Return the master of a queue; raise InvalidArgument if there is no such queue."""
        check_queue(queue)
        check_named(queue.topic, "topic")
        instance = self._running()
        if may_be_missing:
            await instance.routes.find(queue.topic)
        else:
            await instance.routes.find_queue(queue)
        return self.broker(instance.master(queue.broker_name), name=queue.broker_name)


def _masters_in(admin: AdminBase, places: Iterable[BrokerData]) -> list[BrokerAdmin]:
    return [
        admin.broker(data.broker_addrs[MASTER_ID], name=data.broker_name)
        for data in places
        if MASTER_ID in data.broker_addrs
    ]


async def _outcomes(
    brokers: Iterable[BrokerAdmin], question: Callable[[BrokerAdmin], Awaitable[T]]
) -> list[tuple[BrokerAdmin, T | CometError]]:
    async def outcome(broker: BrokerAdmin) -> T | CometError:
        try:
            return await question(broker)
        except CometError as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [(broker, group.create_task(outcome(broker))) for broker in brokers]
    return [(broker, task.result()) for broker, task in tasks]
