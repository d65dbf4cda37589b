# SPDX-License-Identifier: Apache-2.0
"""Impossible answers to pulls are refused, and pulls with useless answers are slowed down."""

from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import pytest

from cometmq.client import (
    AdminClient,
    LitePullConsumer,
    MessageQueue,
    PullConsumer,
    PullOptions,
)
from cometmq.client.log import PROGRAM_LOG
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.testing import handlers as served_by
from cometmq.client.transfer.pulled import BEYOND_MAX, QUEUE_OFFSET_MAX, Pulled, PullStatus
from cometmq.client.transfer.puller import PAUSE_MS_MAX, Pace
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands import offsets, pull
from cometmq.remoting.errors import RemoteProtocolError, ServerError
from cometmq.testing.client.listening import QUEUE_0, Recorder, consumer_of, send, texts
from cometmq.testing.client.messages import message_ext

FOUND, NO_NEW = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
NO_MATCHED, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
LIES: Final = [
    (NO_NEW, -5, 0, 9, "answers -5 as the next offset of T, queue 0, which no queue can have"),
    (MOVED, -5, 0, 9, "answers -5 as the next offset"),
    (NO_NEW, 5, -1, 9, "answers -1 as the beginning"),
    (NO_NEW, 5, 0, -1, "answers -1 as the end"),
    (NO_NEW, 2**63 - 1, 0, 2**63 - 1, "answers 9223372036854775807 as the next offset"),
    (NO_NEW, 5, 0, QUEUE_OFFSET_MAX + 1, "as the end"),
    (NO_MATCHED, 7 + BEYOND_MAX, 0, 6, "next offset 1048583, far beyond the end 6: check this"),
    (MOVED, 2**40, 0, 6, "next offset 1099511627776, far beyond the end 6"),
    (NO_NEW, 4, 0, 9, "at offset 5, with the next offset 4"),
    (NO_MATCHED, 0, 0, 9, "at offset 5, with the next offset 0"),
    (FOUND, 9, 8, 7, "that the queue begins at 8 and ends at 7"),
]
TRUTHS: Final = [
    (NO_NEW, 5, 0, 5),  # nothing new
    (NO_MATCHED, 800, 0, 20),  # messages were stored during the read
    (MOVED, 5, 0, 3),  # a Java slave behind its master
    (MOVED, 0, 7, 0),  # a Java queue without a file
    (MOVED, 3, 0, 3),  # deleted and created again
]


class Lies:
    """The answer to pulls of the topic T; None lets the broker give the true one."""

    def __init__(self) -> None:
        self.answer: Reply | None = None
        self.asked: list[int] = []


@pytest.fixture
def lies(monkeypatch: pytest.MonkeyPatch) -> Lies:
    found, truth = Lies(), served_by.pull_message

    def pulled(broker: Any, call: Call[pull.PullMessage]) -> Reply | None:
        if found.answer is None or call.header.topic != "T":
            return truth(broker, call)
        found.asked.append(call.header.queue_offset)
        return found.answer

    table = {**served_by.BROKER_HANDLERS, RequestCode.PULL_MESSAGE: pulled}
    monkeypatch.setattr("cometmq.client.testing.cluster.BROKER_HANDLERS", table)
    return found


@pytest.fixture
async def cluster(lies: Lies) -> Any:
    assert lies.answer is None
    async with MemoryCluster() as cluster:
        cluster.create_topic("T", queue_count=1)
        yield cluster


def said(code: ResponseCode, following: int, begin: int, end: int, body: bytes = b"") -> Reply:
    return Reply(code, pull.PullMessageReply(0, following, begin, end), body)


@pytest.mark.parametrize(("code", "following", "begin", "end", "text"), LIES)
async def test_offsets_that_no_queue_has_are_refused(
    cluster: MemoryCluster, lies: Lies, code: ResponseCode, following: int, begin: int, end: int,
    text: str,
) -> None:  # fmt: skip
    lies.answer = said(code, following, begin, end)
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        with pytest.raises(RemoteProtocolError, match=text) as raised:
            await consumer.pull(QUEUE_0, 5)
    assert str(raised.value).startswith("broker broker-a answers")
    async with AdminClient(cluster.namesrv) as admin:
        with pytest.raises(RemoteProtocolError, match=text):
            await admin.broker(cluster.broker.address).pull("T", 0, 5)


