# SPDX-License-Identifier: Apache-2.0
"""The in-memory cluster that users test their programs with, and `eventually`."""

import asyncio
from functools import partial
from typing import Any

import pytest

from cometmq.client import (
    AdminClient,
    ClientStateError,
    InvalidArgument,
    Message,
    MessageExt,
    NoRoute,
    Producer,
    SubscriptionGroupConfig,
    TransactionProducer,
    TransactionState,
    sync,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.testing.handlers import CHECK_COUNT_MAX
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.errors import ServerError
from cometmq.testing.client.listening import Recorder, consumer_of


async def test_topics_are_created_changed_and_deleted(pair: MemoryCluster) -> None:
    async with AdminClient(pair.namesrv) as admin, Producer("pg", pair.namesrv) as producer:
        assert await admin.create_topic("New", queue_count=3) == ["broker-a", "broker-b"]
        assert len(await admin.queues("New")) == 6
        change = partial(admin.create_topic, "New", is_forced=True)
        await change(queue_count=2, perm=4, broker_names=["broker-b"])
        await change(queue_count=1, broker_names=["broker-a"])
        assert [queue.broker_name for queue in await producer.queues("New")] == ["broker-a"]
        assert (await admin.masters())["broker-b"].name == "broker-b"
        config = (await (await admin.masters())["broker-b"].topics())["New"]
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (2, 2, 4)

        await producer.send(Message("New", b"x"))
        await admin.delete_topic("New")
        assert "New" not in await admin.topics()
        with pytest.raises(NoRoute):
            await admin.route("New")
        await admin.create_topic("New", queue_count=1)
        assert [one.max_offset for one in (await admin.topic_stats("New")).values()] == [0, 0]


async def test_a_topic_has_as_many_read_as_write_queues(admin: AdminClient) -> None:
    (master,) = (await admin.masters()).values()
    config = (await master.topics())["T"]
    config.write_queue_nums += 1
    with pytest.raises(ServerError, match="as many read queues as write queues"):
        await admin.put_topic(config, [master])


async def test_groups_are_created_and_deleted(cluster: MemoryCluster) -> None:
    async with AdminClient(cluster.namesrv) as admin, Producer("pg", cluster.namesrv) as producer:
        await admin.create_group(SubscriptionGroupConfig(group_name="cg", retry_max_times=3))
        assert (await admin.groups())["cg"].retry_max_times == 3
        await producer.send(Message("T", b"x"))
        seen = Recorder()
        async with consumer_of(cluster, seen):
            await eventually(lambda: seen.bodies, what="a message")
        assert sum(cluster.committed("cg", "T").values()) == 1

        await admin.delete_group("cg")
        assert "cg" not in await admin.groups()
        assert cluster.committed("cg", "T")
        await admin.delete_group("cg", remove_offsets=True)
        assert not cluster.committed("cg", "T")


async def test_eventually_returns_the_first_true_value() -> None:
    values = iter([0, "", 7])
    assert await eventually(lambda: next(values)) == 7
    more = iter([None, "done"])

    async def next_value() -> str | None:
        await asyncio.sleep(0)
        return next(more)

    assert await eventually(next_value, 5) == "done"


async def test_eventually_names_the_last_value() -> None:
    with pytest.raises(TimeoutError, match=r"two messages did not .* within 0.01 s; .* was \[\]"):
        await eventually(list, 0.01, what="two messages")
    wrong: Any = True
    with pytest.raises(InvalidArgument, match="a function, not True: write `await eventually"):
        await eventually(wrong)


COMMIT, ROLLBACK, UNKNOWN = TransactionState


def transactions_of(cluster: MemoryCluster, check: Any) -> TransactionProducer:
    return TransactionProducer(
        "pg", cluster.namesrv, check=check, execute=lambda _message, _argument: UNKNOWN
    )


async def test_a_transaction_that_is_left_open_is_checked(cluster: MemoryCluster) -> None:
    answers = [UNKNOWN, UNKNOWN, COMMIT]

    def check(message: MessageExt) -> TransactionState:
        assert message.body == b"x"
        return answers.pop(0)

    async with transactions_of(cluster, check) as producer:
        result = await producer.send_in_transaction(Message("T", b"x"))
        assert result.state is UNKNOWN
        (message,) = await eventually(lambda: cluster.messages("T"), what="the message")
    assert message.message_id == result.message_id
    assert answers == []


async def test_checks_of_a_transaction_wait_for_a_producer(cluster: MemoryCluster) -> None:
    cluster.broker.may_check_transactions = False
    async with transactions_of(cluster, lambda _: None) as crashing:
        for number in range(2):
            await crashing.begin(Message("T", b"%d" % number))
        await crashing.send_in_transaction(Message("T", b"2"))
        states = await cluster.check_transactions()
        assert list(states.values()) == [UNKNOWN] * 3
    assert await cluster.check_transactions() == {}

    decided = {b"0": COMMIT, b"1": ROLLBACK, b"2": None}
    async with transactions_of(cluster, lambda message: decided[message.body]) as restarted:
        await restarted.send(Message("Other", b"its broker now knows this producer"))
        await eventually(lambda: cluster.broker.producers["pg"], what="a producer")
        states = await cluster.check_transactions()
        assert list(states.values()) == [COMMIT, ROLLBACK, UNKNOWN]
        assert list(await cluster.check_transactions()) == list(states)[2:]
    assert [message.body for message in cluster.messages("T")] == [b"0"]


async def test_a_transaction_is_checked_as_often_as_brokers_do(cluster: MemoryCluster) -> None:
    asked: list[MessageExt] = []
    async with transactions_of(cluster, asked.append) as producer:
        await producer.send_in_transaction(Message("T", b"x"))
        await eventually(lambda: len(cluster.broker.ends) == 1 + CHECK_COUNT_MAX, 60)
        assert cluster.broker.check_counts.total() == len(asked) == CHECK_COUNT_MAX
    assert cluster.messages("T") == []


def test_a_program_without_a_loop_waits_for_its_cluster() -> None:
    with (
        MemoryCluster() as cluster,
        sync.TransactionProducer("pg", cluster.namesrv, check=lambda _: COMMIT) as producer,
    ):
        transaction = producer.begin(Message("T", b"x"))
        states = cluster.run(cluster.check_transactions())
        assert states == {transaction.transaction_id: COMMIT}
        assert cluster.run(eventually(lambda: len(cluster.messages("T")))) == 1


async def test_a_cluster_in_a_loop_is_awaited(cluster: MemoryCluster) -> None:
    with pytest.raises(ClientStateError, match="in the event loop of its MemoryCluster"):
        cluster.run(cluster.check_transactions())
    assert await cluster.check_transactions() == {}


# -- wrong use --------------------------------------------------------------------------------


async def test_a_cluster_starts_once() -> None:
    cluster = MemoryCluster()
    with pytest.raises(ClientStateError, match="has no address yet: use it inside `async with"):
        _ = cluster.namesrv
    async with cluster:
        address = cluster.namesrv
        with pytest.raises(ClientStateError, match="is already running"):
            await cluster.start()
        with pytest.raises(ClientStateError, match="broker-a is already running"):
            await cluster.broker.start()
        await cluster.start_broker(cluster.broker)
        async with Producer("pg", address) as producer:
            await producer.send(Message("T", b"x"))
    assert not cluster.broker.is_running
    async with cluster:  # after a stop it may start again
        assert len(cluster.messages("T")) == 1


async def test_a_master_is_lost_before_it_is_regained(cluster: MemoryCluster) -> None:
    with pytest.raises(ClientStateError, match="the master of broker-a is not lost"):
        await cluster.regain_master(cluster.broker)
    await cluster.lose_master(cluster.broker)
    with pytest.raises(ClientStateError, match="broker-a has no running master"):
        await cluster.lose_master(cluster.broker)
    await cluster.regain_master(cluster.broker)


SEND = RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda _: MemoryCluster(["a", "a"]), "broker_names must be "),
        (lambda it: it.create_topic("New", queue_count=0), "queue_count must be a whole number"),
        (lambda it: it.create_topic("a b"), "contains illegal characters"),
        (lambda it: it.broker.fail(99_999, ServerError("x")), "code must be one of the request co"),
        (
            lambda it: it.broker.fail(SEND, ServerError("x"), times=0),
            "times must be a whole number",
        ),
        (lambda it: it.broker.fail(SEND, "x"), "fault must be a CommandError"),
        (lambda it: it.broker.store_less_safely(ResponseCode.SYSTEM_ERROR), "code must be one of"),
        (lambda it: it.broker.store_less_safely(ResponseCode.FLUSH_DISK_TIMEOUT, times=0), "times"),
        (lambda it: it.lose_master("broker-a"), "broker must be one of `cluster.brokers`"),
        (lambda it: it.check_transactions(timeout_s=0), "timeout_s must be a number of seconds"),
        (lambda it: it.run(it.check_transactions), "takes a coroutine"),
    ],
)
async def test_wrong_arguments_are_refused(cluster: MemoryCluster, call: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        await call(cluster)
    assert "New" not in cluster.topics()
