# SPDX-License-Identifier: Apache-2.0
"""The commands' admin client, which continues without brokers that do not answer."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import filterfalse
from typing import Final, TypeVar

import typer

from cometmq.cli.access import ACCESS
from cometmq.cli.outcome import MISSING, note_damage
from cometmq.cli.output import Cell
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import BrokerMissing, ClientError, InvalidArgument, NoRoute
from cometmq.client.settings import ClientOptions
from cometmq.insight.reading import ReadingAdmin
from cometmq.remoting.bodies.route import ClusterInfo, TopicRoute
from cometmq.remoting.errors import (
    NO_ANSWER,
    CometError,
    CommandError,
    ConnectFailed,
    RemoteProtocolError,
    RequestTimeout,
    TopicNotExist,
)
from cometmq.remoting.names import is_system_topic
from cometmq.remoting.spelling import did_you_mean
from cometmq.remoting.visible import command

T = TypeVar("T")

GROUP_REMEDY: Final = (
    "for a broker group with failover, cometmq ha status -c FILE (the elector's) says what is"
    " missing"
)


class DryRun(Exception):
    """A dry run has reached its first change, so all checks before it have passed."""

    def __init__(self, what: str, places: Sequence[str]) -> None:
        super().__init__(what)
        self.what = what
        self.places = list(places)


class CommandAdmin(ReadingAdmin):
    """Continues without failing brokers and names them; distinguishes an empty cluster from a
    cluster whose brokers are down.
    """

    def __init__(self, namesrv: str, *, options: ClientOptions) -> None:
        super().__init__(namesrv, options=options)
        self._asked: set[str] = set()
        self._masters: set[str] = set()
        self.resume: Callable[[Sequence[BrokerAdmin]], str] = lambda _: "repeat the command"
        """Returns the remedy for an incomplete change, given the brokers that lack the change."""
        self.preview: dict[str, Cell] = {}
        """The fields of the change that a dry run prints."""

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
        """Return the masters; exit if there are none, so that an unreachable cluster does not look
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
        self.unanswered.setdefault(name, "it has no master")
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

    async def change_each(
        self,
        brokers: Iterable[BrokerAdmin],
        change: Callable[[BrokerAdmin], Awaitable[T]],
        what: str,
    ) -> list[T]:
        """Change brokers in turn; if one fails after others have changed, or does not answer, the
        error lists both, and the remedy.

        A command changes brokers only by this method, or after `check_dry_run`.
        """
        rest = list(brokers)
        self.check_dry_run(what, rest)
        answers: list[T] = []
        done: list[BrokerAdmin] = []
        while rest:
            try:
                answers.append(await change(rest[0]))
            except InvalidArgument:
                raise
            except CometError as error:
                if not done and not isinstance(error, NO_ANSWER):
                    raise
                raise self._half_done(what, done, rest, error) from error
            done.append(rest.pop(0))
        return answers

    def check_dry_run(self, what: str, brokers: Iterable[BrokerAdmin]) -> None:
        """Raise DryRun if the command must not change anything."""
        if ACCESS.get().is_dry_run:
            raise DryRun(what, sorted(it.name or it.address for it in brokers))

    def _half_done(
        self, what: str, done: Sequence[BrokerAdmin], rest: Sequence[BrokerAdmin], error: CometError
    ) -> ClientError:
        """Return the error for a change that has failed on the first broker in `rest`."""
        failed, *others = rest
        is_unsure = isinstance(error, NO_ANSWER) and not isinstance(error, ConnectFailed)
        places = {
            "done": _names(done),
            "perhaps done": _names([failed] if is_unsure else []),
            "not done": _names(others if is_unsure else rest),
        }
        outcome = ", ".join(f"{how} at {names}" for how, names in places.items() if names)
        reason = missing_text(failed.name, failed.address, error)
        return ClientError(f"{what}: {outcome}: {reason}; then {self.resume(rest)}")

    async def ask_all(
        self, brokers: Iterable[BrokerAdmin], question: Callable[[BrokerAdmin], Awaitable[T]]
    ) -> list[tuple[BrokerAdmin, T]]:
        """Query brokers concurrently before a change; if one does not answer, an error names it."""

        async def asked(broker: BrokerAdmin) -> T:
            try:
                return await question(broker)
            except NO_ANSWER as error:
                text = missing_text(broker.name, broker.address, error)
                raise ClientError(f"{self.unchanged}{text}") from error

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

    async def similar_topic(self, text: str) -> str:
        """Return a hint that names a topic spelt like the one in `text`, the text of a NoRoute."""
        named = _NO_TOPIC.match(text)
        if named is None:
            return ""
        return did_you_mean(named[1], filterfalse(is_system_topic, await self.topics()))

    def unreachable(self, broker: BrokerAdmin, error: CometError) -> None:
        """Record that the command continues without a broker."""
        super().unreachable(broker, error)
        note_missing(broker.name, broker.address, error)

    def refused(self, broker: BrokerAdmin, error: CometError) -> None:
        """Record that the command continues without a broker that cannot serve now; raise any other
        error."""
        super().refused(broker, error)
        place = f"{broker.name} ({broker.address})"
        MISSING.setdefault(
            f"{broker.address} refuses",
            f"broker {place} refuses: {error}; look at its log and its /readyz",
        )

    def without_topic(self, broker: BrokerAdmin, topic: str, _error: TopicNotExist) -> None:
        """Record that the command continues without a broker of a topic's route."""
        MISSING.setdefault(
            f"{broker.address} has no {topic}",
            f"broker {broker.name} ({broker.address}) does not have the topic {topic}, although the"
            " name server lists it there, as after a delete that failed halfway; to delete it"
            f" everywhere: {command('topic delete', topic)}; to have it there again:"
            f" {command('topic create', topic, options=('-b', broker.name))}",
        )

    def damaged(self, _event: str, text: str) -> None:
        """Print the damage, and make the command end with exit status 1."""
        note_damage(text)

    async def ask_each(
        self,
        brokers: Iterable[BrokerAdmin],
        question: Callable[[BrokerAdmin], Awaitable[T]],
        *,
        skip: tuple[type[CometError], ...] = (),
    ) -> list[tuple[BrokerAdmin, T]]:
        """Query brokers concurrently, and record that they were asked."""
        asked = list(brokers)
        self._asked.update(it.address for it in asked if not self.is_silent(it))
        return await super().ask_each(asked, question, skip=skip)

    def is_silent(self, broker: BrokerAdmin) -> bool:
        """Return whether a broker has failed to answer this command before."""
        return broker.address in MISSING

    async def ask_brokers_of(
        self,
        topic: str,
        question: Callable[[BrokerAdmin], Awaitable[T]],
        *,
        timeout_ms: int | None = None,
    ) -> list[tuple[BrokerAdmin, T]]:
        """Query one broker of each replica group in the route of a topic.

        If answers may take a long time, a quick query is sent first to find brokers that hang.
        """

        async def answers(broker: BrokerAdmin) -> None:
            with suppress(CommandError):  # a refusal is an answer
                await broker.runtime_info()

        if timeout_ms is not None:
            await self.ask_each(await self._brokers_of(topic), answers)
        return await super().ask_brokers_of(topic, question, timeout_ms=timeout_ms)

    def check_answers(self) -> None:
        """Exit with status 1 if none of the queried brokers, or none of the masters, has
        answered.
        """
        if any(brokers and brokers <= MISSING.keys() for brokers in (self._asked, self._masters)):
            raise typer.Exit(1)


_NO_TOPIC: Final = re.compile(r"no broker has the topic ([^\s:;]+)")


def _names(brokers: Iterable[BrokerAdmin]) -> str:
    return " and ".join(broker.name or broker.address for broker in brokers)


def no_broker_text(namesrvs: Iterable[str]) -> str:
    """Return the error message for a cluster without brokers; it names the remedy."""
    addresses = ";".join(namesrvs)
    return (
        f"no broker is registered at the name server {addresses}: start one (cometmq broker -n"
        f" '{addresses}'), or check the namesrvAddr of those that run; a broker registers when it"
        " starts (namesrv.registered in its log), and again within 30 s after a restart of the name"
        " server"
    )


def note_no_master(name: str, slaves: Sequence[str]) -> None:
    """Record a broker without a registered master, with a remedy."""
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
    if isinstance(error, RemoteProtocolError):
        return f"broker {place} cannot be used: {error}"
    return f"broker {place} does not answer: {error}"
