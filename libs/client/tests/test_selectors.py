# SPDX-License-Identifier: Apache-2.0
"""Selectors by tag and by SQL condition, and the errors that brokers report."""

from typing import Any

import pytest

from cometmq.client import (
    InvalidArgument,
    LitePullConsumer,
    MessageExt,
    MessageSelector,
    PushConsumer,
)
from cometmq.client.subscriptions import ExpressionType, subscription
from cometmq.client.testing import MemoryCluster
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import SubscriptionParseFailed

CHECK = RequestCode.CHECK_CLIENT_CONFIG
SQL = MessageSelector.by_sql("a >")


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


@pytest.mark.parametrize("make", [push_consumer, lite_pull_consumer])
async def test_a_memory_cluster_refuses_conditions(cluster: MemoryCluster, make: Any) -> None:
    with pytest.raises(SubscriptionParseFailed, match="MemoryCluster does not evaluate SQL92"):
        await make(cluster, MessageSelector.by_sql("a > 5")).start()
    assert cluster.broker.requests[CHECK] == 1


@pytest.mark.parametrize("make", [push_consumer, lite_pull_consumer])
async def test_a_wrong_condition_raises_at_the_start(cluster: MemoryCluster, make: Any) -> None:
    cluster.broker.fail(CHECK, SubscriptionParseFailed('Encountered "<EOF>" at line 1'))
    with pytest.raises(SubscriptionParseFailed, match=r'Encountered "<EOF>" at line 1'):
        await make(cluster, SQL).start()


@pytest.mark.parametrize("make", [push_consumer, lite_pull_consumer])
async def test_tags_are_no_question_for_the_broker(cluster: MemoryCluster, make: Any) -> None:
    async with make(cluster, MessageSelector.by_tag("A")):
        assert cluster.broker.requests[CHECK] == 0
