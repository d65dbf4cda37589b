# SPDX-License-Identifier: Apache-2.0
"""The commands' admin client, which continues without brokers that do not answer."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

import typer

from cometmq.cli.outcome import MISSING, note_damage
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import BrokerMissing, ClientError, NoRoute
from cometmq.client.settings import ClientOptions
from cometmq.remoting.bodies.route import ClusterInfo, TopicRoute
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import (
    CometError,
    CommandError,
    ConnectFailed,
    RequestTimeout,
    ServerError,
    ServiceNotAvailable,
    SystemBusy,
    TransportError,
)

T = TypeVar("T")

_CANNOT_SERVE: Final = frozenset({ServerError, ServiceNotAvailable, SystemBusy})
"""Refusals that concern the broker rather than the request; subclasses have their own meaning."""

GROUP_REMEDY: Final = (
    "for a broker group with failover, cometmq ha status -c FILE (the elector's) says what is"
    " missing"
)


class CommandAdmin(AdminClient):
    """Continues without failing brokers, names them, and tells an empty cluster from one whose
    brokers are down.
    """

    def __init__(self, namesrv: str, *, options: ClientOptions) -> None:
        super().__init__(namesrv, options=options)
        self._asked: set[str] = set()
        self._masters: set[str] = set()
        self._changed: list[str] = []

    async def cluster(self) -> ClusterInfo:
        """Return all broker groups; raise BrokerMissing if none is registered."""
        info = await super().cluster()
        if not info.broker_addr_table:
            raise BrokerMissing(no_broker_text(self.namesrv.addresses))
        groups = info.broker_addr_table.values()
        self._masters = {
            it.broker_addrs[MASTER_ID] for it in groups if MASTER_ID in it.broker_addrs
        }
        return info

    async def topics(self) -> list[str]:
        """Return the names of all topics; raise BrokerMissing if no broker is registered."""
        found = await super().topics()
        await super().masters()  # a broker without a master may have more
        return found

    async def masters(self, cluster: str | None = None) -> dict[str, BrokerAdmin]:
        """Return the masters; if no broker has one, exit, because the cluster would otherwise look
        empty.
        """
        masters = await super().masters(cluster)
        if not masters:
            raise typer.Exit(1)
        return masters

    async def masters_or_slaves(self, cluster: str | None = None) -> dict[str, BrokerAdmin]:
        """Return one broker of each group to read from: the master or, if there is none, a
        slave.
        """
        groups = await self.broker_groups(cluster)
        for name, group in groups.items():
            if MASTER_ID not in group:
                self.without_master(name, [slave.address for slave in group.values()])
        return {name: group[min(group)] for name, group in groups.items() if group}

    def without_master(self, name: str, slaves: Sequence[str]) -> None:
        """Record that the command continues without a broker that has no master."""
        note_no_master(name, slaves)

    async def masters_to_change(
        self, cluster: str | None = None, names: Iterable[str] | None = None
    ) -> dict[str, BrokerAdmin]:
        """Return the masters for a change, and raise if a broker has none.

        Without `names`, brokers that have no master are recorded first.
        """
        if names is None:
            await super().masters(cluster)
        return await super().masters_to_change(cluster, names)

    async def put_topic(self, config: TopicConfig, masters: Iterable[BrokerAdmin]) -> None:
        """Create or change a topic; if a broker does not answer, say which brokers have changed."""
        for master in masters:
            try:
                await super().put_topic(config, [master])
            except TransportError as error:
                done = f"changed: {', '.join(self._changed) or 'nothing'}"
                if not isinstance(error, ConnectFailed):
                    done += f"; {master.name} may have changed, too"
                text = missing_text(master.name, master.address, error)
                raise ClientError(f"{text}; {done}; the other brokers have not changed") from error
            self._changed.append(master.name)

    async def ask_all(
        self, brokers: Iterable[BrokerAdmin], question: Callable[[BrokerAdmin], Awaitable[T]]
    ) -> list[tuple[BrokerAdmin, T]]:
        """Query brokers concurrently, as before a change; name a broker that does not answer."""

        async def asked(broker: BrokerAdmin) -> T:
            try:
                return await question(broker)
            except TransportError as error:
                text = missing_text(broker.name, broker.address, error)
                raise ClientError(f"nothing was changed: {text}") from error

        return await super().ask_all(brokers, asked)

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic; raise BrokerMissing if no broker is registered."""
        try:
            found = await super().route(topic)
        except NoRoute:
            await self.masters()
            raise
        for data in found.broker_datas:
            if MASTER_ID not in data.broker_addrs:
                self.without_master(data.broker_name, list(data.broker_addrs.values()))
        return found

    def unreachable(self, broker: BrokerAdmin, error: TransportError) -> None:
        """Record that the command continues without a broker."""
        note_missing(broker.name, broker.address, error)

    def refused(self, broker: BrokerAdmin, error: CometError) -> None:
        """Record that the command continues without a broker that cannot serve now; raise any other
        error."""
        if type(error) not in _CANNOT_SERVE:
            raise error
        place = f"{broker.name} ({broker.address})"
        MISSING.setdefault(
            f"{broker.address} refuses",
            f"broker {place} refuses: {error}; look at its log and its /readyz",
        )

    def damaged(self, _event: str, text: str) -> None:
        """Print the damage, and make the command fail when it ends."""
        note_damage(text)

    async def ask_each(
        self,
        brokers: Iterable[BrokerAdmin],
        question: Callable[[BrokerAdmin], Awaitable[T]],
        *,
        skip: tuple[type[CometError], ...] = (),
    ) -> list[tuple[BrokerAdmin, T]]:
        """Query brokers concurrently, skipping brokers that have failed to answer before."""
        asked = [broker for broker in brokers if broker.address not in MISSING]
        self._asked.update(broker.address for broker in asked)
        return await super().ask_each(asked, question, skip=skip)

    def check_answers(self) -> None:
        """Exit with status 1 if none of the queried brokers, or none of the masters, has
        answered.
        """
        if any(brokers and brokers <= MISSING.keys() for brokers in (self._asked, self._masters)):
            raise typer.Exit(1)


