# SPDX-License-Identifier: Apache-2.0
"""Rounds of questions: which consumers are connected, and what each of them reports.

A round lists the groups of all brokers, then the members of each group, and asks each member once,
through one of the brokers that it is connected to (GET_CONSUMER_RUNNING_INFO). RocketMQ's exporter
does the same, but here the members that did not answer in the last round are asked last, so that
their timeouts delay no other member.

All that a round keeps is bounded by the settings: peers choose the names and numbers of groups,
members and topics.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple, TypeVar

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.exporter.settings import ExporterSettings
from cometmq.remoting.bodies.connections import Connection
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo, ConsumeStatus
from cometmq.remoting.errors import AccessDenied, CometError, ConsumerNotOnline, ServerError
from cometmq.remoting.log import Log
from cometmq.remoting.names import BOOT_GROUPS, is_system_group
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.clock import Clock


class ClientRow(NamedTuple):
    """The figures of one consumer for one topic."""

    address: str
    client_id: str
    group: str
    topic: str
    status: ConsumeStatus


class GroupRow(NamedTuple):
    """The members of one group; their addresses and ids are joined by commas."""

    addresses: str
    client_ids: str
    group: str
    member_count: int


class LeftOut(msgspec.Struct):
    """What the last round left out because of a limit."""

    groups: int = 0
    clients: int = 0
    late: int = 0
    rows: int = 0


class Figures(msgspec.Struct):
    """The figures of one round."""

    rows: list[ClientRow] = []
    groups: list[GroupRow] = []
    group_count: int = 0
    client_count: int = 0
    left_out: LeftOut = msgspec.field(default_factory=LeftOut)
    brokers: dict[str, str] = {}
    """Why a broker could not be asked, by name; empty for a broker that answered."""


class RoundEnd(StrEnum):
    """How a round ended."""

    COMPLETE = "complete"
    LATE = "late"
    FAILED = "failed"


class ExporterStats:
    """Counters since the start, and the figures of the last round."""

    def __init__(self) -> None:
        self.rounds = dict.fromkeys(RoundEnd, 0)
        self.asked_count = 0
        self.failed_count = 0
        self.last_round_s = 0.0
        self.last_round_at_s = 0.0
        self.figures = Figures()


class News:
    """The names of the parts that fail now."""

    def __init__(self) -> None:
        self._failing: frozenset[str] = frozenset()

    def update(
        self, failing: Collection[str], *, unexamined: Collection[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Return which parts have begun to fail since the last call, and which no longer do.

        A part in `unexamined` does not count as recovered.
        """
        now = self._failing.intersection(unexamined).union(failing)
        began, ended = sorted(now - self._failing), sorted(self._failing - now)
        self._failing = now
        return began, ended


T = TypeVar("T")

BROKERS_MAX: Final = 1_000
"""Maximum number of brokers that are asked: any process may register as one."""
NAME_LENGTH_MAX: Final = 255
"""Longer names of groups, clients and topics are left out; RocketMQ's own limits are lower."""


class Member(NamedTuple):
    """A connected consumer, and the broker through which it is asked."""

    group: str
    client_id: str
    address: str
    broker: BrokerAdmin


class Failure(msgspec.Struct):
    """The members of one group that did not answer: one of them, with its error, and the number."""

    client: str
    error: str
    count: int = 0


