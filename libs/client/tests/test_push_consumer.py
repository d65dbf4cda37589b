# SPDX-License-Identifier: Apache-2.0
"""Push consumers: delivery, failures, and start offsets."""

import asyncio
import threading

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageExt,
    PushOptions,
)
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import ServerError, SystemBusy
from cometmq.testing.client.listening import (
    QUEUE_0,
    UNREADABLE,
    Gated,
    Recorder,
    consumer_of,
    send,
    store_unreadable,
    texts,
)

PULL = RequestCode.PULL_MESSAGE
BACK = RequestCode.CONSUMER_SEND_MSG_BACK


# -- delivery ---------------------------------------------------------------------------------


async def test_messages_come_to_the_listener_and_are_committed(cluster: MemoryCluster) -> None:
    seen = Recorder()
    async with consumer_of(cluster, seen) as consumer:
        await send(cluster, *texts(20, tag="A", keys="k"))
        await eventually(lambda: len(seen.bodies) == 20)
        assert consumer.stats().consumed_count == 20
    assert seen.bodies == [b"%d" % number for number in range(20)]
    message = seen.messages[3]
    assert (message.tag, message.keys, message.queue, message.queue_offset) == (
        "A",
        ("k",),
        QUEUE_0,
        3,
    )
    assert message.properties["MAX_OFFSET"] > message.properties["MIN_OFFSET"]
    assert cluster.committed("cg", "T")[QUEUE_0] == 20


async def test_plain_functions_run_on_threads(cluster: MemoryCluster) -> None:
    names: list[str] = []

    def listener(messages: list[MessageExt]) -> ConsumeResult:
        names.append(threading.current_thread().name)
        return ConsumeResult.SUCCESS

    async with consumer_of(cluster, listener):
        await send(cluster, *texts(3))
        await eventually(lambda: len(names) == 3)
    assert all(name.startswith("cometmq-listener") for name in names)


async def test_only_wanted_tags_come(cluster: MemoryCluster) -> None:
    seen = Recorder()
    consumer = consumer_of(cluster, seen)
    consumer.subscribe("T", "A || B")
    async with consumer:
        await send(cluster, *[Message("T", tag.encode(), tag=tag) for tag in "ABCAB"])
        await eventually(lambda: len(seen.bodies) == 4)
        assert seen.bodies == [b"A", b"B", b"A", b"B"]


async def test_lists_are_as_long_as_wanted(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(10))
    seen = Recorder()
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, batch_count_max=4)
    async with consumer_of(cluster, seen, options):
        await eventually(lambda: len(seen.bodies) == 10)
    assert [len(messages) for messages in seen.lists] == [4, 4, 2]


async def test_no_more_calls_run_at_once_than_wanted(cluster: MemoryCluster) -> None:
    gated = Gated()
    await send(cluster, *texts(10))
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=3)
    async with consumer_of(cluster, gated, options) as consumer:
        await eventually(lambda: gated.running == 3)
        gated.gate.set()
        await eventually(lambda: consumer.stats().consumed_count == 10)
    assert gated.most == 3


async def test_a_full_queue_is_not_pulled(cluster: MemoryCluster) -> None:
    gate = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> None:
        await gate.wait()

    await send(cluster, *texts(60))
    options = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, queue_count_max=10, pull_count_max=4, concurrency=2
    )
    async with consumer_of(cluster, listener, options) as consumer:
        pulls = 3 + 3  # three pulls of 4 exceed 10, and each other queue has one waiting pull
        await eventually(lambda: cluster.broker.requests[PULL] >= pulls)
        await asyncio.sleep(0.1)  # nothing signals that an effect is absent
        assert cluster.broker.requests[PULL] == pulls
        gate.set()
        await eventually(lambda: consumer.stats().consumed_count == 60)


# -- failures ---------------------------------------------------------------------------------


