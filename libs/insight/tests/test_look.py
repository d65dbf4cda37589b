# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a running suite, and of brokers that hang, lie or vanish."""

import asyncio
import time
from typing import Any

import pytest

from cometmq.client import AdminClient, LitePullConsumer, Message, Producer
from cometmq.client.clock import wall_ms
from cometmq.client.errors import NoNamesrv
from cometmq.client.testing import eventually
from cometmq.insight.asking import NOT_TOLD
from cometmq.insight.findings import findings
from cometmq.insight.history import History
from cometmq.insight.model import (
    BrokerState,
    Snapshot,
    Trouble,
    Unknown,
    Unreachable,
    is_silence,
)
from cometmq.insight.rules import brokers as rules
from cometmq.insight.snapshot import Watch, look
from cometmq.peers.fakes import Fakes, body, hang
from cometmq.peers.ports import free_port
from cometmq.remoting.bodies.connections import Connection
from cometmq.remoting.bodies.overview import (
    BrokerOverview,
    GroupClients,
    QueueEnds,
    RefusedRequests,
)
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.remoting.errors import ServerError


async def test_a_look_shows_topics_groups_and_clients(suite, admin):
    async with Producer("seen-producers", namesrv=suite.namesrv) as producer:
        await admin.create_topic("Seen", queue_count=2)
        for at in range(6):
            await producer.send(Message("Seen", b"m%d" % at))
        async with LitePullConsumer("seen-group", namesrv=suite.namesrv) as consumer:
            consumer.subscribe("Seen")
            await consumer.poll()
            await consumer.commit()

            async def is_seen():
                group = (await look(admin)).group("seen-group")
                return group is not None and group.members and group.topics

            await eventually(is_seen)
            found: Any = await look(admin)
    broker = found.broker("broker-a") or found.brokers[0]
    assert isinstance(broker.state, BrokerState)
    assert (broker.state.settings or {})["brokerName"] == broker.name
    topic = found.topic("Seen")
    assert (topic.messages, topic.end, topic.read_queues) == (6, 6, 2)
    assert "seen-group" in topic.groups
    assert not isinstance(found.refusals, Unknown)
    group = found.group("seen-group")
    assert [it.topic for it in group.subscriptions if it.topic == "Seen"] == ["Seen"]
    assert "seen-producers" in {it.group for it in found.producers}
    assert not [it for it in findings(found) if it.rule.startswith("broker")]


async def test_a_look_tells_when_the_first_dead_letter_was_stored(suite, admin):
    topic = "%DLQ%died"
    await admin.create_group(SubscriptionGroupConfig(group_name="died"))
    await admin.create_topic(topic, queue_count=1)
    await admin.create_topic("%DLQ%spared", queue_count=1)  # all have been deleted
    before_ms = wall_ms()
    async with Producer("killers", namesrv=suite.namesrv) as producer:
        await producer.send(Message(topic, b"1"))
        after_ms = wall_ms()
        await asyncio.sleep(0.02)
        await producer.send(Message(topic, b"2"))
    history = History()
    for _ in range(2):
        found: Any = await look(admin, history=history)
        group = found.group("died")
        assert group.dead_letters == 2
        assert before_ms <= group.dead_since.ms <= after_ms
        assert not group.dead_since.is_bound


@pytest.fixture
async def fakes():
    async with Fakes() as fakes:
        await fakes.start("a")
        yield fakes


async def looked(fakes, **more):
    async with AdminClient(fakes.namesrv) as admin:
        return await look(admin, timeout_ms=500, **more)


async def test_a_broker_that_hangs_is_named_and_the_others_are_shown(fakes):
    await fakes.start("b", get_broker_runtime_info=hang)
    found = await looked(fakes)
    assert found.topic("T").messages == 20
    assert found.group("G").lag == 10
    assert found.group("G").missing_brokers == ["b"]
    assert found.broker("b").state.trouble is Trouble.HANGS
    assert "b" in next(it.text for it in findings(found) if it.rule == "broker-down")


