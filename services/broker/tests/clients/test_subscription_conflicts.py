# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.clients.subscription_conflicts import (
    TAGS_CHARS_MAX,
    TEXT_CHARS_MAX,
    MemberSubscriptions,
    Mismatch,
    subscription_set,
)
from cometmq.broker.testing import FakePeer
from cometmq.remoting.bodies.heartbeat import SubscriptionData

LONG = "B" * TAGS_CHARS_MAX


def wants(expression: str, topic: str = "T", *, kind: str = "TAG") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type=kind)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (wants("A || B"), wants("B||A")),
        (wants("A"), wants(" A ||")),
        (wants("*"), wants("")),
        (wants("A", kind=""), wants("A")),
        (wants("a > 1", kind="SQL92"), wants(" a > 1 ", kind="SQL92")),
    ],
)
def test_expressions_that_mean_the_same(one: SubscriptionData, other: SubscriptionData) -> None:
    members = MemberSubscriptions()
    members.set(FakePeer(), "c1", subscription_set([one]))
    members.set(FakePeer(), "c2", subscription_set([other]))

    assert members.count == 1
    assert members.mismatch() is None


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (wants("A"), wants("B"), ("A", "B")),
        (wants("A"), wants("A || B"), ("A", "A || B")),
        (wants("*"), wants("A"), ("*", "A")),
        (wants("A"), wants("A", kind="SQL92"), ("A", "SQL92 A")),
        (wants("A"), wants("A", "Z"), ("A", "")),
        (
            wants(f"A||{LONG}"),
            wants(f"{LONG}||A"),
            (f"A||{LONG}"[:TEXT_CHARS_MAX], LONG[:TEXT_CHARS_MAX]),
        ),
        (
            wants("x" * 999, kind="SQL92"),
            wants("*"),
            (f"SQL92 {'x' * 999}"[:TEXT_CHARS_MAX], "*"),
        ),
    ],
)
def test_expressions_that_differ(
    one: SubscriptionData, other: SubscriptionData, texts: tuple[str, str]
) -> None:
    members = MemberSubscriptions()
    members.set(FakePeer(), "c1", subscription_set([one]))
    members.set(FakePeer(), "c2", subscription_set([other]))

    assert members.count == 2
    assert members.mismatch() == Mismatch("T", "c1", texts[0], "c2", texts[1])


def test_a_conflict_ends_when_a_member_resubscribes_or_leaves() -> None:
    members, one, two, three = MemberSubscriptions(), FakePeer(), FakePeer(), FakePeer()
    members.set(one, "c1", subscription_set([wants("A")]))
    members.set(two, "c2", subscription_set([wants("B")]))
    members.set(three, "c3", subscription_set([wants("C")]))
    assert members.count == 3

    members.set(two, "c2", subscription_set([wants("A")]))
    assert members.count == 2
    members.drop(three)
    members.drop(three)

    assert members.mismatch() is None


def test_a_member_that_has_not_subscribed_yet_does_not_count() -> None:
    members, peer = MemberSubscriptions(), FakePeer()
    members.set(peer, "c1", subscription_set([wants("A")]))
    members.set(FakePeer(), "c2", subscription_set([]))
    assert members.count == 1

    members.set(peer, "c1", subscription_set([]))

    assert members.count == 0


def test_one_connection_is_one_member_under_any_client_id() -> None:
    members, peer = MemberSubscriptions(), FakePeer()
    members.set(peer, "old", subscription_set([wants("A")]))
    members.set(peer, "new", subscription_set([wants("A")]))
    members.set(FakePeer(), "c2", subscription_set([wants("B")]))

    mismatch = members.mismatch()
    assert mismatch is not None
    assert mismatch.client_id == "new"
