# SPDX-License-Identifier: Apache-2.0
"""Large answers do not hold the event loop, and what no server has is refused."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from cometmq.client import AdminClient, LitePullConsumer, MessageQueue, PushOptions
from cometmq.client.consume.queues import rebalance
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.testing import cluster as served
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.locks import LockBatchReply
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Reply
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.testing.client.listening import Recorder, consumer_of

TURN_S_MAX: Final = 0.1
"""On the loop, the tables below took 0.5 s and more."""
ENTRY: Final = (
    b'{"topic":"T","brokerName":"broker-a","queueId":%d}:'
    b'{"brokerOffset":9,"consumerOffset":5,"lastTimestamp":1}'
)
PROGRESS: Final = b'{"consumeTps":0,"offsetTable":{%s}}' % b",".join(
    ENTRY % it for it in range(30_000)
)
BROKERS: Final = b'{"unknown":{%s}}' % b",".join(b'"%d":1' % it for it in range(300_000))

Answer = Callable[[int, bytes], None]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Return a function that gives servers, before they start, the body of an answer."""

    def given(code: int, body: bytes) -> None:
        for table in ("HANDLERS", "BROKER_HANDLERS"):
            handlers = {**getattr(served, table), code: lambda *_: Reply(body=body)}
            monkeypatch.setattr(served, table, handlers)

    return given


@pytest.mark.load
async def test_a_large_table_is_decoded_beside_the_loop(
    answer: Answer, turns_s: list[float]
) -> None:
    answer(RequestCode.GET_CONSUME_STATS, PROGRESS)
    async with MemoryCluster() as cluster, AdminClient(cluster.namesrv) as admin:
        (master,) = (await admin.masters()).values()
        turns_s.clear()
        stats = await master.consume_stats("cg", "T")
        assert len(stats.offset_table) == 30_000
    assert max(turns_s) < TURN_S_MAX


@pytest.mark.load
@pytest.mark.parametrize(
    "code", [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO]
)
async def test_a_list_of_brokers_has_a_bound_in_bytes(
    answer: Answer, turns_s: list[float], code: RequestCode
) -> None:
    answer(code, BROKERS)
    async with MemoryCluster() as cluster, AdminClient(cluster.namesrv) as admin:
        turns_s.clear()
        with pytest.raises(RemoteProtocolError, match="answers a list of brokers of 3,"):
            await (admin.masters() if code == RequestCode.GET_BROKER_CLUSTER_INFO
                   else admin.namesrv.route("T"))  # fmt: skip
    assert max(turns_s) < TURN_S_MAX


async def test_a_group_has_a_bound_of_members(
    answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    count = rebalance.MEMBERS_MAX + 1
    ids = b",".join(b'"%d"' % it for it in range(count))
    answer(RequestCode.GET_CONSUMER_LIST_BY_GROUP, b'{"consumerIdList":[%s]}' % ids)
    async with MemoryCluster() as cluster:
        cluster.create_topic("T")
        consumer = LitePullConsumer("cg", cluster.namesrv)
        consumer.subscribe("T")
        async with consumer:
            await eventually(lambda: "the group cg has 65,537 members" in caplog.text)
            assert consumer.queues == []


async def test_a_broker_grants_no_lock_that_it_was_not_asked_for(answer: Answer) -> None:
    """The client kept any number of them, and renewed them every 20 s."""
    granted = [
        MessageQueue("T", "broker-a", 0),
        MessageQueue("T", "broker-b", 0),
        MessageQueue("T", "broker-a", 7),
        MessageQueue("U", "broker-a", 0),
    ]
    answer(RequestCode.LOCK_BATCH_MQ, encode_json(LockBatchReply(granted)))
    async with MemoryCluster() as cluster:
        cluster.create_topic("T")
        async with consumer_of(cluster, Recorder(), PushOptions(orderly=True)) as consumer:
            await eventually(lambda: consumer.queues == [MessageQueue("T", "broker-a", 0)])
            locks: Any = consumer._work.queues._locks  # type: ignore[union-attr]
            assert [*locks._held] == [*locks._asked] == consumer.queues
