# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.clients.consumers import (
    DEAD_DOUBLE_MS,
    MISMATCH_INTERVAL_MS,
    ConsumerGroup,
    Consumers,
)
from cometmq.broker.clients.producers import CLIENT_SILENCE_MS, Client
from cometmq.remoting.bodies.heartbeat import ConsumerData, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Request
from cometmq.remoting.commands.callbacks import NotifyConsumerIdsChanged
from cometmq.runtime.incremental import finish
from cometmq.testing.broker import FakePeer, RecordingLog
from cometmq.testing.broker.brokers import notify_members


class Told:
    def __init__(self) -> None:
        self.groups: list[str] = []

    def __call__(self, group: ConsumerGroup) -> None:
        self.groups.append(group.name)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def consumers(told: Told) -> Consumers:
    return Consumers(changed=told)


def client(peer: FakePeer, client_id: str = "c1", *, seen_ms: int = 0) -> Client:
    return Client(peer, client_id, language=0, version=401, seen_ms=seen_ms)


def data(*topics: str, group: str = "G", sub_version: int = 1, tags: str = "*") -> ConsumerData:
    return ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        subscription_data_set=[
            SubscriptionData(topic=topic, sub_string=tags, sub_version=sub_version)
            for topic in topics
        ],
    )


@pytest.mark.parametrize("topics", [("T", "U"), (), ("U",)])
def test_an_added_or_removed_topic_is_a_change(
    consumers: Consumers, told: Told, topics: tuple[str, ...]
) -> None:
    peer = FakePeer()
    consumers.register(data("T"), client(peer))

    assert consumers.register(data(*topics), client(peer))

    group = consumers.group("G")
    assert group is not None
    assert set(group.subscriptions) == set(topics)
    assert len(told.groups) == 2


def test_only_a_higher_version_replaces_the_subscription_of_a_member_and_silently(
    consumers: Consumers, told: Told
) -> None:
    peer, other = FakePeer(), FakePeer()
    consumers.register(data("T", sub_version=5, tags="A"), client(peer))

    consumers.register(data("T", sub_version=5, tags="B"), client(other, "c2"))
    assert tags_of(consumers) == "A"

    assert not consumers.register(data("T", sub_version=6, tags="B"), client(other, "c2"))
    assert tags_of(consumers) == "B"
    assert told.groups == ["G", "G"]


def test_a_subscription_that_no_member_has_any_more_is_replaced_whatever_its_version() -> None:
    """Versions are times of the clients' clocks, and one of them was an hour ahead.

    From apache/rocketmq#6679: the others' messages were skipped until all members had left.
    """
    replaced: list[tuple[str, list[str]]] = []
    consumers = Consumers(
        changed=Told(),
        replaced=lambda group, new: replaced.append((group, [one.sub_string for one in new])),
    )
    ahead, other = FakePeer(), FakePeer()
    consumers.register(data("T", sub_version=3_600, tags="A"), client(ahead))
    consumers.register(data("T", sub_version=10, tags="A||B"), client(other, "c2"))
    assert tags_of(consumers) == "A"
    version = consumers.version

    consumers.unregister("G", ahead)
    assert tags_of(consumers) == "A||B"
    assert consumers.version > version
    assert replaced == [("G", ["A||B"])]

    consumers.register(data("T", sub_version=9, tags="C"), client(other, "c2"))
    assert tags_of(consumers) == "C"


def tags_of(consumers: Consumers) -> str:
    held = consumers.subscription("G", "T")
    assert held is not None
    return held.sub_string


def test_another_client_id_on_a_connection_is_no_new_member(
    consumers: Consumers, told: Told
) -> None:
    peer = FakePeer()
    consumers.register(data("T"), client(peer, "old"))

    assert not consumers.register(data("T"), client(peer, "new"))

    group = consumers.group("G")
    assert group is not None
    assert group.client_ids() == ["new"]
    assert told.groups == ["G"]


