# SPDX-License-Identifier: Apache-2.0
"""Decisions on declared topics and groups: no message becomes unreachable, and no work is lost."""

from typing import Any

import msgspec
import pytest

from cometmq.client.admin import AdminClient
from cometmq.client.testing import MemoryCluster
from cometmq.client.testing.broker import CLUSTER_NAME
from cometmq.operator.api_types.topics_and_groups import DeclaredStatus
from cometmq.operator.topics_and_groups.decide import (
    BrokerSeen,
    Left,
    Outcome,
    Reason,
    differences,
    is_closed,
    plan,
    status_of,
    wanted,
)
from cometmq.operator.topics_and_groups.item import declared_of, owner
from cometmq.operator.topics_and_groups.suite import DeclaredBrokers
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import NoPermission

NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:01:00Z"
EMPTY = Left(end=7, is_quiet=True)


def item(kind="Topic", *, name="orders", created=NOW, is_deleting=False, skips=False, **spec: Any):
    metadata: dict[str, Any] = {
        "namespace": "mq", "name": name, "uid": "u", "generation": 3, "creationTimestamp": created,
        "annotations": {"cometmq.io/skip-drain": "true"} if skips else {},
    }  # fmt: skip
    if is_deleting:
        metadata["deletionTimestamp"] = NOW
    return declared_of(kind, {"metadata": metadata, "spec": {"nameServers": ["ns:9876"], **spec}})


def topic(write, read=None, perm=6, **more):
    return TopicConfig(
        topic_name="orders",
        write_queue_nums=write,
        read_queue_nums=read or write,
        perm=perm,
        **more,
    )


def seen(config=None, **more):
    return BrokerSeen(name="a", config=config, **more)


def reasons(found):
    return [one.reason for one in found.waits]


def test_a_missing_topic_is_created_and_one_as_specified_is_left_alone():
    assert plan(item(writeQueueNums=4), [seen()]).puts == {"a": topic(4)}
    assert plan(item(writeQueueNums=4), [seen(topic(4))]).puts == {}


def test_a_topic_that_clients_would_refuse_is_not_created():
    brokers = [seen(), BrokerSeen(name="b", config=topic(4))]
    found = plan(item(writeQueueNums=8_193), brokers)
    assert (found.puts, reasons(found)) == ({}, [Reason.TOO_MANY_QUEUES])
    assert "orders would have 16,386 queues at all brokers" in found.waits[0].text
    assert plan(item(writeQueueNums=8_192), brokers).puts.keys() == {"a", "b"}


def test_a_manual_change_is_undone_and_unmanaged_fields_are_kept():
    changed = topic(4, perm=4, topic_filter_type="MULTI_TAG")
    found = plan(item(writeQueueNums=4), [seen(changed)])
    assert found.puts == {"a": topic(4, topic_filter_type="MULTI_TAG")}
    assert found.waits == ()


def test_more_queues_need_no_wait():
    found = plan(item(writeQueueNums=8), [seen(topic(4))])
    assert (found.puts, found.waits) == ({"a": topic(8)}, ())


def test_queues_to_be_removed_get_no_sends_but_are_read_until_they_are_consumed():
    wish = item(writeQueueNums=4)
    full = Left(counts=(("group billing", 12),), end=7, is_quiet=True)
    found = plan(wish, [seen(topic(8), left=full)])
    assert found.puts == {"a": topic(4, read=8)}
    assert reasons(found) == [Reason.QUEUES_NOT_CONSUMED]
    assert "unconsumed messages in queues 4 to 7 at a: group billing: 12" in found.waits[0].text
    again = plan(wish, [seen(topic(4, read=8), left=full)])
    assert again.puts == {}


