# SPDX-License-Identifier: Apache-2.0
"""Rounds against scripted brokers: failures, limits, and what is logged."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

from cometmq.client.admin import AdminClient
from cometmq.exporter.rounds import RoundEnd, Rounds, fair_size
from cometmq.exporter.settings import ExporterSettings
from cometmq.remoting.bodies.connections import Connection, ConsumerConnections
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo, ConsumeStatus
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.errors import (
    AccessDenied,
    ConnectFailed,
    ConsumerNotOnline,
    RequestTimeout,
    ServerError,
)
from cometmq.testing.runtime.clock import FakeClock


class Recorder:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, /, **facts: object) -> None:
        self.events.append((event, facts))

    debug = warning = error = info

    def take(self) -> list[str]:
        """Return the names of the events since the last call."""
        names = [name for name, _ in self.events]
        self.events.clear()
        return names


class FakeBroker:
    """Answers for the members of its groups, given as client ids by group."""

    def __init__(self, name: str = "broker-a", **members: list[str]) -> None:
        self.name = name
        self.address = f"{name}:10911"
        self.members = members
        self.failure: Exception | None = None
        self.silent: dict[str, Exception] = {}
        self.hanging: set[str] = set()
        self.asked: list[str] = []
        self.topics: tuple[str, ...] = ("T",)
        self.under_way = self.most_under_way = 0

    async def groups(self) -> dict[str, SubscriptionGroupConfig]:
        if self.failure is not None:
            raise self.failure
        return {name: SubscriptionGroupConfig(group_name=name) for name in self.members}

    async def consumer_connections(self, group: str) -> ConsumerConnections:
        ids = self.members[group]
        if not ids:
            raise ConsumerNotOnline(f"the consumer group[{group}] not online")
        return ConsumerConnections([Connection(f"{self.name}/{one}:1", one) for one in ids])

    async def running_info(
        self, group: str, client_id: str, *, timeout_ms: int
    ) -> ConsumerRunningInfo:
        self.asked.append(client_id)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if client_id in self.hanging:
                await asyncio.Event().wait()
            await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        if client_id in self.silent:
            raise self.silent[client_id]
        status = ConsumeStatus(consume_rt=2.5, pull_tps=7.0)
        return ConsumerRunningInfo(status_table=dict.fromkeys(self.topics, status))


class FakeCluster:
    def __init__(self, *brokers: FakeBroker) -> None:
        self.brokers = brokers
        self.failure: Exception | None = None

    async def broker_groups(self) -> dict[str, dict[int, FakeBroker]]:
        if self.failure is not None:
            raise self.failure
        return {one.name: {0: one} for one in self.brokers}


class Scene:
    def __init__(self, *brokers: FakeBroker, **settings: Any) -> None:
        self.cluster = FakeCluster(*brokers)
        self.log = Recorder()
        self.rounds = Rounds(
            cast("AdminClient", self.cluster),
            msgspec.structs.replace(ExporterSettings(), **settings),
            clock=FakeClock(),
            log=self.log,
        )

    async def round(self) -> list[tuple[str, str]]:
        """Run a round; return the group and the client of each row."""
        await self.rounds.round()
        return [(row.group, row.client_id) for row in self.rounds.stats.figures.rows]

    @property
    def left_out(self) -> tuple[int, ...]:
        return msgspec.structs.astuple(self.rounds.stats.figures.left_out)


async def test_each_member_is_asked_once_although_all_brokers_list_it() -> None:
    first, second = FakeBroker("a", g=["c1"]), FakeBroker("b", g=["c1", "c2"], idle=[])
    scene = Scene(first, second)
    assert await scene.round() == [("g", "c1"), ("g", "c2")]
    assert (first.asked, second.asked) == (["c1"], ["c2"])
    figures = scene.rounds.stats.figures
    assert figures.rows[0].address == "a/c1:1"
    assert (figures.group_count, figures.client_count) == (2, 2)
    assert scene.rounds.fault is None
    assert scene.rounds.stats.rounds[RoundEnd.COMPLETE] == 1
    assert scene.log.take() == []


async def test_a_slave_is_asked_while_there_is_no_master() -> None:
    slave = FakeBroker("a", g=["c1"])
    scene = Scene(slave)

    async def only_slaves() -> Any:
        return {"a": {2: FakeBroker("a"), 1: slave}}

    scene.cluster.broker_groups = only_slaves  # type: ignore[method-assign]
    assert await scene.round() == [("g", "c1")]


@pytest.mark.parametrize(
    "failure", [ConnectFailed("a:10911: refused"), AccessDenied("no signature")]
)
async def test_a_broker_that_fails_is_named_once_and_the_others_are_asked(
    failure: Exception,
) -> None:
    lost, other = FakeBroker("a", g=["c1"]), FakeBroker("b", g=["c2"])
    lost.failure = failure
    scene = Scene(lost, other)
    for _ in range(2):
        assert await scene.round() == [("g", "c2")]
    assert str(failure) in scene.rounds.stats.figures.brokers["a"]
    assert scene.log.take() == ["broker.unanswered"]
    lost.failure = None
    await scene.round()
    assert scene.log.take() == ["broker.answered"]


async def test_a_broker_lost_in_the_middle_of_a_round_is_not_asked_again() -> None:
    broker = FakeBroker("a", g=["c1"], h=["c2"])
    asked = []

    async def lost(group: str) -> ConsumerConnections:
        asked.append(group)
        raise RequestTimeout("a:10911: no answer")

    broker.consumer_connections = lost  # type: ignore[method-assign]
    scene = Scene(broker, collect_concurrency=1)
    assert await scene.round() == []
    assert asked == ["g"]
    assert scene.log.take() == ["broker.unanswered"]


async def test_members_that_do_not_answer_are_counted_and_logged_once_per_group() -> None:
    broker = FakeBroker("a", g=["c1", "c2", "c3"])
    broker.silent = {"c1": RequestTimeout("silent"), "c2": ServerError("too old")}
    scene = Scene(broker, collect_concurrency=1)
    for _ in range(2):
        assert await scene.round() == [("g", "c3")]
    stats = scene.rounds.stats
    assert (stats.asked_count, stats.failed_count) == (6, 4)
    ((event, facts),) = scene.log.events
    assert event == "members.unanswered"
    assert (facts["group"], facts["members"], facts["client"]) == ("g", 2, "c1")
    assert broker.asked == ["c1", "c2", "c3", "c3", "c1", "c2"], "silent members come last"
    assert scene.rounds.fault is None
    scene.log.take()
    broker.silent = {}
    await scene.round()
    assert scene.log.take() == ["members.answered"]


async def test_name_servers_that_fail_leave_no_old_figures() -> None:
    scene = Scene(FakeBroker("a", g=["c1"]))
    await scene.round()
    scene.cluster.failure = ConnectFailed("ns:9876: refused")
    for _ in range(2):
        assert await scene.round() == []
    assert "ns:9876: refused" in (scene.rounds.fault or "")
    assert scene.rounds.stats.rounds[RoundEnd.FAILED] == 2
    assert scene.log.take() == ["brokers.unlisted"]
    scene.cluster.failure = None
    assert await scene.round() == [("g", "c1")]
    assert scene.log.take() == ["brokers.listed"]


async def test_an_error_in_our_code_leaves_no_old_figures() -> None:
    broker = FakeBroker("a", g=["c1"])
    scene = Scene(broker)
    await scene.round()
    broker.failure = KeyError("x")
    with pytest.raises(ExceptionGroup):
        await scene.round()
    assert scene.rounds.stats.figures.rows == []
    assert scene.rounds.fault is not None


async def test_a_round_ends_in_time_and_counts_the_members_not_asked() -> None:
    broker = FakeBroker("a", g=["c1", "c2", "c3"])
    broker.hanging = {"c2"}
    scene = Scene(broker, collect_timeout=50, collect_concurrency=1)
    assert await scene.round() == [("g", "c1")]
    assert scene.rounds.stats.rounds[RoundEnd.LATE] == 1
    assert scene.left_out == (0, 0, 2, 0)
    assert scene.log.take() == ["limits.exceeded"]


async def test_an_unfinished_round_reports_no_recovery() -> None:
    broker = FakeBroker("a", g=["c1"], h=["c2"])
    broker.silent = {"c1": RequestTimeout("silent")}
    scene = Scene(broker, collect_timeout=50, collect_concurrency=1)
    await scene.round()
    assert scene.log.take() == ["members.unanswered"]
    broker.hanging = {"c2"}
    await scene.round()
    assert scene.log.take() == ["limits.exceeded"]
    broker.hanging.clear()
    broker.asked.clear()
    await scene.round()
    assert broker.asked == ["c2", "c1"], "the first one is still the silent one"
    broker.silent.clear()
    scene.log.take()
    await scene.round()
    assert scene.log.take() == ["members.answered"]


async def test_limits_are_kept_and_logged_once() -> None:
    broker = FakeBroker("a", g=["c1", "c2"], h=["c3", "c4"], i=["c5"])
    broker.topics = ("T", "U", "x" * 300)
    scene = Scene(broker, groups_max=2, clients_max=3, metrics_rows_max=5, group_count_enable=True)
    for _ in range(2):
        assert len(await scene.round()) == 5
        assert scene.left_out == (1, 1, 0, 4)
    assert scene.rounds.stats.figures.client_count == 4
    assert scene.log.take() == ["limits.exceeded"]


async def test_a_group_that_reports_many_topics_displaces_no_other() -> None:
    """A consumer may invent topics, and the limit of rows is for all groups together."""
    loud = FakeBroker("a", g=[f"c{n}" for n in range(5)], h=["d1"])
    loud.topics = tuple(f"T{n}" for n in range(50))
    scene = Scene(loud, FakeBroker("b", y=["e1"], z=["f1"]), metrics_rows_max=20)
    groups = [group for group, _ in await scene.round()]
    assert {group: groups.count(group) for group in set(groups)} == {"g": 9, "h": 9, "y": 1, "z": 1}
    assert scene.left_out == (0, 0, 0, 282)


async def test_a_group_with_many_members_displaces_no_other() -> None:
    broker = FakeBroker("a", g=[f"c{n}" for n in range(30)], h=["d1", "d2"], i=["e1"])
    scene = Scene(broker, clients_max=8)
    groups = [group for group, _ in await scene.round()]
    assert {group: groups.count(group) for group in set(groups)} == {"g": 5, "h": 2, "i": 1}
    assert scene.left_out == (0, 25, 0, 0)


@pytest.mark.parametrize(
    ("sizes", "total", "size"),
    [([], 5, 1), ([3, 1], 5, 3), ([9, 1, 9], 10, 4), ([1] * 7, 5, 1), ([4, 4], 0, 1)],
)
def test_the_size_above_which_groups_are_cut(sizes: list[int], total: int, size: int) -> None:
    assert fair_size(sizes, total) == size


async def test_questions_at_a_time_are_limited() -> None:
    broker = FakeBroker("a", g=[f"c{n}" for n in range(20)])
    scene = Scene(broker, collect_concurrency=3)
    assert len(await scene.round()) == 20
    assert broker.most_under_way == 3


async def test_members_of_a_group_are_shown_on_demand_only() -> None:
    broker = FakeBroker("a", g=["c2", "c1"], empty=[], TOOLS_CONSUMER=[], CID_RMQ_SYS_TRANS=[])
    scene = Scene(broker, group_count_enable=True)
    await scene.round()
    assert scene.rounds.stats.figures.groups == [
        ("", "", "empty", 0),
        ("a/c1:1,a/c2:1", "c1,c2", "g", 2),
    ]
    scene = Scene(broker)
    await scene.round()
    assert scene.rounds.stats.figures.groups == []
