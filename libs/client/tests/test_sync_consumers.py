# SPDX-License-Identifier: Apache-2.0
"""Blocking consumers: order, pulls, callbacks, and close."""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from cometmq.client import (
    ClientStateError,
    ConsumeFrom,
    LitePullOptions,
    Message,
    MessageExt,
    MessageQueue,
    PullOptions,
    PullStatus,
)
from cometmq.client.sync import (
    LitePullConsumer,
    Producer,
    PullConsumer,
    ScheduledPull,
    loop_thread,
    on_signal,
    until_signal,
)
from cometmq.client.testing import MemoryCluster

QUEUE_0 = MessageQueue("T", "broker-a", 0)


def send(cluster: MemoryCluster, count: int) -> None:
    with Producer("pg", cluster.namesrv) as producer:
        for number in range(count):
            producer.send(Message("T", b"%d" % number), queue=QUEUE_0)


def lite(cluster: MemoryCluster) -> LitePullConsumer:
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer("cg", cluster.namesrv, options=options)
    consumer.subscribe("T")
    return consumer


def test_callbacks_may_use_the_consumer(served: MemoryCluster) -> None:
    """Callbacks do not run on the loop's thread."""
    send(served, 5)
    consumer = lite(served)
    told: list[str] = []

    @consumer.on_assigned
    def assigned(queues: list[MessageQueue]) -> None:
        told.append(threading.current_thread().name)
        consumer.seek(QUEUE_0, 3)
        assert len(queues) == 4

    consumer.on_revoked(lambda queues: told.append(f"{len(queues)} revoked"))
    with consumer:
        message = consumer.next_message(5_000)
        assert message is not None
        assert message.body == b"3"
    assert told[0] != "cometmq-client"
    assert told[1:] == ["4 revoked"]


class Alarm(Exception):
    """Raised by a signal handler, as by limits of the time of a task."""


def test_a_call_that_a_signal_ends_does_not_refuse_the_next_one(served: MemoryCluster) -> None:
    def ring(*_: object) -> None:
        raise Alarm

    target = threading.get_ident(), signal.SIGUSR1
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with lite(served) as consumer:
            found = iter(consumer)

            def step() -> None:
                timer = threading.Timer(0.01, signal.pthread_kill, target)
                timer.start()
                next(found, None)
                timer.join()

            for _ in range(20):
                with pytest.raises(Alarm):
                    step()
                assert consumer.poll(0) == []
            send(served, 1)
            assert next(found).body == b"0"
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("way", ["poll", "next_message", "iterator", "batches"])
def test_messages_that_an_interrupted_caller_did_not_get_are_returned_again(
    served: MemoryCluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    is_armed = False
    result = Future.result

    def interrupted(future: Future[Any], timeout: float | None = None) -> Any:
        nonlocal is_armed
        found = result(future, timeout)
        if is_armed and found:
            is_armed = False
            raise Alarm
        return found

    monkeypatch.setattr(Future, "result", interrupted)
    send(served, 3)
    with lite(served) as consumer:
        items, lists = iter(consumer), iter(consumer.batches())
        calls: dict[str, Callable[[], Any]] = {
            "poll": lambda: consumer.poll(60_000),
            "next_message": lambda: consumer.next_message(60_000),
            "iterator": lambda: next(items),
            "batches": lambda: next(lists),
        }
        first = consumer.next_message(60_000)
        is_armed = True
        with pytest.raises(Alarm):
            calls[way]()
        rest: list[MessageExt] = []
        while len(rest) < 2:
            rest += consumer.poll(10_000) or pytest.fail(f"only {rest} came again")
    assert first is not None
    assert [message.body for message in [first, *rest]] == [b"0", b"1", b"2"]
    assert served.committed("cg", "T")[QUEUE_0] == 3


def test_the_end_is_asked_for_without_waiting_for_the_loop(served: MemoryCluster) -> None:
    """The signal may interrupt a call that holds a lock needed by the loop."""
    go_on, is_stopped = threading.Event(), threading.Event()

    def stop_the_loop() -> None:
        is_stopped.set()
        go_on.wait(60)

    consumer = lite(served)
    with pytest.raises(ClientStateError):
        consumer.finish()
    with consumer:
        loop_thread().soon(stop_the_loop)
        assert is_stopped.wait(60)
        asking = threading.Thread(target=consumer.finish)
        asking.start()
        asking.join(timeout=60)
        try:
            assert not asking.is_alive()
        finally:
            go_on.set()
        assert list(consumer) == []


def test_queues_are_pulled_by_hand(served: MemoryCluster) -> None:
    send(served, 4)
    options = PullOptions(suspend_ms=20)
    consumer = PullConsumer("pull", served.namesrv, options=options)
    consumer.register("T")
    with consumer:
        assert len(consumer.queues_in_balance("T")) == len(consumer.queues_of("T")) == 4
        found = consumer.pull(QUEUE_0, 1, count_max=2)
        assert [message.body for message in found.messages] == [b"1", b"2"]
        assert consumer.pull_block_if_not_found(QUEUE_0, 4).status is PullStatus.NO_NEW
        assert (consumer.min_offset(QUEUE_0), consumer.max_offset(QUEUE_0)) == (0, 4)
        assert consumer.search_offset(QUEUE_0, 0) == 0
        consumer.update_offset(QUEUE_0, 3)
        consumer.commit()
        assert consumer.fetch_offset(QUEUE_0, from_store=True) == 3
        assert consumer.send_message_back(found.messages[0])
    assert [message.body for message in served.messages("%RETRY%pull")] == [b"1"]


def test_a_callback_that_waits_for_its_own_end_is_refused(served: MemoryCluster) -> None:
    errors: queue.Queue[Exception] = queue.Queue()
    scheduled = ScheduledPull("pull", served.namesrv)

    def callback(_: PullConsumer, __: MessageQueue) -> int:
        try:
            scheduled.close()
        except ClientStateError as error:
            errors.put(error)
        return 10

    scheduled.register("T", callback)
    with scheduled:
        assert "called by the callback" in str(errors.get(timeout=60))


def test_a_signal_calls_back_once_and_then_has_its_usual_effect() -> None:
    told: list[str] = []

    def usual(*_: object) -> None:
        told.append("usual")

    def end_when_awaited() -> None:
        while signal.getsignal(signal.SIGTERM) is usual:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, usual)
    try:
        with on_signal(lambda: told.append("ours"), signals=[signal.SIGTERM]):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        ending = threading.Thread(target=end_when_awaited)
        ending.start()
        until_signal([signal.SIGTERM])
        ending.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == ["ours", "usual"]
