# SPDX-License-Identifier: Apache-2.0
"""Selectors by tag and by SQL condition, and the errors that brokers report."""

from functools import partial
from typing import Any

import pytest

from cometmq.client import (
    InvalidArgument,
    LitePullConsumer,
    MessageExt,
    MessageSelector,
    PullConsumer,
    PushConsumer,
)
from cometmq.client.subscriptions import ExpressionType, doubt, subscription
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import SubscriptionParseFailed
from cometmq.testing.client.listening import QUEUE_0, logged

CHECK = RequestCode.CHECK_CLIENT_CONFIG
SQL = MessageSelector.by_sql("a > 'x'")


def listener(_: list[MessageExt]) -> None: ...


def push_consumer(cluster: MemoryCluster, selector: MessageSelector) -> PushConsumer:
    consumer = PushConsumer("cg", cluster.namesrv, listener=listener)
    consumer.subscribe("T", selector)
    return consumer


def lite_pull_consumer(cluster: MemoryCluster, selector: MessageSelector) -> LitePullConsumer:
    consumer = LitePullConsumer("cg", cluster.namesrv)
    consumer.subscribe("T", selector)
    return consumer


def test_a_selector_stands_for_expression_and_kind() -> None:
    for selector, expression, kind in (
        (MessageSelector.by_sql("a > 5"), "a > 5", ExpressionType.SQL92),
        (MessageSelector.by_tag("A || B"), "A || B", ExpressionType.TAG),
        (MessageSelector.by_tag(), "*", ExpressionType.TAG),
    ):
        wanted = subscription("T", selector, version_ms=1)
        assert wanted == subscription("T", expression, kind, version_ms=1)


def test_a_condition_must_say_something() -> None:
    with pytest.raises(InvalidArgument, match="condition is empty"):
        subscription("T", MessageSelector.by_sql(""), version_ms=1)
    with pytest.raises(InvalidArgument, match="contains no tag"):
        subscription("T", " || ", version_ms=1)


@pytest.mark.parametrize("make", [push_consumer, lite_pull_consumer])
async def test_a_memory_cluster_refuses_conditions(cluster: MemoryCluster, make: Any) -> None:
    with pytest.raises(SubscriptionParseFailed, match="MemoryCluster does not evaluate SQL92"):
        await make(cluster, MessageSelector.by_sql("a > 5")).start()
    assert cluster.broker.requests[CHECK] == 1


@pytest.mark.parametrize("make", [push_consumer, lite_pull_consumer])
async def test_a_wrong_condition_raises_at_the_start(cluster: MemoryCluster, make: Any) -> None:
    cluster.broker.fail(CHECK, SubscriptionParseFailed("Value 'x' cannot be compared."))
    with pytest.raises(SubscriptionParseFailed, match=r"Value 'x' cannot be compared"):
        await make(cluster, SQL).start()


@pytest.mark.parametrize("make", [push_consumer, lite_pull_consumer])
async def test_tags_are_no_question_for_the_broker(cluster: MemoryCluster, make: Any) -> None:
    async with make(cluster, MessageSelector.by_tag("A")):
        assert cluster.broker.requests[CHECK] == 0


@pytest.mark.parametrize(
    "expression",
    ["a | b", "a || b | c", "a, b", "a && b", "a b", "price > 1", "a || *", "*a || b", "order-?"],
)
def test_tags_that_match_nothing_are_doubted(expression: str) -> None:
    advice = doubt(subscription("T", expression, version_ms=1))
    assert "tags are separated by '||'" in advice
    assert "by_sql" in advice


@pytest.mark.parametrize(
    ("expression", "kind"),
    [("*", "TAG"), ("", "TAG"), ("a||b", "TAG"), ("or", "TAG"), ("price > 1", "SQL92")],
)
def test_ordinary_filters_are_not_doubted(expression: str, kind: Any) -> None:
    assert doubt(subscription("T", expression, kind, version_ms=1)) == ""


async def test_a_doubtful_subscription_is_logged_once(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    pull = PullConsumer("pg", cluster.namesrv)
    push = PushConsumer("cg", cluster.namesrv, listener=listener)
    push.subscribe("T", "a | b")
    async with pull:
        for _ in range(3):
            await pull.pull(QUEUE_0, 0, expression="a | b")
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("subscription.doubtful group=cg topic=T expression='a | b' advice=")
    assert second.startswith("subscription.doubtful group=pg topic=T ")


def test_a_kind_may_be_text() -> None:
    kind: Any = "SQL92"
    assert subscription("T", "a > 1", kind, version_ms=1).expression_type == "SQL92"
    kind = "SQL"
    with pytest.raises(InvalidArgument, match="TAG or SQL92, not 'SQL'"):
        subscription("T", "a > 1", kind, version_ms=1)


@pytest.mark.parametrize("make", [push_consumer, lite_pull_consumer])
async def test_a_condition_that_brokers_refuse_later_is_reported(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, make: Any
) -> None:
    refusals = partial(logged, caplog, "subscription.refused")
    async with make(cluster, MessageSelector.by_tag("A")) as consumer:
        for _ in range(10):
            cluster.broker.fail(CHECK, SubscriptionParseFailed("Value 'x' cannot be compared."))
        consumer.subscribe("T", SQL)
        (refusal,) = await eventually(refusals, what="a refusal")
        assert "group=cg topic=T expression=\"a > 'x'\"" in refusal
        assert "Value 'x' cannot be compared." in refusal

        consumer.subscribe("Young", SQL)
        consumer.subscribe("T", MessageSelector.by_tag("B"))
        cluster.create_topic("Young")
        _, refusal = await eventually(lambda: refusals()[1:] and refusals(), what="a refusal")
        assert "topic=Young" in refusal