async def test_a_broker_that_begins_to_hang_is_shown_with_what_it_said(fakes):
    await fakes.start("b", get_all_topic_config=hang, get_topic_stats_info=hang)
    found = await looked(fakes)
    assert isinstance(found.broker("b").state, BrokerState)
    assert any(it.startswith("b does not tell its topics: ") for it in found.notes)


REST = [
    *("get_broker_config", "get_all_topic_config", "get_all_subscriptiongroup_config"),
    *("get_all_consumer_offset", "get_all_delay_offset", "get_all_producer_info"),
    *("get_broker_overview", "get_topic_stats_info", "get_consumer_connection_list"),
]


async def timed(fakes):
    begin = time.monotonic()
    return await looked(fakes), time.monotonic() - begin


async def test_what_a_broker_does_not_answer_has_one_deadline(fakes):
    await fakes.start("b", **dict.fromkeys(REST, hang))
    found, took_s = await timed(fakes)
    assert took_s < 2.5  # one deadline of 0.5 s; one for each kind of question is 4.5 s
    assert found.broker("b").state.figures.version == "V4_9_4"
    assert found.topic("T").messages == 20
    assert list(found.incomplete) == ["b"]
    kinds = "topics, groups, offsets, delays, producers, queues"
    assert found.incomplete["b"].startswith(f"about {kinds}: ")


async def test_a_broker_that_alone_is_silent_leaves_nothing_empty(fakes):
    await fakes.start("a", **dict.fromkeys(REST, hang))
    found, _ = await timed(fakes)
    kinds = (found.topics, found.groups, found.producers, found.delayed)
    assert [is_silence(it) for it in kinds] == [True] * 4


async def test_a_lag_without_its_offsets_is_not_told(fakes):
    await fakes.start("b", get_all_consumer_offset=hang)
    found, _ = await timed(fakes)
    assert is_silence(found.group("G").lag)
    assert found.topic("T").messages == 40
    assert found.incomplete["b"].startswith("about offsets: ")


async def test_a_broker_that_hangs_in_its_turn_costs_one_deadline(fakes):
    topics = {f"T{at}": TopicConfig() for at in range(100)}  # more than are asked for at once
    answers = {"get_all_topic_config": body(TopicConfigTable(topic_config_table=topics))}
    await fakes.start("b", **answers, get_topic_stats_info=hang)
    found, took_s = await timed(fakes)
    assert took_s < 1.5  # one deadline of 0.5 s; one for each round of topics is 2 s
    assert found.topic("T0").messages == NOT_TOLD


@pytest.mark.parametrize(
    "lie",
    [b"", b"[]", b"{{{", b"\xff\xfe", b'{"table":7}', b"[" * 100_000],
)
async def test_a_broker_that_lies_is_named(fakes, lie):
    await fakes.start("b", get_broker_runtime_info=body(lie))
    await fakes.start("c", get_all_consumer_offset=body(lie), get_topic_stats_info=body(lie))
    found = await looked(fakes)
    assert found.topic("T").brokers == ["a", "c"]
    assert found.broker("a").state.figures.version == "V4_9_4"
    state = found.broker("b").state
    if isinstance(state, Unreachable):
        assert state.trouble is Trouble.GARBLED
    else:
        assert state.figures.version == ""
    assert isinstance(found.topic("T").messages, Unknown) or found.topic("T").messages == 20


async def test_a_broker_that_refuses_is_named(fakes):
    def refuse(*_):
        raise ServerError("No accessKey is configured")

    await fakes.start("b", get_broker_runtime_info=refuse)
    state = (await looked(fakes)).broker("b").state
    assert state.trouble is Trouble.REFUSES
    assert "No accessKey" in state.reason


async def test_a_broker_that_no_name_server_lists_stays_in_the_history(fakes):
    history = History()
    await looked(fakes, history=history)
    address = fakes.addresses.pop("a")
    gone = (await looked(fakes, history=history)).broker("a")
    assert (gone.state.trouble, gone.address) == (Trouble.GONE, address)
    assert not gone.state.since.is_bound
    fakes.addresses["a"] = address
    assert isinstance((await looked(fakes, history=history)).broker("a").state, BrokerState)


