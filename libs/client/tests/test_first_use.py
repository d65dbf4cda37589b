# SPDX-License-Identifier: Apache-2.0
"""Behaviour that surprised a first-time user of the client."""

from typing import Any

import pytest

from cometmq.client import (
    ClientStateError,
    ConsumeResult,
    InvalidArgument,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    MessageSelector,
    PushOptions,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.testing.client.listening import QUEUE_0, KeptEvents, Recorder, consumer_of, send, texts

COMMIT, ROLLBACK, UNKNOWN = TransactionState


def lite(cluster: MemoryCluster, **options: Any) -> LitePullConsumer:
    consumer = LitePullConsumer("lg", cluster.namesrv, options=LitePullOptions(**options))
    consumer.subscribe("T")
    return consumer


def transactions(cluster: MemoryCluster) -> TransactionProducer:
    return TransactionProducer(
        "pg", cluster.namesrv, check=lambda _message: None, options=TransactionOptions()
    )


# -- a cluster in memory ----------------------------------------------------------------------


async def test_a_new_group_starts_with_the_first_message(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(3))
    async with lite(cluster) as consumer:
        assert [message.body for message in await consumer.poll()] == [b"0", b"1", b"2"]


async def test_a_new_group_starts_at_the_end_of_an_old_queue(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(3))
    cluster.broker.queues.expire("T", 0, 1)
    async with lite(cluster) as consumer:
        assert await consumer.committed(QUEUE_0) is None
        await consumer.commit()
    assert cluster.committed("lg", "T")[QUEUE_0] == 3


async def test_young_queues_may_obey_consume_from(cluster: MemoryCluster) -> None:
    cluster.broker.young_queue_starts_at_zero = False
    await send(cluster, *texts(3))
    async with lite(cluster) as consumer:
        await consumer.commit()
    assert cluster.committed("lg", "T")[QUEUE_0] == 3


async def test_a_condition_added_while_running_delivers_nothing(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(1))
    log = KeptEvents()
    consumer = LitePullConsumer("lg", cluster.namesrv, log=log)
    async with consumer:
        consumer.subscribe("T", MessageSelector.by_sql("a > 5"))
        await eventually(lambda: log.of("pull.failed"))
    assert "does not evaluate SQL92" in str(log.of("pull.failed")[0]["error"])


# -- iteration and pauses ---------------------------------------------------------------------


async def test_iterating_needs_a_running_consumer(cluster: MemoryCluster) -> None:
    consumer = lite(cluster)
    for text in ("is not started", "is closed"):
        with pytest.raises(ClientStateError, match=text):
            async for _ in consumer:
                pass
        with pytest.raises(ClientStateError, match=text):
            async for _ in consumer.batches():
                pass
        if text == "is not started":
            async with consumer:
                pass


async def test_messages_of_a_held_pull_wait_for_resume(cluster: MemoryCluster) -> None:
    async with lite(cluster) as consumer:
        await eventually(lambda: cluster.broker.held_count == 4)
        consumer.pause([QUEUE_0])
        await send(cluster, *texts(1))
        assert await consumer.poll(timeout_ms=100) == []
        consumer.resume([QUEUE_0])
        assert [message.body for message in await consumer.poll()] == [b"0"]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_suspended_listener_sees_no_message(cluster: MemoryCluster, orderly: bool) -> None:
    seen = Recorder(lambda _: None)
    async with (
        consumer_of(cluster, seen, PushOptions(orderly=orderly)) as consumer,
        lite(cluster) as other,
    ):
        await eventually(lambda: cluster.broker.held_count >= 8)
        consumer.suspend()
        await send(cluster, *texts(1))
        assert [message.body for message in await other.poll()] == [b"0"]
        assert await other.poll(timeout_ms=100) == []
        assert seen.bodies == []
        consumer.resume()
        await eventually(lambda: seen.bodies == [b"0"])


# -- transactions -----------------------------------------------------------------------------


async def test_a_transaction_ends_once(cluster: MemoryCluster) -> None:
    async with transactions(cluster) as producer:
        transaction = await producer.begin(Message("T", b"x"))
        with pytest.raises(InvalidArgument, match="COMMIT, ROLLBACK or UNKNOWN, not with None"):
            await transaction.end(None)  # type: ignore[arg-type]
        await transaction.end(UNKNOWN)
        await transaction.end(COMMIT)
        assert (await transaction.end(COMMIT)).state is COMMIT
        with pytest.raises(ClientStateError, match="has ended with COMMIT: it cannot end with"):
            await transaction.end(ROLLBACK)
        await eventually(lambda: len(cluster.broker.ends) == 2)
    assert len(cluster.messages("T")) == 1


async def test_a_transaction_takes_no_delay_level(cluster: MemoryCluster) -> None:
    async with transactions(cluster) as producer:
        with pytest.raises(InvalidArgument, match="in a transaction cannot have a delay level"):
            await producer.begin(Message("T", b"x", delay_level=3))


# -- deaths -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "times_max", "error"),
    [
        (ConsumeResult.DEAD_LETTER, 16, "the listener asked for a dead letter"),
        (ConsumeResult.RECONSUME_LATER, 0, "the listener asked for redelivery"),
    ],
)
async def test_a_death_is_logged(
    cluster: MemoryCluster, result: ConsumeResult, times_max: int, error: str
) -> None:
    log, seen = KeptEvents(), Recorder(lambda _: result)
    options = PushOptions(max_reconsume_times=times_max)
    async with consumer_of(cluster, seen, options, log=log):
        await send(cluster, *texts(1))
        await eventually(lambda: cluster.broker.dead)
        await eventually(lambda: log.of("message.dead"))
    (facts,) = log.of("message.dead")
    assert facts == {
        "group": "cg",
        "topic": "T",
        "message_id": seen.messages[0].message_id,
        "attempt_count": 1,
        "error": error,
    }


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_death_names_the_last_error_and_the_number_of_attempts(
    cluster: MemoryCluster, *, orderly: bool
) -> None:
    def fail(messages: list[MessageExt]) -> None:
        raise ValueError(f"no price at attempt {messages[0].reconsume_times + 1}")

    log = KeptEvents()
    options = PushOptions(max_reconsume_times=2, orderly=orderly, suspend_queue_ms=10)
    async with consumer_of(cluster, Recorder(fail), options, log=log):
        await send(cluster, *texts(1))
        await eventually(lambda: log.of("message.dead"))
    (facts,) = log.of("message.dead")
    assert facts["attempt_count"] == 3
    assert facts["error"] == "ValueError: no price at attempt 3"


async def test_a_message_that_the_application_gives_up_says_so(cluster: MemoryCluster) -> None:
    log, seen = KeptEvents(), Recorder()
    async with consumer_of(cluster, seen, log=log) as consumer:
        await send(cluster, *texts(1))
        await eventually(lambda: seen.messages)
        assert await consumer.send_message_back(seen.messages[0], -1)
    assert [facts["error"] for facts in log.of("message.dead")] == ["the application sent it back"]


async def test_a_redelivery_is_a_detail_in_the_log(cluster: MemoryCluster) -> None:
    log, answers = KeptEvents(), [ConsumeResult.RECONSUME_LATER, ConsumeResult.SUCCESS]
    seen = Recorder(lambda _: answers.pop(0))
    async with consumer_of(cluster, seen, log=log):
        await send(cluster, *texts(1))
        await eventually(lambda: len(seen.bodies) == 2)
    assert len(log.of("message.returned")) == 1
    assert not log.of("message.dead")


# -- values -----------------------------------------------------------------------------------
