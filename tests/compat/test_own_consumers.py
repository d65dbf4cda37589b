# SPDX-License-Identifier: Apache-2.0
"""Runs all kinds of consumers of our client on both brokers, and alongside Java consumers."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import (
    ConsumeFrom,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    OrderlyResult,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
    PushOptions,
    ScheduledPull,
)
from cometmq.peers.clients.javaclient import JavaClient, MqAdmin
from cometmq.peers.clients.programs import ClientProgram, Running
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import create_topic
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import wait_for_dispatch

pytestmark = pytest.mark.compat

DEADLINE_S = 120
QUEUE_COUNT = 4
Places = Mapping[tuple[str, int], Sequence[int]]
"""Offsets in the order of their delivery, by broker and queue id."""


@pytest.fixture(scope="module", params=["comet", "java"])
def cluster(request: pytest.FixtureRequest, running: Callable[[str], Cluster]) -> Cluster:
    """Run against both implementations even in the short form: no other test covers the client."""
    return running(request.param)


@pytest.fixture(scope="module")
def tools(cluster: Cluster) -> Iterator[MqAdmin]:
    with MqAdmin(cluster.namesrv_addr) as session:
        yield session


class Seen:
    """An orderly listener that records each message's position and returns scripted results."""

    def __init__(self, answer: Callable[[MessageExt], OrderlyResult | None] = lambda _: None):
        self.messages: list[MessageExt] = []
        self.overlaps = 0
        self._running: set[MessageQueue] = set()
        self._answer = answer

    async def __call__(self, messages: list[MessageExt]) -> OrderlyResult | None:
        (message,) = messages
        self.overlaps += message.queue in self._running
        self._running.add(message.queue)
        await asyncio.sleep(0.002)
        self._running.discard(message.queue)
        self.messages.append(message)
        return self._answer(message)

    def places(self) -> Places:
        """Return offsets by queue, without the queues of the retry topic."""
        found = defaultdict(list)
        for message in self.messages:
            if not message.queue.topic.startswith("%"):
                found[message.queue.broker_name, message.queue.queue_id].append(
                    message.queue_offset
                )
        return found


def java_places(running: Running, event_name: str = "received") -> Places:
    found = defaultdict(list)
    for event in running.events(event_name):
        found[event["broker"], event["queue_id"]].append(event["queue_offset"])
    return found


def count(*places: Places) -> int:
    return sum(len(offsets) for one in places for offsets in one.values())


async def send_in_order(cluster: Cluster, topic: str, total: int) -> None:
    async with Producer("OrderProducer", cluster.namesrv_addr) as producer:
        for number in range(total):
            message = Message(topic, b"%d" % number, keys=f"{topic}-{number}")
            await producer.send_ordered(message, number, selector=lambda q, _, n: q[n % len(q)])


def orderly(cluster: Cluster, group: str, topic: str, seen: Seen, **options: Any) -> PushConsumer:
    consumer = PushConsumer(
        group,
        cluster.namesrv_addr,
        listener=seen,
        options=PushOptions(
            consume_from=ConsumeFrom.FIRST_OFFSET, orderly=True, suspend_queue_ms=50, **options
        ),
    )
    consumer.subscribe(topic)
    return consumer


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, DEADLINE_S, what)


# -- in order ---------------------------------------------------------------------------------


async def test_queues_are_consumed_in_order_while_members_change(
    cluster: Cluster, topic: str, group: str
) -> None:
    """A second member joins and leaves, and each message is consumed once; both use our client."""
    first, second = Seen(), Seen()
    async with orderly(cluster, group, topic, first):
        await send_in_order(cluster, topic, 400)
        async with orderly(cluster, group, topic, second) as other:
            await until(lambda: len(other.queues) == 2, "half of the queues")
            await send_in_order(cluster, topic, 400)
            await until(lambda: bool(second.messages), "messages at the second")
        await until(lambda: count(first.places(), second.places()) >= 800, "all messages")
    assert first.overlaps == second.overlaps == 0
    check_order([first.places(), second.places()], each=200)


def check_order(all_places: Sequence[Places], *, each: int) -> None:
    together: dict[tuple[str, int], list[int]] = defaultdict(list)
    for places in all_places:
        for queue, offsets in places.items():
            assert offsets == sorted(offsets), queue
            together[queue] += offsets
    assert len(together) == QUEUE_COUNT
    for queue, offsets in together.items():
        assert sorted(offsets) == list(range(each)), queue