class Rounds:
    """Runs the rounds one after another, and keeps the figures of the last one."""

    def __init__(
        self, cluster: AdminClient, settings: ExporterSettings, *, clock: Clock, log: Log
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._log = log
        self._broker_news, self._client_news, self._limit_news = News(), News(), News()
        self._silent: set[tuple[str, str]] = set()
        self._is_listed = True
        self.stats = ExporterStats()
        self.fault: str | None = "no round has ended yet"
        """Why the last round failed, or None."""

    async def round(self) -> None:
        """Ask all consumers, and replace the figures; errors of peers are noted, not raised."""
        begin_ms = self._clock.monotonic_ms()
        one = _Round(self._settings, self.stats, self._silent)
        end, fault = RoundEnd.FAILED, "the last round failed: see the log"
        try:
            brokers = await self._brokers()  # this has timeouts of its own
            async with asyncio.timeout(self._settings.collect_timeout / 1_000):
                await one.run(brokers)
            end = RoundEnd.COMPLETE
        except TimeoutError:
            end = RoundEnd.LATE
        except CometError as error:
            fault = f"{self._settings.namesrv_addr}: {error}"
            if self._is_listed:  # rounds are seconds apart: log each outage once
                self._log.warning("brokers.unlisted", error=describe(error))
            self._is_listed = False
        finally:  # figures of an older round must not pass for current ones
            self.fault = fault if end is RoundEnd.FAILED else None
            self.stats.rounds[end] += 1
            self.stats.figures = one.figures()
            self.stats.last_round_s = (self._clock.monotonic_ms() - begin_ms) / 1_000
            self.stats.last_round_at_s = self._clock.now_ms() / 1_000
        if end is not RoundEnd.FAILED:
            self._silent = one.still_silent()
            self._tell(one)

    async def _brokers(self) -> list[BrokerAdmin]:
        """Return one broker of each replica group: the master, or a slave while there is none.

        Consumers are connected to both.
        """
        found = await self._cluster.broker_groups()
        names = sorted(name for name, ids in found.items() if ids and len(name) <= NAME_LENGTH_MAX)
        return [found[name][min(found[name])] for name in names[:BROKERS_MAX]]

    def _tell(self, one: "_Round") -> None:
        """Log what has begun or ceased to fail."""
        if not self._is_listed:
            self._log.info("brokers.listed")
            self._is_listed = True
        brokers = {name: why for name, why in self.stats.figures.brokers.items() if why}
        began, ended = self._broker_news.update(brokers, unexamined=one.unexamined_brokers())
        for name in began:
            self._log.warning("broker.unanswered", broker=name, error=brokers[name])
        for name in ended:
            self._log.info("broker.answered", broker=name)
        began, ended = self._client_news.update(one.failures, unexamined=one.unexamined_groups())
        for name in began:
            failure = one.failures[name]
            self._log.warning(
                "members.unanswered",
                group=name, members=failure.count, client=failure.client, error=failure.error,
            )  # fmt: skip
        for name in ended:
            self._log.info("members.answered", group=name)
        left = self.stats.figures.left_out
        counts = msgspec.structs.asdict(left)
        began, _ = self._limit_news.update([kind for kind, count in counts.items() if count])
        if began:
            self._log.warning(
                "limits.exceeded",
                groups=left.groups, clients=left.clients, late=left.late, rows=left.rows,
            )  # fmt: skip


def fair_size(sizes: Iterable[int], total: int) -> int:
    """Return the size above which groups are cut so that together they have about `total` entries;
    at least 1.
    """
    ascending = sorted(sizes)
    for number, size in enumerate(ascending):
        share = max(1, total // (len(ascending) - number))
        if size > share:
            return share
        total -= size
    return max(ascending, default=1)


def cut(groups: Mapping[str, list[T]], total: int) -> int:
    """Shorten the largest lists until all together have at most `total` items; return their number.

    A group may have any number of members, and a consumer may report any number of topics: they
    must not displace those of other groups.
    """
    left, size_max = total, fair_size(map(len, groups.values()), total)
    spare = total - sum(min(len(items), size_max) for items in groups.values())
    for items in groups.values():
        kept = size_max
        if len(items) > kept and spare > 0:
            kept, spare = kept + 1, spare - 1
        del items[min(kept, left) :]
        left -= len(items)
    return total - left


class _Round:
    """The figures of one round as they grow."""

    def __init__(
        self, settings: ExporterSettings, stats: ExporterStats, silent: set[tuple[str, str]]
    ) -> None:
        self._settings = settings
        self._stats = stats
        self._were_silent = silent
        self._found = Figures()
        self._tables: dict[str, frozenset[str]] = {}
        """The groups of each broker that has listed them."""
        self._unlisted: set[str] = set()
        """The groups whose members have not been listed yet."""
        self._listed: dict[str, list[Member]] = {}
        self._listed_count = 0
        self._member_counts: dict[str, int] = {}
        self._members: list[Member] = []
        self._unasked: set[tuple[str, str]] = set()
        self._silent: set[tuple[str, str]] = set()
        self._rows: dict[str, list[ClientRow]] = {}
        self._row_count = 0
        self.failures: dict[str, Failure] = {}

    def figures(self) -> Figures:
        """Return what has been found so far; the rows are sorted."""
        found = self._found
        found.left_out.late = len(self._unasked)
        self._cut_rows()
        found.rows = [row for rows in self._rows.values() for row in rows]
        found.rows.sort(key=lambda row: (row.group, row.client_id, row.topic))
        return found

    def unexamined_brokers(self) -> set[str]:
        """Return the brokers whose groups have not been listed."""
        return {name for name in self._found.brokers if name not in self._tables}

    def unexamined_groups(self) -> set[str]:
        """Return the groups whose members have not all been asked."""
        return self._unlisted.union(group for group, _ in self._unasked)

    def still_silent(self) -> set[tuple[str, str]]:
        """Return the group and client id of each member that did not answer when last asked."""
        return self._silent | (self._were_silent & self._unasked)

    async def run(self, brokers: Sequence[BrokerAdmin]) -> None:
        self._found.brokers = {broker.name: "" for broker in brokers}
        for some in self._parts(brokers):
            async with asyncio.TaskGroup() as tasks:
                for broker in some:
                    tasks.create_task(self._list_groups(broker))
        kept = self._kept_groups(frozenset().union(*self._tables.values()))
        self._unlisted.update(kept)
        try:
            for groups in self._parts(kept):
                async with asyncio.TaskGroup() as tasks:
                    answers = [
                        (group, tasks.create_task(self._members_of(group, brokers)))
                        for group in groups
                    ]
                for group, answer in answers:
                    self._take(group, answer.result())
        finally:
            self._choose()
        self._members.sort(key=lambda one: one[:2] in self._were_silent)  # these come last
        pending = iter(self._members)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(len(self._members), self._settings.collect_concurrency)):
                tasks.create_task(self._ask_each(pending))

    def _parts(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yield the items in parts that may be requested at the same time."""
        size = self._settings.collect_concurrency
        return (items[begin : begin + size] for begin in range(0, len(items), size))

    async def _list_groups(self, broker: BrokerAdmin) -> None:
        try:
            table = await broker.groups()
        except CometError as error:
            self._lost(broker, error)
            return
        kept = sorted(table)[: self._settings.groups_max]
        self._tables[broker.name] = frozenset(kept)
        left = self._found.left_out  # brokers have much the same groups, so this is no sum
        left.groups = max(left.groups, len(table) - len(kept))

    def _kept_groups(self, groups: Collection[str]) -> list[str]:
        fit = sorted(group for group in groups if len(group) <= NAME_LENGTH_MAX)
        kept = fit[: self._settings.groups_max]
        self._found.left_out.groups += len(groups) - len(kept)
        self._found.group_count = len(kept)
        return kept

    async def _members_of(
        self, group: str, brokers: Iterable[BrokerAdmin]
    ) -> dict[str, tuple[Connection, BrokerAdmin]]:
        """Return the members of a group by client id, each with one broker that it is connected
        to.
        """
        members: dict[str, tuple[Connection, BrokerAdmin]] = {}
        for broker in brokers:
            if self._found.brokers[broker.name] or group not in self._tables[broker.name]:
                continue
            try:
                answer = await broker.consumer_connections(group)
            except AccessDenied as error:
                self._lost(broker, error)
            except (ConsumerNotOnline, ServerError):  # no members, or it has deleted the group
                continue
            except CometError as error:
                self._lost(broker, error)
            else:
                for one in answer.connection_set:
                    members.setdefault(one.client_id, (one, broker))
        return members

    def _take(self, group: str, members: Mapping[str, tuple[Connection, BrokerAdmin]]) -> None:
        """Note the members of a group."""
        self._unlisted.discard(group)
        self._found.client_count += len(members)
        self._member_counts[group] = len(members)
        self._listed[group] = [
            Member(group, one, connection.client_addr, broker)
            for one, (connection, broker) in sorted(members.items(), key=itemgetter(0))
            if len(one) <= NAME_LENGTH_MAX
        ]
        self._listed_count += len(self._listed[group])
        if self._listed_count > 2 * self._settings.clients_max:
            self._listed_count = cut(self._listed, self._settings.clients_max)

    def _choose(self) -> None:
        """Choose the members that are asked, within the limit of clients."""
        kept_count = cut(self._listed, self._settings.clients_max)
        self._found.left_out.clients = self._found.client_count - kept_count
        for group, kept in self._listed.items():
            self._members += kept
            self._unasked.update(one[:2] for one in kept)
            is_own = group in BOOT_GROUPS or is_system_group(group)  # brokers have these anyway
            count = self._member_counts[group]
            if self._settings.group_count_enable and (count or not is_own):
                addresses = ",".join(one.address for one in kept)
                ids = ",".join(one.client_id for one in kept)
                self._add_group(GroupRow(addresses, ids, group, count))

    def _add_group(self, row: GroupRow) -> None:
        if len(self._found.groups) < self._settings.metrics_rows_max:
            self._found.groups.append(row)
        else:
            self._found.left_out.rows += 1

    async def _ask_each(self, pending: Iterator[Member]) -> None:
        for member in pending:
            await self._ask(member)

    async def _ask(self, member: Member) -> None:
        self._stats.asked_count += 1
        timeout_ms = self._settings.client_timeout
        try:
            info = await member.broker.running_info(
                member.group, member.client_id, timeout_ms=timeout_ms
            )
        except CometError as error:
            self._stats.failed_count += 1
            self._silent.add(member[:2])
            failure = self.failures.setdefault(
                member.group, Failure(member.client_id, describe(error))
            )
            failure.count += 1
        else:
            self._add_rows(member, info)
        self._unasked.discard(member[:2])

    def _add_rows(self, member: Member, info: ConsumerRunningInfo) -> None:
        table = info.status_table
        rows = [
            ClientRow(member.address, member.client_id, member.group, topic, status)
            for topic, status in table.items()
            if len(topic) <= NAME_LENGTH_MAX
        ]
        self._found.left_out.rows += len(table) - len(rows)
        self._rows.setdefault(member.group, []).extend(rows)
        self._row_count += len(rows)
        if self._row_count > 2 * self._settings.metrics_rows_max:
            self._cut_rows()

    def _cut_rows(self) -> None:
        kept_count = cut(self._rows, self._settings.metrics_rows_max)
        self._found.left_out.rows += self._row_count - kept_count
        self._row_count = kept_count

    def _lost(self, broker: BrokerAdmin, error: CometError) -> None:
        """Note why a broker cannot be asked; the rest of the round does without it."""
        self._found.brokers[broker.name] = f"{broker.address}: {describe(error)}"