async def test_an_expected_broker_is_missed(fakes):
    found = await looked(fakes, expected=["a", "z"])
    assert found.broker("z").state.trouble is Trouble.GONE


async def test_no_name_server_is_an_error():
    async with AdminClient(f"127.0.0.1:{free_port()}") as admin:
        with pytest.raises(NoNamesrv):
            await look(admin)


async def test_a_watch_keeps_the_last_snapshot_when_the_name_server_fails(fakes):
    seen: list[Snapshot] = []
    async with AdminClient(fakes.namesrv) as admin:
        watch = Watch(admin, seen=seen.append)
        assert await watch.fresh(60_000) is await watch.fresh(60_000)
        watch.renew()
        newest = await watch.fresh(60_000)
        assert len(seen) == 2
        await fakes.__aexit__()
        assert await watch.fresh(0) is newest is seen[-1]
        assert watch.failure


async def test_callers_at_the_same_time_share_one_look(fakes):
    asked = []

    def count(*_):
        asked.append(1)
        return body(b'{"table":{}}')(None, None)  # type: ignore[arg-type]

    await fakes.start("a", get_broker_runtime_info=count)
    async with AdminClient(fakes.namesrv) as admin:
        watch = Watch(admin)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(watch.refresh())
    assert len(asked) == 1


@pytest.mark.parametrize("more", [{}, {"get_broker_overview": body(BrokerOverview())}])
async def test_the_members_of_a_group_with_only_offsets_are_told(fakes, more):
    await fakes.start("a", **more)
    assert (await looked(fakes)).group("G").members == []


async def test_a_broker_with_an_overview_is_asked_once_for_all(fakes):
    singly = []

    def ask_singly(*_):
        singly.append(1)
        raise ServerError("not expected")

    seen = BrokerOverview(
        queues={"T": [QueueEnds(0, 10, 30)]},
        groups={"G": GroupClients([Connection("10.0.0.1:5", "c")], disagreement="c disagrees")},
        oldest_unread_ms={"T@G": wall_ms() - 60_000},
        refused=[RefusedRequests(310, 2, "T", "busy", "10.0.0.2:7", 3, 1, wall_ms())],
    )
    await fakes.start(
        "a",
        get_broker_overview=body(seen),
        get_topic_stats_info=ask_singly,
        get_consumer_connection_list=ask_singly,
    )
    found: Any = await looked(fakes)
    group = found.group("G")
    assert (group.lag, [it.client_id for it in group.members]) == (10, ["c"])
    assert 60 <= group.behind_s < 120
    assert group.disagreements == ["c disagrees"]
    assert found.refusals[0].count == 3
    assert not singly
    assert {"push-back", "subscriptions-disagree"} <= {it.rule for it in findings(found)}


async def test_a_topic_that_name_servers_do_not_know_is_named(admin):
    await admin.create_topic("Unrouted", queue_count=1)

    def named(found):
        return [it for it in findings(found) if it.rule == "topic-unrouted"]

    assert named(await look(admin)) == []
    await admin.namesrv.delete_topic("Unrouted")
    found = await look(admin)
    assert found.unrouted == ["Unrouted"]
    (finding,) = named(found)
    assert "Unrouted" in finding.text
    assert finding.command == "cometmq topic alter Unrouted --perm rw"
    for broker in (await admin.masters()).values():
        await broker.create_topic(TopicConfig(topic_name="Unrouted", perm=6))

    async def routed():
        return not (await look(admin)).unrouted

    await eventually(routed)


def test_a_topic_that_is_being_deleted_is_not_named():
    history = History()
    history.began(0, 0)
    rule = rules.topics_unrouted
    steps = [(1, [], 0), (6, ["T"], 0), (11, ["T"], 0), (17, ["T"], 1), (18, [], 0), (19, ["T"], 0)]
    for taken_s, names, count in steps:
        taken_ms = taken_s * 1_000
        shown = Snapshot("n", taken_ms, 1, [], [], [], [], [], [], [], unrouted=names)
        assert len(list(rule(shown, history))) == count, taken_s
