# SPDX-License-Identifier: Apache-2.0

import pytest

from cometmq.broker.clients.subscription_conflicts import TEXT_CHARS_MAX, Mismatch, Wishes
from cometmq.broker.testing import FakePeer
from cometmq.remoting.bodies.heartbeat import SubscriptionData


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
    wishes = Wishes()
    wishes.note(FakePeer(), "c1", [one])
    wishes.note(FakePeer(), "c2", [other])

    assert wishes.count == 1
    assert wishes.mismatch() is None


@pytest.mark.parametrize(
    ("one", "other", "texts"),
    [
        (wants("A"), wants("B"), ("A", "B")),
        (wants("A"), wants("A || B"), ("A", "A || B")),
        (wants("*"), wants("A"), ("*", "A")),
        (wants("A"), wants("A", kind="SQL92"), ("A", "SQL92 A")),
        (wants("A"), wants("A", "Z"), ("A", "")),
        (wants("x" * 999, kind="SQL92"), wants("*"), (f"SQL92 {'x' * 999}"[:TEXT_CHARS_MAX], "*")),
    ],
)
def test_expressions_that_differ(
    one: SubscriptionData, other: SubscriptionData, texts: tuple[str, str]
) -> None:
    wishes = Wishes()
    wishes.note(FakePeer(), "c1", [one])
    wishes.note(FakePeer(), "c2", [other])

    assert wishes.count == 2
    assert wishes.mismatch() == Mismatch("T", "c1", texts[0], "c2", texts[1])


def test_a_conflict_ends_when_a_member_resubscribes_or_leaves() -> None:
    wishes, one, two, three = Wishes(), FakePeer(), FakePeer(), FakePeer()
    wishes.note(one, "c1", [wants("A")])
    wishes.note(two, "c2", [wants("B")])
    wishes.note(three, "c3", [wants("C")])
    assert wishes.count == 3

    wishes.note(two, "c2", [wants("A")])
    assert wishes.count == 2
    wishes.drop(three)
    wishes.drop(three)

    assert wishes.mismatch() is None


def test_a_member_that_has_not_subscribed_yet_does_not_count() -> None:
    wishes, peer = Wishes(), FakePeer()
    wishes.note(peer, "c1", [wants("A")])
    wishes.note(FakePeer(), "c2", [])
    assert wishes.count == 1

    wishes.note(peer, "c1", [])

    assert wishes.count == 0


def test_one_connection_is_one_member_under_any_client_id() -> None:
    wishes, peer = Wishes(), FakePeer()
    wishes.note(peer, "old", [wants("A")])
    wishes.note(peer, "new", [wants("A")])
    wishes.note(FakePeer(), "c2", [wants("B")])

    mismatch = wishes.mismatch()
    assert mismatch is not None
    assert mismatch.client_id == "new"