def test_consumed_queues_wait_for_producers_with_old_routes():
    wish = item(writeQueueNums=4)
    busy = Left(end=7, is_quiet=False)
    assert reasons(plan(wish, [seen(topic(4, read=8), left=busy)])) == [Reason.SENDS_GO_ON]
    first = plan(wish, [seen(topic(8), left=EMPTY)])  # sends still reach the queues
    assert first.puts == {"a": topic(4, read=8)}
    assert reasons(first) == [Reason.SENDS_GO_ON]
    assert plan(wish, [seen(topic(4, read=8), left=EMPTY)]).puts == {"a": topic(4)}


def test_an_unknown_backlog_counts_as_one_and_its_cause_is_named():
    unknown = seen(topic(8), left_fault="the account lacks the right")
    (wait,) = plan(item(writeQueueNums=4), [unknown]).waits
    assert wait.reason is Reason.QUEUES_NOT_CONSUMED
    assert wait.text.endswith("the operator tries again: the account lacks the right")
    (wait,) = plan(item(is_deleting=True, deletionPolicy="Delete"), [unknown]).waits
    assert wait.reason is Reason.BACKLOG
    assert wait.text.endswith("the operator tries again: the account lacks the right")


async def test_the_cause_of_an_unknown_backlog_is_the_brokers_refusal():
    async with MemoryCluster() as cluster, AdminClient(cluster.namesrv) as admin:
        await admin.create_topic("orders", queue_count=8)
        wish = item(nameServers=[cluster.namesrv], clusterName=CLUSTER_NAME, writeQueueNums=4)
        cluster.brokers[0].fail(RequestCode.GET_TOPIC_STATS_INFO, NoPermission("not allowed"))
        (found,) = await DeclaredBrokers(admin, wish).look((), lambda _name, _end: True)
    assert found.config is not None
    assert found.left is None
    assert "not allowed" in found.left_fault


def test_queues_are_closed_while_no_route_offers_them():
    wish = item(writeQueueNums=4)
    assert not is_closed(wish, topic(8))
    assert is_closed(wish, topic(4, read=8))
    ending = item(is_deleting=True)
    assert not is_closed(ending, topic(8))
    assert is_closed(ending, topic(8, perm=4))


async def test_the_quiet_time_starts_once_no_route_offers_the_queues():
    """The broker may refuse the change for longer than producers keep a route."""
    ends = []

    def is_quiet(_name, end):
        ends.append(end)
        return end >= 0

    async with MemoryCluster() as cluster, AdminClient(cluster.namesrv) as admin:
        await admin.create_topic("orders", queue_count=8)
        suite_of = {"nameServers": [cluster.namesrv], "clusterName": CLUSTER_NAME}
        wish = item(deletionPolicy="Delete", is_deleting=True, **suite_of)
        suite = DeclaredBrokers(admin, wish)
        (found,) = await suite.look((), is_quiet)
        await suite.put(found.name, plan(wish, [found]).puts[found.name])
        (found,) = await suite.look((), is_quiet)
        assert found.left is not None
        assert found.left.is_quiet
    assert ends == [-1, 0]


def test_an_annotation_removes_queues_with_their_messages():
    found = plan(item(writeQueueNums=4, skips=True), [seen(topic(8))])
    assert (found.puts, found.waits) == ({"a": topic(4)}, ())


def test_a_broker_that_is_down_does_not_stop_the_others():
    down = BrokerSeen(name="b", fault="it has no master")
    found = plan(item(writeQueueNums=4), [seen(), down])
    assert set(found.puts) == {"a"}
    assert reasons(found) == [Reason.BROKERS_UNREACHABLE]


def test_a_topic_to_be_deleted_becomes_read_only_first():
    wish = item(deletionPolicy="Delete", is_deleting=True)
    found = plan(wish, [seen(topic(4), left=EMPTY)])
    assert found.puts == {"a": topic(4, perm=4)}
    assert not found.may_delete
    assert plan(wish, [seen(topic(4, perm=4), left=EMPTY)]).may_delete


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, Reason.BACKLOG),
        ({"left": Left(counts=(("group billing", 1),), is_quiet=True)}, Reason.BACKLOG),
        ({"left": Left(end=3)}, Reason.SENDS_GO_ON),
    ],
)
def test_a_deletion_waits(more, reason):
    wish = item(deletionPolicy="Delete", is_deleting=True)
    found = plan(wish, [seen(topic(4, perm=4), **more)])
    assert reasons(found) == [reason]
    assert not found.may_delete
    now = item(deletionPolicy="Delete", is_deleting=True, skips=True)
    assert plan(now, [seen(topic(4), **more)]).may_delete


