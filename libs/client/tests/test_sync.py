# SPDX-License-Identifier: Apache-2.0
"""Blocking clients: they run on their own thread, and so does the cluster."""

import asyncio
import contextlib
import os
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cometmq import client
from cometmq.client import (
    ClientStateError,
    ConsumeFrom,
    InvalidArgument,
    LitePullOptions,
    Message,
    MessageExt,
    MessageQueue,
    PushOptions,
)
from cometmq.client.sync import (
    AdminClient,
    LitePullConsumer,
    Producer,
    PushConsumer,
    loop,
    loop_thread,
)
from cometmq.client.testing import MemoryCluster

QUEUE_0 = MessageQueue("T", "broker-a", 0)


def test_messages_go_through_without_an_event_loop(served: MemoryCluster) -> None:
    arrived: queue.Queue[MessageExt] = queue.Queue()
    consumer = PushConsumer(
        "cg",
        served.namesrv,
        listener=lambda messages: [arrived.put(message) for message in messages] and None,  # type: ignore[arg-type]
        options=PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET),
    )
    consumer.subscribe("T", "A")
    with consumer, Producer("pg", served.namesrv) as producer:
        assert len(consumer.queues) == 4
        result = producer.send(Message("T", b"one", tag="A"), queue=QUEUE_0)
        assert arrived.get(timeout=60).message_id == result.message_id
        producer.send_ordered(Message("T", b"two", tag="A"), "key")
        producer.send_oneway(Message("T", b"three", tag="A"))
        batch = [Message("T", b"four", tag="A")]
        for part in producer.split_batch(batch):
            producer.send_batch(part)
        assert {arrived.get(timeout=60).body for _ in range(3)} == {b"two", b"three", b"four"}
        assert producer.queues("T")[0] == QUEUE_0
        assert producer.stats().sent_count == 4
        consumer.suspend()
        consumer.resume()
    assert consumer.stats().failed_count == 0


def test_iteration_commits_the_yielded_messages(served: MemoryCluster) -> None:
    with Producer("pg", served.namesrv) as producer:
        for number in range(5):
            producer.send(Message("T", b"%d" % number), queue=QUEUE_0)
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    with LitePullConsumer("lg", served.namesrv, options=options) as consumer:
        consumer.subscribe("T")
        taken = [message.body for message, _ in zip(consumer, range(3), strict=False)]
        assert taken == [b"0", b"1", b"2"]
        consumer.seek(QUEUE_0, 1)
        message = consumer.next_message()
        assert message is not None
        assert message.body == b"1"
        consumer.commit()
        assert consumer.offset_for_timestamp(QUEUE_0, 0) == 0
        assert QUEUE_0 in consumer.queues
        assert len(consumer.queues_of("T")) == 4
    assert served.committed("lg", "T")[QUEUE_0] == 2


def test_threads_may_share_a_producer(served: MemoryCluster) -> None:
    with Producer("pg", served.namesrv) as producer:

        def work() -> None:
            for _ in range(50):
                producer.send(Message("T", b"x"))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert producer.stats().sent_count == 200
    assert len(served.messages("T")) == 200


def test_a_coroutine_listener_must_not_wait_for_its_own_loop(served: MemoryCluster) -> None:
    errors: queue.Queue[Exception] = queue.Queue()
    with Producer("pg", served.namesrv) as producer:

        async def listener(messages: list[MessageExt]) -> None:
            try:
                producer.send(Message("T", b"again"))
            except ClientStateError as error:
                errors.put(error)

        consumer = PushConsumer("cg", served.namesrv, listener=listener)
        consumer.subscribe("T")
        with consumer:
            producer.send(Message("T", b"x"))
            assert "a plain function as listener" in str(errors.get(timeout=60))


def test_requests_wait_for_their_reply(served: MemoryCluster) -> None:
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    with Producer("requester", served.namesrv) as requester, Producer("a", served.namesrv) as a:

        def answer(messages: list[MessageExt]) -> None:
            for message in messages:
                a.reply(message, message.body.upper())

        consumer = PushConsumer("cg", served.namesrv, listener=answer, options=options)
        consumer.subscribe("T")
        with consumer:
            message = Message("T", b"ask", message_id=requester.new_message_id())
            assert requester.request(message, 10_000).body == b"ASK"
            ends = [requester.admin.max_offset(queue) for queue in consumer.admin.queues("T")]
    assert sum(ends) == 1


