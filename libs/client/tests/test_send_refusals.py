# SPDX-License-Identifier: Apache-2.0
"""Sends that brokers refuse: which refusals are retried, and which are final."""

import pytest

from cometmq.client import (
    Message,
    NoRoute,
    Outage,
    Producer,
    ProducerOptions,
    SendFailed,
    SendStatus,
    TransactionOptions,
    TransactionProducer,
)
from cometmq.client.testing import DISCONNECT, MemoryCluster
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.errors import (
    CommandError,
    FlushDiskTimeout,
    NoBuyerId,
    NoPermission,
    NotInCurrentUnit,
    ServerError,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
)

from .send_forms import SEND, send_form


@pytest.mark.parametrize("error", [ServerError("x"), ServiceNotAvailable("x"), TopicNotExist("x")])
async def test_some_refusals_are_tried_again_at_another_broker(
    pair: MemoryCluster, error: Exception
) -> None:
    first, second = pair.brokers
    async with Producer("pg", pair.namesrv) as producer:
        for _ in range(4):
            first.fail(SEND, error)  # type: ignore[arg-type]
            result = await producer.send(Message("T", b"x"))
            assert result.queue.broker_name in {first.name, second.name}
    assert len(pair.messages("T")) == 4
    assert second.queues.max_offset("T", 0) + second.queues.max_offset("T", 1) >= 2


async def test_a_busy_broker_is_not_asked_again(cluster: MemoryCluster) -> None:
    cluster.broker.fail(SEND, SystemBusy("[OVERLOAD]"))
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(SystemBusy):
            await producer.send(Message("T", b"x"))
        assert producer.stats().failed_count == 1
    assert cluster.broker.requests[SEND] == 1


async def test_a_busy_broker_is_asked_again_if_that_is_wanted(cluster: MemoryCluster) -> None:
    cluster.broker.fail(SEND, SystemBusy("[OVERLOAD]"), times=2)
    options = ProducerOptions(retry_when_busy=True)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        await producer.send(Message("T", b"x"))
    assert cluster.broker.requests[SEND] == 3


@pytest.mark.parametrize("code", [1, 16])
async def test_a_refusal_by_access_control_is_final(cluster: MemoryCluster, code: int) -> None:
    """The Java client retries after these codes."""
    remark = "org.apache.rocketmq.acl.common.AclException: no, a.b.C.d(C.java:663)"
    cluster.broker.fail(SEND, CommandError(code, remark), times=3)
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(CommandError, match="access denied: no ") as caught:
            await producer.send(Message("T", b"x"))
        assert cluster.broker.requests[SEND] == 1
    assert (caught.value.remark, caught.value.address) == (remark, cluster.broker.address)
    assert "java" not in str(caught.value)


async def test_only_codes_that_may_pass_are_retried(
    cluster: MemoryCluster, producer: Producer
) -> None:
    """The list is that of Java's DefaultMQProducer."""
    for code in ResponseCode:
        if int(code) in {int(status) for status in SendStatus}:
            continue
        before = cluster.broker.requests[SEND]
        cluster.broker.fail(SEND, CommandError(code, "why"), times=1)
        if code in {17, 14, 1, 16, 204, 205}:
            await producer.send(Message("T", b"x"))
            assert cluster.broker.requests[SEND] == before + 2, code.name
        else:
            with pytest.raises(CommandError, match="why"):
                await producer.send(Message("T", b"x"))
            assert cluster.broker.requests[SEND] == before + 1, code.name


PATIENT = ProducerOptions(send_timeout_ms=60_000)


LASTING = [NoPermission("x"), TopicNotExist("x"), NoBuyerId("x"), NotInCurrentUnit("x")]


def raised_for(refusal: CommandError) -> type[Exception]:
    return NoRoute if isinstance(refusal, TopicNotExist) else type(refusal)


@pytest.mark.parametrize("form", ["send", "batch", "queue", "ordered", "request"])
@pytest.mark.parametrize("refusal", LASTING)
async def test_a_refusal_for_good_is_no_outage(
    cluster: MemoryCluster, refusal: CommandError, form: str
) -> None:
    """The Java client retries these at other brokers."""
    cluster.broker.fail(SEND, refusal, times=3)
    cluster.broker.fail(RequestCode.SEND_BATCH_MESSAGE, refusal, times=3)
    async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
        with pytest.raises(raised_for(refusal)) as caught:
            await send_form(form, producer, MessageQueue("T", "broker-a", 0))
        assert producer.stats().failed_count == 1
    assert not isinstance(caught.value, Outage)
    sent = cluster.broker.requests
    attempts = 1 if form in ("queue", "ordered") else 3
    assert sent[SEND] + sent[RequestCode.SEND_BATCH_MESSAGE] == attempts


@pytest.mark.parametrize("refusal", LASTING)
async def test_a_refused_half_message_is_no_outage(
    cluster: MemoryCluster, refusal: CommandError
) -> None:
    cluster.broker.fail(SEND, refusal, times=3)
    options = TransactionOptions(send_timeout_ms=60_000)
    async with TransactionProducer(
        "pg", cluster.namesrv, check=lambda _: None, options=options
    ) as producer:
        with pytest.raises(raised_for(refusal)):
            await producer.begin(Message("T", b"x"))


@pytest.mark.parametrize("other", [ServiceNotAvailable("x"), DISCONNECT])
async def test_a_refusal_after_a_passing_failure_is_an_outage(
    cluster: MemoryCluster, other: CommandError | str
) -> None:
    cluster.broker.fail(SEND, other)
    cluster.broker.fail(SEND, NoPermission("x"), times=2)
    async with Producer("pg", cluster.namesrv, options=PATIENT) as producer:
        with pytest.raises(SendFailed) as caught:
            await producer.send(Message("T", b"x"))
    assert caught.value.code == ResponseCode.NO_PERMISSION


async def test_less_safe_storage_is_a_result_or_a_reason_to_try_again(
    cluster: MemoryCluster,
) -> None:
    cluster.broker.store_less_safely(FlushDiskTimeout.CODE, times=2)
    async with Producer("pg", cluster.namesrv) as producer:
        result = await producer.send(Message("T", b"x"))
        assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
    options = ProducerOptions(retry_another_broker_when_not_stored=True)
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        assert (await producer.send(Message("T", b"x"))).status is SendStatus.SEND_OK
    assert cluster.broker.requests[SEND] == 3