async def test_a_failed_message_is_redelivered_with_its_topic(cluster: MemoryCluster) -> None:
    def answer(messages: list[MessageExt]) -> None:
        if messages[0].reconsume_times < 2:
            raise ValueError("not yet")

    seen = Recorder(answer)
    async with consumer_of(cluster, seen) as consumer:
        await send(cluster, Message("T", b"x", tag="A"))
        await eventually(lambda: consumer.stats().consumed_count == 1)
    assert [message.reconsume_times for message in seen.messages] == [0, 1, 2]
    assert {message.topic for message in seen.messages} == {"T"}
    assert len({message.message_id for message in seen.messages}) == 1
    assert seen.messages[2].queue.topic == "%RETRY%cg"
    assert cluster.committed("cg", "T")[QUEUE_0] == 1


async def test_messages_die_at_once_or_after_the_last_attempt(cluster: MemoryCluster) -> None:
    def answer(messages: list[MessageExt]) -> ConsumeResult:
        is_bad = messages[0].body == b"bad"
        return ConsumeResult.DEAD_LETTER if is_bad else ConsumeResult.RECONSUME_LATER

    seen = Recorder(answer)
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=2)
    async with consumer_of(cluster, seen, options):
        await send(cluster, Message("T", b"bad"), Message("T", b"stubborn"))
        await eventually(lambda: len(cluster.broker.dead) == 2)
    assert seen.bodies.count(b"bad") == 1
    assert seen.bodies.count(b"stubborn") == 3
    assert {message.topic for message in cluster.broker.dead} == {"%DLQ%cg"}


async def test_an_unreadable_message_goes_back_until_it_is_dead(cluster: MemoryCluster) -> None:
    seen = Recorder()
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=2)
    async with consumer_of(cluster, seen, options) as consumer:
        await send(cluster, Message("T", b"0"))
        store_unreadable(cluster)
        await send(cluster, Message("T", b"2"))
        await eventually(lambda: cluster.broker.dead and len(seen.bodies) == 2)
        assert consumer.stats().failed_count == 3
    assert seen.bodies == [b"0", b"2"]
    assert [(m.topic, m.body, m.reconsume_times) for m in cluster.broker.dead] == [
        ("%DLQ%cg", UNREADABLE, 3)
    ]
    assert cluster.committed("cg", "T")[QUEUE_0] == 3


async def test_an_unreadable_message_without_a_taker_blocks_the_offset(
    cluster: MemoryCluster,
) -> None:
    """If it were sent as a new message, its broken bytes would be treated as its body."""
    cluster.broker.fail(BACK, ServerError("no such message"))
    seen = Recorder()
    store_unreadable(cluster)
    async with consumer_of(cluster, seen):
        await send(cluster, Message("T", b"1"))
        await eventually(lambda: seen.bodies == [b"1"] and cluster.broker.requests[BACK])
    assert cluster.committed("cg", "T")[QUEUE_0] == 0
    assert not cluster.messages("%RETRY%cg")


async def test_part_of_a_list_may_be_consumed(cluster: MemoryCluster) -> None:
    def answer(messages: list[MessageExt]) -> ConsumeResult | None:
        return ConsumeResult.consumed(2) if len(messages) == 4 else None

    await send(cluster, *texts(4))
    seen = Recorder(answer)
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, batch_count_max=4)
    async with consumer_of(cluster, seen, options) as consumer:
        await eventually(lambda: consumer.stats().consumed_count == 4)
    again = [message.body for message in seen.messages if message.reconsume_times == 1]
    assert sorted(again) == [b"2", b"3"]


async def test_a_message_that_is_not_taken_back_is_sent_to_the_retry_topic(
    cluster: MemoryCluster,
) -> None:
    cluster.broker.fail(BACK, ServerError("no such message"))
    seen = Recorder(
        lambda messages: ConsumeResult.RECONSUME_LATER if not messages[0].reconsume_times else None
    )
    async with consumer_of(cluster, seen) as consumer:
        await send(cluster, Message("T", b"x", tag="A", keys="k"))
        await eventually(lambda: consumer.stats().consumed_count == 1)
    again = seen.messages[1]
    assert (again.topic, again.reconsume_times, again.keys) == ("T", 1, ("k",))
    assert again.message_id == seen.messages[0].message_id
    assert again.properties["DELAY"] == "3"