def test_a_coroutine_that_calls_exit_does_not_end_the_loop_of_all_clients(
    served: MemoryCluster,
) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with Producer("pg", served.namesrv) as producer:
        with pytest.raises(SystemExit):
            loop_thread().run(leave())
        assert producer.send(Message("T", b"x"), timeout_ms=5_000).queue.topic == "T"


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_an_interrupt_in_a_listener_fails_all_calls(
    served: MemoryCluster, monkeypatch: pytest.MonkeyPatch, *, is_coroutine: bool
) -> None:
    """The interrupt ends the loop of all clients, so pending calls would never return."""
    monkeypatch.setitem(loop._LOOPS, os.getpid(), loop.LoopThread())

    def listener(_: list[MessageExt]) -> None:
        raise KeyboardInterrupt("stop")

    async def coroutine_listener(messages: list[MessageExt]) -> None:
        listener(messages)

    consumer = PushConsumer(
        "cg",
        served.namesrv,
        listener=coroutine_listener if is_coroutine else listener,
        options=PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET),
    )
    consumer.subscribe("T")
    waiting = LitePullConsumer("lg", served.namesrv)
    waiting.subscribe("T", "no-such-tag")
    producer = Producer("pg", served.namesrv)
    for one in (consumer, waiting, producer):
        one.start()
    names_cause = "raised KeyboardInterrupt: stop"
    with ThreadPoolExecutor(1) as pool:
        polling = pool.submit(waiting.poll, 60_000)
        with contextlib.suppress(ClientStateError):  # the answer may arrive after the end
            producer.send(Message("T", b"x"))
        with pytest.raises(ClientStateError, match=names_cause) as caught:
            polling.result(timeout=60)
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)
    for call in (
        lambda: producer.send(Message("T", b"y")),
        producer.close,
        consumer.close,
        waiting.finish,
        lambda: PushConsumer("cg2", served.namesrv, listener=listener).start(),
    ):
        with pytest.raises(ClientStateError, match=names_cause):
            call()


@pytest.mark.parametrize("method", [lambda a: a.topics, "topics", lambda: None, lambda a: 3])
def test_wrong_admin_calls_are_refused(served: MemoryCluster, method: Any) -> None:
    with AdminClient(served.namesrv) as admin:
        with pytest.raises(InvalidArgument, match=r"admin.call|cannot be called|too many"):
            admin.call(method)
        unknown: Any = admin
        with pytest.raises(AttributeError, match=r"write `admin.call\(lambda a: a.topics"):
            unknown.topics()


def test_admin_methods_that_yield(served: MemoryCluster) -> None:
    with Producer("pg", served.namesrv) as producer, AdminClient(served.namesrv) as admin:
        for body in (b"1", b"2", b"3"):
            producer.send(Message("T", body), queue=QUEUE_0)
        pages = admin.iterate(lambda a: a.read(QUEUE_0, 0, 2))
        assert [message.body for page in pages for message in page.messages] == [b"1", b"2"]
        with pytest.raises(InvalidArgument, match=r"by `admin.iterate\(...\)`"):
            admin.call(lambda a: a.read(QUEUE_0, 0, 2))  # type: ignore[arg-type, return-value]
        with pytest.raises(InvalidArgument, match=r"write `admin.call\(...\)`"):
            admin.iterate(lambda a: a.topics())  # type: ignore[arg-type, return-value]


def test_an_async_client_in_a_second_loop_says_so(served: MemoryCluster) -> None:
    producer = client.Producer("pg", served.namesrv)
    with asyncio.Runner() as first:
        first.run(producer.start())
        instance = producer._running()
        for use in (lambda: producer.send(Message("T", b"x")), producer.close):
            with pytest.raises(ClientStateError, match=r"runs elsewhere.*inside one `asyncio.run"):
                asyncio.run(use())
        first.run(producer.close())

    async def much_later() -> None:
        instance.check_loop("producer")

    with pytest.raises(ClientStateError, match=r"this producer belongs .* which has ended"):
        asyncio.run(much_later())


async def test_a_blocking_client_in_the_loop_of_its_cluster_says_so(cluster: MemoryCluster) -> None:
    """The call would wait for answers from the loop that it blocks."""
    producer = Producer("pg", cluster.namesrv)
    with pytest.raises(ClientStateError, match=r"use `with MemoryCluster\(\)` instead of `async"):
        producer.start()
    await asyncio.to_thread(producer.start)
    sent = await asyncio.to_thread(producer.send, Message("T", b"x"))
    assert sent.message_id
    await asyncio.to_thread(producer.close)