@pytest.mark.parametrize(("code", "following", "begin", "end"), TRUTHS)
async def test_what_java_brokers_answer_is_taken(
    cluster: MemoryCluster, lies: Lies, code: ResponseCode, following: int, begin: int, end: int
) -> None:
    lies.answer = said(code, following, begin, end)
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        assert (await consumer.pull(QUEUE_0, 5)).next_offset == following


@pytest.mark.parametrize(
    ("queue", "offset", "following", "text"),
    [
        (MessageQueue("U", "broker-a", 0), 0, 3, "with a message of 'U', queue 0: check"),
        (MessageQueue("T", "broker-a", 1), 0, 3, "with a message of 'T', queue 1"),
        (QUEUE_0, 1, 4, "with a message at 0, not between 1 and 4"),
        (QUEUE_0, 0, 2, "with a message at 2, not between 2 and 2"),
    ],
)
async def test_messages_of_another_place_are_refused(
    cluster: MemoryCluster, lies: Lies, queue: MessageQueue, offset: int, following: int, text: str
) -> None:
    cluster.create_topic("U", queue_count=1)
    cluster.create_topic("T", queue_count=2)
    await send(cluster, *(it.__class__(queue.topic, it.body) for it in texts(3)), queue=queue)
    raw = b"".join(cluster.broker.queues.read(queue.topic, queue.queue_id, 0, 3))
    lies.answer = said(FOUND, following, 0, 9, raw)
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        with pytest.raises(RemoteProtocolError, match=text):
            await consumer.pull(QUEUE_0, offset)
    async with AdminClient(cluster.namesrv) as admin:
        with pytest.raises(RemoteProtocolError, match=text):
            await admin.broker(cluster.broker.address).pull("T", 0, offset)


async def test_the_same_message_twice_is_refused(cluster: MemoryCluster, lies: Lies) -> None:
    await send(cluster, *texts(1))
    (raw,) = cluster.broker.queues.read("T", 0, 0, 1)
    assert raw is not None
    lies.answer = said(FOUND, 2, 0, 2, raw * 2)
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        with pytest.raises(RemoteProtocolError, match="a message at 0, not between 1 and 2"):
            await consumer.pull(QUEUE_0, 0)


async def test_no_more_messages_are_taken_than_were_asked_for(
    cluster: MemoryCluster, lies: Lies
) -> None:
    await send(cluster, *texts(40))
    raw = b"".join(cluster.broker.queues.read("T", 0, 0, 40))
    lies.answer = said(FOUND, 40, 0, 40, raw)
    async with PullConsumer("cg", cluster.namesrv) as consumer:
        pulled = await consumer.pull(QUEUE_0, 0, count_max=8)
    assert (len(pulled.messages), pulled.next_offset) == (8, 8)
    async with AdminClient(cluster.namesrv) as admin:
        pulled = await admin.broker(cluster.broker.address).pull("T", 0, 0, count_max=8)
    assert (len(pulled.messages), pulled.next_offset) == (8, 8)


@pytest.mark.parametrize("following", [-5, 2**63 - 1])
async def test_lies_are_not_committed(
    cluster: MemoryCluster, lies: Lies, following: int, caplog: pytest.LogCaptureFixture
) -> None:
    lies.answer = said(NO_MATCHED, following, 0, max(0, following))
    async with consumer_of(cluster, seen := Recorder(), log=PROGRAM_LOG):
        await eventually(lambda: len(lies.asked) >= 3)
        lies.answer = None
        await send(cluster, *texts(1))
        await eventually(lambda: seen.bodies == [b"0"])
    assert cluster.committed("cg", "T") == {QUEUE_0: 1}
    assert "pull.failed" in caplog.text


@pytest.mark.parametrize("value", [-5, 2**63 - 1])
@pytest.mark.parametrize(
    ("code", "reply"),
    [
        (RequestCode.GET_MAX_OFFSET, offsets.GetMaxOffsetReply),
        (RequestCode.GET_MIN_OFFSET, offsets.GetMinOffsetReply),
        (RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, offsets.SearchOffsetByTimestampReply),
        (RequestCode.QUERY_CONSUMER_OFFSET, offsets.QueryConsumerOffsetReply),
    ],
)
async def test_single_offsets_are_checked(code: int, reply: Any, value: int) -> None:
    cluster = MemoryCluster()
    (broker,) = cluster.brokers
    broker._handlers = {**broker._handlers, code: lambda *_: reply(value)}
    async with cluster, PullConsumer("cg", cluster.namesrv) as consumer:
        cluster.create_topic("T", queue_count=1)
        calls: dict[int, Callable[[], Any]] = {
            RequestCode.GET_MAX_OFFSET: lambda: consumer.max_offset(QUEUE_0),
            RequestCode.GET_MIN_OFFSET: lambda: consumer.min_offset(QUEUE_0),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda: consumer.search_offset(QUEUE_0, 0),
            RequestCode.QUERY_CONSUMER_OFFSET: lambda: consumer.fetch_offset(QUEUE_0),
        }
        with pytest.raises(RemoteProtocolError, match=f"broker broker-a answers {value} as "):
            await calls[code]()
        if code == RequestCode.GET_MAX_OFFSET:
            with pytest.raises(RemoteProtocolError, match=f"broker broker-a answers {value} as "):
                await consumer.admin.max_offset(QUEUE_0)