def test_a_deletion_waits_for_brokers_that_would_bring_the_topic_back():
    wish = item(deletionPolicy="Delete", is_deleting=True, skips=True)
    down = BrokerSeen(name="b", fault="no name server has a route to it")
    found = plan(wish, [seen(topic(4, perm=4), left=EMPTY), down])
    assert not found.may_delete
    assert reasons(found) == [Reason.BROKERS_UNREACHABLE]


def test_a_group_gets_its_settings_and_is_deleted_after_its_members_have_left():
    wish = item("ConsumerGroup", retryMaxTimes=3, consumeEnable=False)
    config = SubscriptionGroupConfig(group_name="orders", retry_max_times=3, consume_enable=False)
    assert plan(wish, [seen()]).puts == {"a": config}
    assert plan(wish, [seen(config)]).puts == {}
    ending = item("ConsumerGroup", deletionPolicy="Delete", is_deleting=True)
    connected = plan(ending, [seen(config, left=EMPTY, members=2)])
    assert reasons(connected) == [Reason.MEMBERS_CONNECTED]
    assert plan(ending, [seen(config, left=EMPTY)]).may_delete


def test_differences_have_the_names_that_users_know():
    wish = wanted(item(writeQueueNums=4), None)
    assert (
        differences(topic(4, read=8, perm=4), wish) == "readQueueNums is 8, not 4, perm is 4, not 6"
    )
    assert differences(None, wish) == "missing"


def test_the_oldest_of_several_objects_owns_the_name():
    old, young = item(name="x", created=NOW).claim, item(name="y", created=LATER).claim
    assert owner(old, [young]) is old  # different topics
    first = msgspec.structs.replace(old, name="T")
    second = msgspec.structs.replace(young, name="T")
    assert owner(second, [first]) is first
    assert owner(first, [second]) is first
    same_second = msgspec.structs.replace(second, created=NOW)
    assert owner(same_second, [first]) is first
    elsewhere = msgspec.structs.replace(first, name_servers=frozenset({"other:9876"}))
    assert owner(second, [elsewhere]) is second


def condition(outcome, before=None, wish=None, now=NOW):
    (found,) = status_of(wish or item(), outcome, before or DeclaredStatus(), now).conditions
    return found


def test_the_condition_names_the_cause():
    good = condition(Outcome(seen=(seen(topic(8)),)))
    assert (good.status, good.reason) == ("True", "AsSpecified")
    refused = condition(Outcome(seen=(seen(refusal="it is a system topic"),)))
    assert (refused.reason, refused.message) == ("BrokerRefused", "a: it is a system topic")
    other = condition(Outcome(owner=item(name="first").claim))
    assert other.reason == "DeclaredTwice"
    assert "Topic mq/first is older and declares orders too" in other.message
    assert condition(Outcome(seen=(seen(topic(4)),))).reason == "Applying"


def test_the_time_of_the_condition_changes_only_with_its_status():
    before = status_of(item(), Outcome(seen=(seen(topic(8)),)), DeclaredStatus(), NOW)
    assert condition(Outcome(seen=(seen(topic(8)),)), before, now=LATER).last_transition_time == NOW
    assert condition(Outcome(seen=(seen(),)), before, now=LATER).last_transition_time == LATER


def test_the_brokers_of_a_status_are_remembered_while_no_name_server_answers():
    before = status_of(item(), Outcome(seen=(seen(topic(8)),)), DeclaredStatus(), NOW)
    after = status_of(item(), Outcome(), before, LATER)
    assert after.brokers == before.brokers