async def test_no_offset_passes_a_message_in_work(cluster: MemoryCluster) -> None:
    gate = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> None:
        if messages[0].body == b"2":
            await gate.wait()

    await send(cluster, *texts(10))
    options = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, persist_offset_interval_ms=10, drain_ms=20
    )
    async with consumer_of(cluster, listener, options) as consumer:
        await eventually(lambda: consumer.stats().consumed_count == 9)
        await eventually(lambda: cluster.committed("cg", "T").get(QUEUE_0) == 2)
    assert cluster.committed("cg", "T")[QUEUE_0] == 2


async def test_a_message_kept_for_too_long_is_given_back(cluster: MemoryCluster) -> None:
    async def listener(messages: list[MessageExt]) -> None:
        if not messages[0].reconsume_times:
            await asyncio.Event().wait()

    seen = Recorder(listener)
    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, consume_timeout_ms=50, drain_ms=20)
    async with consumer_of(cluster, seen, options):
        await send(cluster, Message("T", b"x"))
        await eventually(lambda: [m.reconsume_times for m in seen.messages] == [0, 1])
    assert cluster.committed("cg", "T")[QUEUE_0] == 1


async def test_closing_waits_for_the_listener_and_commits(cluster: MemoryCluster) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    async def listener(messages: list[MessageExt]) -> None:
        begun.set()
        await gate.wait()

    consumer = consumer_of(cluster, listener)
    await consumer.start()
    await send(cluster, Message("T", b"x"))
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        await begun.wait()
        closing = group.create_task(consumer.close())
        await eventually(lambda: consumer.state == "SHUTDOWN_ALREADY")
        assert not closing.done()
        gate.set()
    assert cluster.committed("cg", "T")[QUEUE_0] == 1
    assert not cluster.broker.groups["cg"]


# -- where to begin ---------------------------------------------------------------------------


async def test_messages_between_two_runs_are_not_skipped(cluster: MemoryCluster) -> None:
    async with consumer_of(cluster, Recorder(), PushOptions()):
        pass
    await send(cluster, Message("T", b"between"))
    seen = Recorder()
    async with consumer_of(cluster, seen, PushOptions()):
        await eventually(lambda: seen.bodies == [b"between"])


async def test_a_new_group_may_begin_at_a_moment(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(3))
    stored = cluster.messages("T")[0].store_timestamp
    seen = Recorder()
    options = PushOptions(consume_from=ConsumeFrom.TIMESTAMP, consume_timestamp_ms=stored - 1)
    async with consumer_of(cluster, seen, options):
        await eventually(lambda: len(seen.bodies) == 3)


async def test_an_offset_outside_the_queue_is_corrected(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(10))
    cluster.broker.queues.expire("T", 0, 6)
    cluster.broker.offsets["cg", "T", 0] = 2
    seen = Recorder()
    async with consumer_of(cluster, seen):
        await eventually(lambda: len(seen.bodies) == 4)
    assert seen.bodies == [b"6", b"7", b"8", b"9"]
    assert cluster.committed("cg", "T")[QUEUE_0] == 10


async def test_an_unavailable_offset_is_requested_again(cluster: MemoryCluster) -> None:
    """Starting at the end instead would skip messages."""
    cluster.broker.offsets["cg", "T", 0] = 1
    await send(cluster, *texts(3))
    cluster.broker.fail(RequestCode.QUERY_CONSUMER_OFFSET, SystemBusy("overloaded"), times=5)
    seen = Recorder()
    async with consumer_of(cluster, seen, PushOptions()):
        await eventually(lambda: len(seen.bodies) == 2)
    assert seen.bodies == [b"1", b"2"]
