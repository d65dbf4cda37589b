# SPDX-License-Identifier: Apache-2.0
"""Refusals of access control are not retried."""

import pytest

from cometmq.client import Message, Outage, Producer
from cometmq.client.consume.queues.reader import REFUSED_DELAY_MS, Reader
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import AccessDenied, ServerError
from cometmq.testing.client.listening import Recorder, consumer_of, logged

REFUSAL = ServerError("org.apache.rocketmq.acl.common.AclException: no, a.b.C.d(C.java:663)")
HEARTBEAT = RequestCode.HEART_BEAT
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP


async def test_a_refused_member_does_not_insist(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client.cluster.heartbeats.RETRY_SOON_MS", 1)
    monkeypatch.setattr("cometmq.client.consume.membership.RETRY_SOON_MS", 1)
    for code in (HEARTBEAT, MEMBERS):
        cluster.broker.fail(code, REFUSAL, times=1_000)
    async with (
        consumer_of(cluster, Recorder()),
        Producer("other", cluster.namesrv) as producer,
    ):
        for _ in range(200):  # enough turns for hundreds of heartbeats at 1 ms
            await producer.send(Message("T", b"x"))
        assert cluster.broker.requests[HEARTBEAT] <= 6
        assert cluster.broker.requests[MEMBERS] <= 6


async def test_a_refused_heartbeat_is_named_as_the_cause(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker does not know the group, because it refuses the heartbeats of its members."""
    cluster.broker.fail(HEARTBEAT, REFUSAL, times=1_000)
    async with consumer_of(cluster, Recorder()):
        await eventually(lambda: "rebalance.failed" in caplog.text)
    failed = logged(caplog, "rebalance.failed")
    assert all("AccessDenied: access denied: no" in text for text in failed)
    assert "no consumer for this group" not in caplog.text


async def test_a_refused_pull_waits_long(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[int] = []
    usual = Reader._failure_delay_ms

    def watched(reader: Reader, error: AccessDenied) -> int:
        delays.append(usual(reader, error))
        return delays[-1]

    monkeypatch.setattr(Reader, "_failure_delay_ms", watched)
    cluster.broker.fail(RequestCode.PULL_MESSAGE, REFUSAL, times=4)
    async with consumer_of(cluster, Recorder()):
        await eventually(lambda: bool(delays))
    assert set(delays) == {REFUSED_DELAY_MS}


async def test_an_injected_refusal_is_that_of_a_real_broker(cluster: MemoryCluster) -> None:
    cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, AccessDenied("no rights"), times=9)
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(AccessDenied, match=r"^access denied: no rights ") as caught:
            await producer.send(Message("T", b"x"), timeout_ms=60_000)
    assert not isinstance(caught.value, Outage)
    assert cluster.broker.requests[RequestCode.SEND_MESSAGE_V2] == 1