# -- useless answers --------------------------------------------------------------------------


async def pulls(lies: Lies, count: int) -> float:
    """Return how many seconds it takes until the broker has received `count` pulls."""
    begin = monotonic()
    await eventually(lambda: len(lies.asked) >= count)
    return monotonic() - begin


@pytest.mark.parametrize("answer", [said(NO_NEW, 0, 0, 9), said(MOVED, 0, 0, 9)])
async def test_useless_answers_are_not_asked_for_at_once(
    cluster: MemoryCluster, lies: Lies, answer: Reply
) -> None:
    lies.answer = answer
    async with consumer_of(cluster, seen := Recorder()):
        assert await pulls(lies, 4) > 0.25  # 0 + 100 + 200 ms
        lies.answer = None
        await send(cluster, *texts(1))
        await eventually(lambda: seen.bodies == [b"0"])


async def test_a_moving_broker_is_not_asked_at_once(cluster: MemoryCluster, lies: Lies) -> None:
    lies.answer = said(MOVED, 7, 0, 9)
    async with LitePullConsumer("cg", cluster.namesrv) as consumer:
        consumer.subscribe("T")
        assert await pulls(lies, 4) > 0.25


async def test_a_blocking_pull_is_not_sent_at_once(cluster: MemoryCluster, lies: Lies) -> None:
    lies.answer = said(NO_NEW, 0, 0, 0)
    options = PullOptions(suspend_ms=5_000)
    async with PullConsumer("cg", cluster.namesrv, options=options) as consumer:
        begin = monotonic()
        for _ in range(4):
            await consumer.pull_block_if_not_found(QUEUE_0, 0)
        assert monotonic() - begin > 0.25
        begin = monotonic()
        for _ in range(50):
            await consumer.pull(QUEUE_0, 0)  # the application paces these
        assert monotonic() - begin < 5


def test_pauses_grow_and_end_with_progress() -> None:
    now_ms = 0
    pace = Pace(lambda: now_ms)
    empty = Pulled(PullStatus.NO_NEW, [], 5, 0, 9)
    pauses = []
    for _ in range(7):
        pauses.append(pace.pause_ms(QUEUE_0))
        pace.note(QUEUE_0, 5, empty, sent_ms=now_ms)
    assert pauses == [0, 0, 100, 200, 400, 800, PAUSE_MS_MAX]
    now_ms = 15_000  # the broker has held the pull
    assert pace.pause_ms(QUEUE_0) == 0
    pace.forget(QUEUE_0)
    for moved in (
        Pulled(PullStatus.NO_MATCHED, [], 6, 0, 9),
        Pulled(PullStatus.FOUND, [message_ext(5)], 6, 0, 9),
        Pulled(PullStatus.FOUND, [], 6, 0, 9, [message_ext(5)]),
    ):
        for _ in range(3):
            pace.note(QUEUE_0, 5, empty, sent_ms=now_ms)
        assert pace.pause_ms(QUEUE_0) == 200
        pace.note(QUEUE_0, 5, moved, sent_ms=now_ms)
        assert pace.pause_ms(QUEUE_0) == 0
    for _ in range(3):
        pace.note(QUEUE_0, 5, Pulled(PullStatus.OFFSET_ILLEGAL, [], 6, 0, 9), sent_ms=now_ms)
    assert pace.pause_ms(QUEUE_0) == 200


async def test_an_administrator_cannot_reset_to_what_is_no_offset(cluster: MemoryCluster) -> None:
    async with consumer_of(cluster, Recorder()) as consumer:
        with pytest.raises(ServerError, match="-5 is no offset of T, queue 0"):
            await consumer._work.member.reset_offsets("T", {QUEUE_0: -5})  # type: ignore[union-attr]