def no_broker_text(namesrvs: Iterable[str]) -> str:
    """Return the error for a cluster without brokers, with a remedy."""
    addresses = ";".join(namesrvs)
    return (
        f"no broker is registered at the name server {addresses}: all are down, are registered"
        " elsewhere, or have not registered again since its start (try again in 30 s, the interval"
        f" of registrations); start one with: cometmq broker -n '{addresses}'"
    )


def note_no_master(name: str, slaves: Sequence[str]) -> None:
    """Record a broker of which only slaves are registered, with a remedy."""
    registered = ""
    if slaves:
        word = "slave is" if len(slaves) == 1 else "slaves are"
        registered = f"; its {word} up ({', '.join(slaves)})"
    MISSING.setdefault(
        name,
        f"broker {name} has no master: nobody can send to it{registered};"
        f" start the master, or look at its log; {GROUP_REMEDY}",
    )


def note_missing(name: str, address: str, error: CometError) -> None:
    """Record a broker that did not answer, with a remedy."""
    MISSING.setdefault(address, missing_text(name, address, error))


def missing_text(name: str, address: str, error: CometError) -> str:
    """Return why a broker did not answer, with a remedy."""
    place = f"{name} ({address})" if name else address
    if isinstance(error, ConnectFailed):
        return f"broker {place} is down: {error}; start it, or look at its log"
    if isinstance(error, RequestTimeout):
        return f"broker {place} hangs: {error}; look at its log and its /readyz"
    if isinstance(error, CommandError):
        return f"broker {place} refuses: {error}"
    return f"broker {place} does not answer: {error}"
