# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.clients.subscription_conflicts import (
    TAGS_CHARS_MAX,
    TEXT_CHARS_MAX,
    MemberSubscriptions,
    Mismatch,
)
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.testing.broker import FakePeer

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
    members.set(FakePeer(), "c1", [one])
    members.set(FakePeer(), "c2", [other])

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
        (wants("x" * 999, kind="SQL92"), wants("*"), (f"SQL92 {'x' * 999}"[:TEXT_CHARS_MAX], "*")),
    ],
)
def test_expressions_that_differ(
    one: SubscriptionData, other: SubscriptionData, texts: tuple[str, str]
) -> None:
    members = MemberSubscriptions()
    members.set(FakePeer(), "c1", [one])
    members.set(FakePeer(), "c2", [other])

    assert members.count == 2
    assert members.mismatch() == Mismatch("T", "c1", texts[0], "c2", texts[1])


def test_a_conflict_ends_when_a_member_resubscribes_or_leaves() -> None:
    members, one, two, three = MemberSubscriptions(), FakePeer(), FakePeer(), FakePeer()
    members.set(one, "c1", [wants("A")])
    members.set(two, "c2", [wants("B")])
    members.set(three, "c3", [wants("C")])
    assert members.count == 3

    members.set(two, "c2", [wants("A")])
    assert members.count == 2
    members.drop(three)
    members.drop(three)

    assert members.mismatch() is None


def test_a_member_that_has_not_subscribed_yet_does_not_count() -> None:
    members, peer = MemberSubscriptions(), FakePeer()
    members.set(peer, "c1", [wants("A")])
    members.set(FakePeer(), "c2", [])
    assert members.count == 1

    members.set(peer, "c1", [])

    assert members.count == 0


def test_one_connection_is_one_member_under_any_client_id() -> None:
    members, peer = MemberSubscriptions(), FakePeer()
    members.set(peer, "old", [wants("A")])
    members.set(peer, "new", [wants("A")])
    members.set(FakePeer(), "c2", [wants("B")])

    mismatch = members.mismatch()
    assert mismatch is not None
    assert mismatch.client_id == "new"


def version(members: MemberSubscriptions, topic: str = "T") -> tuple[str, int] | None:
    newest = members.newest(topic)
    return None if newest is None else (newest.sub_string, newest.sub_version)


def test_an_expression_is_abandoned_when_the_last_member_with_it_changes_it_or_leaves() -> None:
    members, one, two, three = MemberSubscriptions(), FakePeer(), FakePeer(), FakePeer()
    both = [at(9, "A"), at(9, "A", "U")]
    assert members.set(one, "c1", both) == ()
    assert members.set(two, "c2", both) == ()
    assert members.set(three, "c3", [at(8, " A ||")]) == ()  # in another set

    assert members.set(two, "c2", [at(3, "B")]) == ()
    assert version(members) == ("A", 9)
    assert members.set(one, "c1", [at(4, "B")]) == [("U", "A")]
    assert members.drop(three) == [("T", "A")]

    assert version(members) == ("B", 4)
    assert version(members, "U") is None
    assert [*members.drop(one), *members.drop(two)] == [("T", "B")]
    assert version(members) is None


def test_the_newest_version_of_an_expression_counts_for_all_members_with_it() -> None:
    members, one = MemberSubscriptions(), FakePeer()
    members.set(one, "c1", [at(5, "A")])
    members.set(FakePeer(), "c2", [at(7, "A")])
    assert version(members) == ("A", 7)

    members.set(one, "c1", [at(8, "A")])

    assert version(members) == ("A", 8)


def test_a_topic_that_a_member_names_twice_is_abandoned_twice() -> None:
    members, one, two = MemberSubscriptions(), FakePeer(), FakePeer()
    members.set(one, "c1", [at(1, "A"), at(1, "B")])
    members.set(two, "c2", [at(1, "A")])

    assert members.drop(one) == [("T", "B")]
    assert members.drop(two) == [("T", "A")]


def at(sub_version: int, tags: str, topic: str = "T") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=tags, sub_version=sub_version)
