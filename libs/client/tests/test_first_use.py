# SPDX-License-Identifier: Apache-2.0
"""Behaviour that surprised a first-time user of the client."""

from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientStateError,
    ConsumeResult,
    InvalidArgument,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    MessageSelector,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushOptions,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.errors import command_error
from cometmq.remoting.remarks import filter_refused
from cometmq.testing.client.listening import QUEUE_0, Recorder, consumer_of, send, texts

COMMIT, ROLLBACK, UNKNOWN = TransactionState


class Log:
    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def debug(self, event: str, /, **facts: object) -> None:
        self.events.append((event, facts))

    info = warning = error = debug

    def of(self, event: str) -> list[dict[str, object]]:
        return [facts for name, facts in self.events if name == event]


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
    log = Log()
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
    log, seen = Log(), Recorder(lambda _: result)
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

    log = Log()
    options = PushOptions(max_reconsume_times=2, orderly=orderly, suspend_queue_ms=10)
    async with consumer_of(cluster, Recorder(fail), options, log=log):
        await send(cluster, *texts(1))
        await eventually(lambda: log.of("message.dead"))
    (facts,) = log.of("message.dead")
    assert facts["attempt_count"] == 3
    assert facts["error"] == "ValueError: no price at attempt 3"


async def test_a_message_that_the_application_gives_up_says_so(cluster: MemoryCluster) -> None:
    log, seen = Log(), Recorder()
    async with consumer_of(cluster, seen, log=log) as consumer:
        await send(cluster, *texts(1))
        await eventually(lambda: seen.messages)
        assert await consumer.send_message_back(seen.messages[0], -1)
    assert [facts["error"] for facts in log.of("message.dead")] == ["the application sent it back"]


async def test_a_redelivery_is_a_detail_in_the_log(cluster: MemoryCluster) -> None:
    log, answers = Log(), [ConsumeResult.RECONSUME_LATER, ConsumeResult.SUCCESS]
    seen = Recorder(lambda _: answers.pop(0))
    async with consumer_of(cluster, seen, log=log):
        await send(cluster, *texts(1))
        await eventually(lambda: len(seen.bodies) == 2)
    assert len(log.of("message.returned")) == 1
    assert not log.of("message.dead")


async def test_a_status_prints_as_its_name(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        status = (await producer.send(Message("T", b"x"))).status
    assert f"{status} {status!s} {status:>8}" == "SEND_OK SEND_OK  SEND_OK"
    assert f"{status:d} {status:03d} %d" % status == "0 000 0"
    assert f"{PullStatus.NO_NEW}" == "NO_NEW"


# -- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"properties": {"colour": ""}}, "not be blank: 'colour' is ''"),
        ({"properties": {" ": "red"}}, "property names and values must not be blank"),
        ({"tag": "a||b"}, r"one tag, without \|\|"),
        ({"tag": "new "}, r"the tag 'new ' matches no subscription.*use tag\.strip\(\)"),
        ({"tag": " "}, "use None for a message without a tag"),
        ({"delay_level": 99}, "delay_level_max"),
    ],
)
async def test_values_that_would_be_lost(
    cluster: MemoryCluster, fields: dict[str, Any], text: str
) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match=text):
            await producer.send(Message("T", b"x", **fields))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"keys": 17}, "keys must be a string or a list of strings, not 17"),
        ({"properties": None}, "properties must be a dict of strings, not None"),
        ({"flag": "a"}, "flag of a message must be an int, not 'a'"),
    ],
)
async def test_wrong_types_are_named(
    cluster: MemoryCluster, fields: dict[str, Any], text: str
) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match=text):
            await producer.send(Message("T", b"x", **fields))


async def test_wrong_arguments_are_named(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer, AdminClient(cluster.namesrv) as admin:
        with pytest.raises(InvalidArgument, match="queue must be a MessageQueue"):
            await producer.send(Message("T", b"x"), queue=3)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="32 or 56 hex digits: 'abc'"):
            await admin.stored_message("abc")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda a: a.create_group("cg"),
            r"config must be SubscriptionGroupConfig\(...\), not 'cg'",
        ),
        (lambda a: a.put_topic("T", []), r"config must be TopicConfig\(...\), not 'T'"),
        (lambda a: a.create_topic("T", broker_names="broker-a"), "must be a list of strings, not"),
        (lambda a: a.create_topic("T", broker_names=[7]), r"a list of strings, not \[7\]"),
        (lambda a: a.masters(["c"]), r"cluster must be a string, not \['c'\]"),
        (lambda a: a.view_message(7, "T"), "message_id must be a string, not 7"),
        (lambda a: a.consume_directly("cg", "id", "A1"), "a MessageExt that a consumer received"),
        (lambda a: a.message_tracks("A1"), "a MessageExt that a consumer received"),
        (lambda a: a.resend(Message("T", b"x")), "a MessageExt that a consumer received"),
        (lambda a: a.replay("A1", "cg"), "a MessageExt that a consumer received"),
        (lambda a: a.check_replay(7), "the name of a group must be a string, not int"),
        (lambda a: a.check_replay("cg", topic=7), "the name of a topic must be a string"),
    ],
)
async def test_wrong_arguments_of_admin_calls_are_named(
    cluster: MemoryCluster, call: Any, text: str
) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        with pytest.raises(InvalidArgument, match=text):
            await call(admin)


async def test_other_wrong_arguments_are_named(cluster: MemoryCluster) -> None:
    with pytest.raises(InvalidArgument, match="broker_names must be a list of strings, not 'b'"):
        MemoryCluster("b")
    wrong: Any = 7
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match=r"selector is 7.*def selector\(queues, message"):
            await producer.send_ordered(Message("T", b"x"), "a", selector=wrong)
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        for call in (consumer.queues_in_balance, consumer.unsubscribe):
            with pytest.raises(InvalidArgument, match="a topic must be a string, not int"):
                await call(wrong)
    async with lite(cluster) as other:
        with pytest.raises(InvalidArgument, match="a topic must be a string, not int"):
            await other.unsubscribe(wrong)


async def test_a_long_value_is_shortened_in_an_error(cluster: MemoryCluster) -> None:
    """Otherwise the error for a message passed as a queue would contain its whole body."""
    message: Any = Message("T", b"x" * 100_000)
    async with Producer("pg", cluster.namesrv) as producer:
        with pytest.raises(InvalidArgument, match="queue must be a MessageQueue") as caught:
            await producer.send(message, queue=message)
    assert "not Message(topic='T', body=b'xxx" in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("options", [{"concurrency": 3}, LitePullOptions()])
def test_options_of_another_class(options: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"the options must be PushOptions\(...\), not"):
        PushConsumer("cg", listener=print, options=options)
    with pytest.raises(InvalidArgument, match=r"the options must be PullOptions"):
        PullConsumer("cg", options=options)
    with pytest.raises(InvalidArgument, match=r"the options must be ProducerOptions"):
        Producer("pg", options=options)


def test_an_sql_refusal_names_the_setting() -> None:
    refused = command_error(1, filter_refused("SQL92"))
    assert "set enablePropertyFilter=true at every broker" in str(refused)
    assert "cannot parse the filter" in str(command_error(23, "Encountered EOF"))


def test_results_that_mean_nothing() -> None:
    with pytest.raises(InvalidArgument, match="count of consumed messages"):
        ConsumeResult.consumed(-1)
    with pytest.raises(InvalidArgument, match="delay level of a redelivery"):
        ConsumeResult.later(50)