def test_a_client_counts_once_after_its_first_connection_has_died(consumers: Consumers) -> None:
    """The path went silent without a FIN or RST (apache/rocketmq-clients#872)."""
    old, new, other = FakePeer(), FakePeer(), FakePeer()
    consumers.register(data("T"), client(old, seen_ms=0))
    consumers.register(data("T"), client(new, seen_ms=DEAD_DOUBLE_MS))
    consumers.register(data("T"), client(other, "c2", seen_ms=0))
    group = consumers.group("G")
    assert group is not None
    assert group.client_ids() == ["c1", "c1", "c2"]  # may be two programs with one name

    consumers.register(data("T"), client(new, seen_ms=DEAD_DOUBLE_MS + 1))

    assert group.client_ids() == ["c1", "c2"]
    consumers.register(data("T"), client(old, seen_ms=DEAD_DOUBLE_MS + 2))
    assert group.client_ids() == ["c1", "c1", "c2"]


def test_a_closed_connection_leaves_all_its_groups(consumers: Consumers, told: Told) -> None:
    one, two = FakePeer(), FakePeer()
    for name in ("G", "H"):
        consumers.register(data("T", group=name), client(one))
    consumers.register(data("T", group="H"), client(two, "c2"))
    told.groups.clear()

    assert sorted(consumers.groups_of(one)) == ["G", "H"]
    for name in consumers.groups_of(one):
        consumers.unregister(name, one)
    assert consumers.groups_of(one) == []

    assert told.groups == ["H"]
    assert consumers.group("G") is None
    assert (consumers.group_count, consumers.client_count) == (1, 1)


def test_clients_silent_for_over_two_minutes_are_reported(consumers: Consumers) -> None:
    peer = FakePeer()
    consumers.register(data("T"), client(peer, seen_ms=0))

    assert finish(consumers.silent(CLIENT_SILENCE_MS)) == {}
    assert finish(consumers.silent(CLIENT_SILENCE_MS + 1)) == {peer: ["G"]}


def test_all_members_get_a_oneway_notice() -> None:
    consumers = Consumers(changed=notify_members)
    one, two = FakePeer(), FakePeer()
    consumers.register(data("T"), client(one))

    consumers.register(data("T"), client(two, "c2"))

    notice = Request(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, NotifyConsumerIdsChanged("G"), is_oneway=True
    )
    assert one.sent == [notice, notice]
    assert two.sent == [notice]


def test_different_subscriptions_are_logged_once_a_minute() -> None:
    log = RecordingLog()
    consumers = Consumers(changed=Told(), log=log)
    one, two = FakePeer("127.0.0.1:1"), FakePeer("127.0.0.1:2")
    consumers.register(data("T", tags="A"), client(one, "c1"))
    assert log.named("subscription.mismatched") == []

    consumers.register(data("T", tags="B"), client(two, "c2"))
    consumers.register(data("T", tags="A"), client(one, "c1", seen_ms=MISMATCH_INTERVAL_MS - 1))

    (told,) = log.named("subscription.mismatched")
    assert told == {
        "group": "G",
        "topic": "T",
        "client_id": "c1",
        "wants": "A",
        "other_client_id": "c2",
        "other_wants": "B",
    }
    consumers.register(data("T", tags="A"), client(one, "c1", seen_ms=MISMATCH_INTERVAL_MS))
    assert len(log.named("subscription.mismatched")) == 2

    consumers.unregister("G", two)
    consumers.register(data("T", tags="A"), client(one, "c1", seen_ms=9 * MISMATCH_INTERVAL_MS))
    assert len(log.named("subscription.mismatched")) == 2


def test_a_hint_reaches_each_connection_once(consumers: Consumers) -> None:
    one, other = FakePeer(), FakePeer()
    for group in ("H", "G"):
        consumers.register(data("T", group=group), client(one))
    consumers.register(data("T"), client(other, "c2"))
    finish(consumers.hint())
    header = NotifyConsumerIdsChanged(consumer_group="G")
    assert (
        one.sent
        == other.sent
        == [Request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, is_oneway=True)]
    )
