# SPDX-License-Identifier: Apache-2.0
"""Filters that wait for the compiler are counted without visiting all of them."""

from cometmq.broker.filters.being_compiled import BeingCompiled, chars_of
from cometmq.remoting.bodies.heartbeat import SubscriptionData


def subscription(topic: str, expression: str) -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type="SQL92")


def test_count_and_characters_follow_every_change() -> None:
    compiling = BeingCompiled()
    first, second = subscription("Orders", "a > 1"), subscription("Orders", "a > 100")

    compiling.add("g", first)
    compiling.add("h", first)
    assert (compiling.count, compiling.chars) == (2, 2 * chars_of(first))

    compiling.add("g", second)
    assert compiling.get("g", "Orders") is second
    assert (compiling.count, compiling.chars) == (2, chars_of(first) + chars_of(second))

    compiling.remove("g", "Orders")
    compiling.remove("g", "Orders")
    compiling.remove("h", "Orders")
    assert (compiling.count, compiling.chars) == (0, 0)
    assert compiling.get("g", "Orders") is None


def test_only_the_topics_of_one_group_are_cancelled() -> None:
    compiling = BeingCompiled()
    for topic in ("A", "B", "C"):
        compiling.add("g", subscription(topic, "a > 1"))
        compiling.add("h", subscription(topic, "a > 1"))

    assert sorted(compiling.others("g", {"B"})) == ["A", "C"]
    assert compiling.others("unknown", ()) == []