async def test_order_is_shared_with_a_java_consumer(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    """Queues move from our client to Java's and back; no message is repeated or out of order."""
    seen = Seen()
    async with orderly(cluster, group, topic, seen) as ours:
        await send_in_order(cluster, topic, 200)
        with java.start(
            "consume",
            namesrv=cluster.namesrv_addr,
            topic=topic,
            group=group,
            orderly="true",
            count=100,  # then it leaves and stores its offsets
            timeout_s=900,
        ) as theirs:
            await asyncio.to_thread(theirs.wait_for, "started")
            await until(lambda: len(ours.queues) == 2, "half of the queues")
            await until(lambda: count(seen.places(), java_places(theirs)) >= 200, "200 messages")
            await send_in_order(cluster, topic, 200)
            await asyncio.to_thread(theirs.finish)
            await until(lambda: len(ours.queues) == 4, "all queues again")
            await send_in_order(cluster, topic, 200)
            await until(lambda: count(seen.places(), java_places(theirs)) >= 600, "600 messages")
    assert java_places(theirs)
    assert seen.overlaps == 0
    check_order([seen.places(), java_places(theirs)], each=150)


async def test_a_message_that_fails_too_often_is_dead_and_can_be_consumed_as_such(
    cluster: Cluster, topic: str, group: str
) -> None:
    """Later messages of the queue wait; the failed one is then read from the dead-letter topic."""
    seen = Seen(lambda m: OrderlyResult.SUSPEND if m.body == b"4" else None)
    await send_in_order(cluster, topic, 12)
    async with orderly(cluster, group, topic, seen, max_reconsume_times=2):
        await until(lambda: len(seen.messages) >= 14, "all messages and two more tries")
    tries = [m.reconsume_times for m in seen.messages if m.body == b"4"]
    assert tries == [0, 1, 2]
    (place,) = {(m.queue.broker_name, m.queue.queue_id) for m in seen.messages if m.body == b"4"}
    assert list(seen.places()[place]) == [0, 1, 1, 1, 2]

    dead = Seen()
    async with orderly(cluster, f"{group}Dead", f"%DLQ%{group}", dead):
        await until(lambda: bool(dead.messages), "the dead message")
    (message,) = dead.messages
    assert (message.body, message.keys) == (b"4", (f"{topic}-4",))
    assert message.properties["RETRY_TOPIC"] == topic


# -- broadcasting -----------------------------------------------------------------------------


async def test_java_and_ours_continue_from_each_others_files(
    cluster: Cluster, log_dir: Path, topic: str, group: str, tmp_path: Path
) -> None:
    """Each broadcasting client continues from the offsets that the other has stored in the file."""
    java = JavaClient(log_dir, properties={"rocketmq.client.localOffsetStoreDir": str(tmp_path)})
    options = {"namesrv": cluster.namesrv_addr, "topic": topic, "group": group}

    def by_java(wanted: int) -> list[str]:
        events = java.run("consume", **options, model="BROADCASTING", count=wanted)
        return sorted(event["key"] for event in events if event["event"] == "received")

    def keys(begin: int, end: int) -> list[str]:
        return sorted(f"{topic}-{number}" for number in range(begin, end))

    await send_in_order(cluster, topic, 8)
    assert await asyncio.to_thread(by_java, 8) == keys(0, 8)
    (client_folder,) = tmp_path.iterdir()  # noqa: ASYNC240
    address, _, instance = client_folder.name.partition("@")
    assert instance == "DEFAULT"

    got: list[str] = []

    async def listener(messages: list[MessageExt]) -> None:
        got.extend(key for message in messages for key in message.keys)

    consumer = PushConsumer(
        group,
        cluster.namesrv_addr,
        listener=listener,
        options=PushOptions(
            message_model=MessageModel.BROADCASTING,
            consume_from=ConsumeFrom.FIRST_OFFSET,
            offsets_dir=str(tmp_path),
            client_ip=address,
        ),
    )
    consumer.subscribe(topic)
    async with consumer:
        assert len(consumer.queues) == QUEUE_COUNT
        await send_in_order(cluster, topic, 8)
        await until(lambda: len(got) >= 8, "the second messages")
    assert sorted(got) == keys(0, 8)

    await send_in_order(cluster, topic, 8)
    assert await asyncio.to_thread(by_java, 8) == keys(0, 8)
    table = (client_folder / group / "offsets.json").read_text(encoding="utf-8")
    assert table.count(":6") == QUEUE_COUNT


# -- on request -------------------------------------------------------------------------------


async def test_a_pull_consumer_reads_any_queue(cluster: Cluster, topic: str, group: str) -> None:
    """The program keeps the offsets itself; a message sent back arrives in the retry topic."""
    await send_in_order(cluster, topic, 40)
    await asyncio.to_thread(wait_for_dispatch, cluster)
    consumer = PullConsumer(group, cluster.namesrv_addr)
    consumer.register(topic)
    async with consumer:
        queues = await consumer.queues_in_balance(topic)
        assert len(queues) == QUEUE_COUNT
        found = await consumer.pull(queues[0], 2, count_max=3)
        assert [message.queue_offset for message in found.messages] == [2, 3, 4]
        end = await consumer.max_offset(queues[0])
        assert (end, await consumer.min_offset(queues[0])) == (10, 0)
        assert (await consumer.pull(queues[0], end)).status is PullStatus.NO_NEW
        assert (await consumer.pull(queues[0], 99)).status is PullStatus.OFFSET_ILLEGAL
        filtered = await consumer.pull(queues[0], 0, expression="NoSuchTag")
        assert (filtered.status, filtered.next_offset) == (PullStatus.NO_MATCHED, end)
        consumer.update_offset(queues[0], 5)
        await consumer.commit()
        assert await consumer.fetch_offset(queues[0], from_store=True) == 5
        assert await consumer.send_message_back(found.messages[0], 1)
        retry = MessageQueue(f"%RETRY%{group}", queues[0].broker_name, 0)
        again = await consumer.pull_block_if_not_found(retry, 0)
        assert [message.keys for message in again.messages] == [found.messages[0].keys]


async def test_our_queues_are_pulled_at_intervals(cluster: Cluster, topic: str, group: str) -> None:
    """Two members share the queues; no message is consumed twice."""
    got: list[tuple[MessageQueue, int]] = []

    async def callback(consumer: PullConsumer, queue: MessageQueue) -> int:
        offset = await consumer.fetch_offset(queue) or 0
        found = await consumer.pull(queue, offset)
        got.extend((message.queue, message.queue_offset) for message in found.messages)
        consumer.update_offset(queue, found.next_offset)
        return 20

    def scheduled() -> ScheduledPull:
        one = ScheduledPull(group, cluster.namesrv_addr)
        one.register(topic, callback)
        return one

    async with scheduled():
        await send_in_order(cluster, topic, 40)
        await until(lambda: len(got) >= 40, "the first messages")
        async with scheduled() as second:
            await until(
                lambda: len(second.consumer.queues) == 2, "half of the queues at the second"
            )
            await send_in_order(cluster, topic, 40)
            await until(lambda: len(set(got)) >= 80, "all messages")
    assert len(set(got)) == 80


async def test_lite_pull_shares_with_a_java_consumer(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    """Our lite pull consumer and Java's are members of one group; no message is lost."""
    got: set[str] = set()
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer(group, cluster.namesrv_addr, options=options)
    consumer.subscribe(topic)

    async def collect() -> None:
        async for messages in consumer.batches():
            got.update(key for message in messages for key in message.keys)

    with java.start(
        "lite-pull",
        namesrv=cluster.namesrv_addr,
        topic=topic,
        group=group,
        count=10_000,
        timeout_s=900,
    ) as theirs:
        async with consumer, asyncio.TaskGroup() as tasks:
            tasks.create_task(collect())
            await asyncio.to_thread(theirs.wait_for, "started")
            await until(lambda: len(consumer.queues) == 2, "half of the queues")
            await send_in_order(cluster, topic, 80)
            await until(
                lambda: len(got | {e["key"] for e in theirs.events("received")}) >= 80,
                "all messages",
            )
            consumer.finish()
    assert len(got) >= 40


# -- requests of administrators ---------------------------------------------------------------


async def reset(tools: MqAdmin, group: str, topic: str) -> None:
    """Reset a group to the beginning once it has committed offsets in all queues."""
    arguments = ("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    await until(lambda: topic in tools.run(*arguments).output, "committed offsets")


@pytest.mark.parametrize("is_orderly", [True, False])
async def test_a_running_consumer_is_reset(
    cluster: Cluster, tools: MqAdmin, topic: str, group: str, is_orderly: bool
) -> None:
    """After resetOffsetByTime, all messages are redelivered in order."""
    offsets: dict[int, list[int]] = defaultdict(list)

    async def listener(messages: list[MessageExt]) -> None:
        for message in messages:
            if message.topic == topic:
                offsets[message.queue.queue_id].append(message.queue_offset)

    consumer = PushConsumer(
        group,
        cluster.namesrv_addr,
        listener=listener,
        options=PushOptions(
            consume_from=ConsumeFrom.FIRST_OFFSET,
            orderly=is_orderly,
            persist_offset_interval_ms=200,
        ),
    )
    consumer.subscribe(topic)
    await send_in_order(cluster, topic, 40)
    async with consumer:
        await until(lambda: sum(map(len, offsets.values())) >= 40, "the first time")
        await reset(tools, group, topic)
        await until(lambda: sum(map(len, offsets.values())) >= 80, "the second time")
        if is_orderly:
            assert all(seen == [*range(10), *range(10)] for seen in offsets.values())
        assert all(sorted(seen) == sorted([*range(10)] * 2) for seen in offsets.values())


async def test_a_lite_pull_consumer_is_reset(
    cluster: Cluster, tools: MqAdmin, topic: str, group: str
) -> None:
    await send_in_order(cluster, topic, 20)
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer(group, cluster.namesrv_addr, options=options)
    consumer.subscribe(topic)
    async with consumer:
        first = [await consumer.next_message(20_000) for _ in range(20)]
        await consumer.commit()
        await reset(tools, group, topic)
        second = [await consumer.next_message(20_000) for _ in range(20)]
    assert places_of(first) == places_of(second)


def places_of(messages: Sequence[MessageExt | None]) -> set[tuple[MessageQueue, int]]:
    return {(message.queue, message.queue_offset) for message in messages if message is not None}


async def test_a_consumer_tells_about_itself(
    cluster: Cluster, tools: MqAdmin, topic: str, group: str
) -> None:
    """Covers consumerStatus with stacks, and queryMsgById, which redelivers one message."""
    seen = Seen()
    async with orderly(cluster, group, topic, seen) as consumer:
        await send_in_order(cluster, topic, 4)
        await until(lambda: len(seen.messages) >= 4, "the messages")
        told = await asyncio.to_thread(
            tools.run, "consumerStatus", "-g", group, "-i", consumer.client_id, "-s"
        )
        for text in ("PROP_CONSUMEORDERLY", "#Consumer MQ Detail#", topic, "#Consumer jstack#"):
            assert text in told.output, told
        message_id = seen.messages[0].offset_message_id
        consumed = await asyncio.to_thread(
            tools.run, "queryMsgById", "-i", message_id, "-g", group, "-d", consumer.client_id
        )
        assert "CR_SUCCESS" in consumed.output, consumed
        assert [m.offset_message_id for m in seen.messages].count(message_id) == 2


# -- when a broker dies -----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["comet", "java"])
def pair(
    request: pytest.FixtureRequest,
    maker: Callable[[str], type[Cluster]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    with maker(request.param)(tmp_path_factory.mktemp("pair"), broker_count=2) as cluster:
        yield cluster


@pytest.mark.slow
async def test_order_holds_when_a_broker_is_killed(pair: Cluster, group: str) -> None:
    """Queues wait for a killed broker; only messages without a stored offset are redelivered."""
    topic = f"{group}Topic"
    create_topic(pair.namesrv_addr, pair.broker_addrs, topic, queue_count=2)
    first, second = Seen(), Seen()
    options = {"persist_offset_interval_ms": 200}
    async with (
        orderly(pair, group, topic, first, **options) as one,
        orderly(pair, group, topic, second, **options) as two,
    ):
        await until(lambda: len(one.queues) == len(two.queues) == 2, "two queues each")
        await send_in_order(pair, topic, 200)
        await until(lambda: count(first.places(), second.places()) >= 200, "the first messages")
        await asyncio.to_thread(pair.kill_broker, 1)
        await asyncio.to_thread(pair.start_broker, 1)
        await until(lambda: len(one.queues) + len(two.queues) == 4, "all queues again")
        await send_in_order(pair, topic, 200)

        def is_complete() -> bool:
            together = distinct([first.places(), second.places()])
            return sum(map(len, together.values())) >= 400

        await until(is_complete, "all messages")
    assert first.overlaps == second.overlaps == 0
    for found in distinct([first.places(), second.places()]).values():
        assert sorted(found) == list(range(100))
    for places in (first.places(), second.places()):
        for offsets in places.values():
            fresh = list(dict.fromkeys(offsets))
            assert fresh == sorted(fresh)


def distinct(all_places: Sequence[Places]) -> Mapping[tuple[str, int], set[int]]:
    together: dict[tuple[str, int], set[int]] = defaultdict(set)
    for places in all_places:
        for queue, offsets in places.items():
            together[queue].update(offsets)
    return together
