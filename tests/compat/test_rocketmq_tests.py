# SPDX-License-Identifier: Apache-2.0
"""Runs RocketMQ's own published integration tests against two brokers of either implementation."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.peers.cluster import Cluster
from cometmq.peers.content import Event
from cometmq.peers.java.rocketmqtests import start_tests

CHECK_INTERVAL_MS = 5000
CLASSES_TIMEOUT_S = 800
PACKAGE = "org.apache.rocketmq.test"
pytestmark = [pytest.mark.compat, pytest.mark.slow, pytest.mark.timeout(1700)]

CLASSES = {
    "producers": [
        "client.producer.async.AsyncSendExceptionIT",
        "client.producer.async.AsyncSendWithMessageQueueIT",
        "client.producer.async.AsyncSendWithMessageQueueSelectorIT",
        "client.producer.async.AsyncSendWithOnlySendCallBackIT",
        "client.producer.batch.BatchSendIT",
        "client.producer.exception.msg.ChinaPropIT",
        "client.producer.exception.msg.MessageExceptionIT",
        "client.producer.exception.msg.MessageUserPropIT",
        "client.producer.exception.producer.ProducerGroupAndInstanceNameValidityIT",
        "client.producer.oneway.OneWaySendExceptionIT",
        "client.producer.oneway.OneWaySendIT",
        "client.producer.oneway.OneWaySendWithMQIT",
        "client.producer.oneway.OneWaySendWithSelectorIT",
        "client.producer.querymsg.QueryMsgByIdExceptionIT",
        "client.producer.querymsg.QueryMsgByIdIT",
        "smoke.NormalMessageSendAndRecvIT",
    ],
    "order": [
        "client.producer.order.OrderMsgIT",
        "client.producer.order.OrderMsgRebalanceIT",
        "client.producer.order.OrderMsgWithTagIT",
    ],
    "broadcast": [
        "client.consumer.broadcast.normal.BroadCastNormalMsgNotRecvIT",
        "client.consumer.broadcast.normal.BroadCastNormalMsgRecvCrashIT",
        "client.consumer.broadcast.normal.BroadCastNormalMsgRecvFailIT",
        "client.consumer.broadcast.normal.BroadCastNormalMsgRecvStartLaterIT",
        "client.consumer.broadcast.normal.BroadCastNormalMsgTwoDiffGroupRecvIT",
        "client.consumer.broadcast.normal.NormalMsgTwoSameGroupConsumerIT",
        "client.consumer.broadcast.order.OrderMsgBroadCastIT",
        "client.consumer.broadcast.tag.BroadCastTwoConsumerFilterIT",
        "client.consumer.broadcast.tag.BroadCastTwoConsumerSubDiffTagIT",
        "client.consumer.broadcast.tag.BroadCastTwoConsumerSubTagIT",
    ],
    "sharing": [
        "client.consumer.balance.NormalMsgDynamicBalanceIT",
        "client.consumer.balance.NormalMsgStaticBalanceIT",
        "client.consumer.cluster.DynamicAddAndCrashIT",
        "client.consumer.cluster.DynamicAddConsumerIT",
        "client.consumer.cluster.DynamicCrashConsumerIT",
        "client.consumer.topic.MulConsumerMulTopicIT",
        "client.consumer.topic.OneConsumerMulTopicIT",
    ],
    "look-ups": ["client.producer.querymsg.QueryMsgByKeyIT"],  # requires fresh stores
    "tags and delays": [
        "client.consumer.tag.MulTagSubIT",
        "client.consumer.tag.TagMessageWith1ConsumerIT",
        "client.consumer.tag.TagMessageWithMulConsumerIT",
        "client.consumer.tag.TagMessageWithSameGroupConsumerIT",
        "delay.NormalMsgDelayIT",
    ],
    "SQL": ["client.consumer.filter.SqlFilterIT"],
    "transactions": ["client.producer.transaction.TransactionalMsgIT"],
    "TLS": ["tls.TLS_IT", "tls.TLS_Mix2_IT", "tls.TLS_Mix_IT"],
}
TEST_COUNTS = {
    "producers": 37, "order": 10, "broadcast": 10, "sharing": 16, "look-ups": 4,
    "tags and delays": 24, "SQL": 2, "transactions": 1, "TLS": 3,
}  # fmt: skip
"""RocketMQ marks one of the broadcasting tests as ignored."""


@pytest.fixture(scope="module", params=["comet", "java"])
def pair(
    request: pytest.FixtureRequest,
    maker: Callable[[str], type[Cluster]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp(request.param)
    with maker(request.param)(
        directory,
        {"enablePropertyFilter": True},
        transaction_conf={"transactionCheckInterval": CHECK_INTERVAL_MS},
        broker_count=2,
    ) as running:
        yield running


@pytest.mark.parametrize("topic", CLASSES)
def test_rocketmqs_own_tests_pass(pair: Cluster, topic: str, tmp_path: Path) -> None:
    """Excludes DLedger's tests, and a class that fails on Java's broker in two of five runs.

    Each test may fail once, on either implementation. Several tests send as soon as a consumer has
    started; on a loaded machine, that consumer may not have looked up the ends of its queues yet.
    Others need timing accurate to a tenth of a second.
    """
    events = _run(pair, CLASSES[topic], tmp_path / "first")
    if failed := _failed(events):
        assert _failed(_run(pair, sorted(failed), tmp_path / "again")) == {}

    assert len(events) == TEST_COUNTS[topic]


def _run(pair: Cluster, classes: list[str], log: Path) -> list[Event]:
    with start_tests(pair, classes, log) as running:
        return list(running.finish(timeout_s=CLASSES_TIMEOUT_S))


def _failed(events: list[Event]) -> dict[str, str]:
    found = {}
    for event in events:
        if event["event"] == "failed":
            name = event["test"].rpartition("(")[2].rstrip(")")
            found[name.removeprefix(f"{PACKAGE}.")] = event["reason"]
    return found
