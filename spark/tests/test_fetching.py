# SPDX-License-Identifier: Apache-2.0
"""Pipelined pulls when answers are short, late or lost, messages are deleted, or brokers fail."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Response
from cometmq.remoting.commands.pull import PullMessageReply
from cometmq.remoting.errors import ConnectionLost, RequestTimeout
from cometmq.spark.errors import BrokerUnreachable, DataLoss, Refused
from cometmq.spark.options.definitions import parse
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.read import fetching
from cometmq.spark.read.fetching import ATTEMPTS_MAX, Fetcher
from cometmq.spark.read.planning import Span

from .fake_connection import FakeConnection

QUEUE = Queue("T", "b", 0)
MASTER, SLAVE = "m:1", "s:1"
FOUND = int(ResponseCode.SUCCESS)
NONE = int(ResponseCode.PULL_NOT_FOUND)
AGAIN = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
MOVED = int(ResponseCode.PULL_OFFSET_MOVED)


class Broker:
    """A queue that holds the offsets [first, end); the body of a message is its offset as text."""

    def __init__(self, end: int, *, first: int = 0, count_max: int = 32) -> None:
        self.first, self.end, self.count_max = first, end, count_max
        self.random = random.Random(1)
        self.connects: list[str] = []
        self.is_up: Callable[[str], bool] = lambda _: True
        self.fails: Callable[[], bool] = lambda: False
        self.refuses: int | None = None
        self.wanted: Callable[[int], bool] = lambda _: True
        self.slave_end = end

    def answer(self, header: Any, address: str) -> Response:
        end = self.end if address == MASTER else self.slave_end
        if self.refuses is not None:
            return Response(self.refuses, None, {}, b"", "because")
        offset = header.queue_offset
        if offset < self.first:
            return self.reply(MOVED, self.first)
        if offset >= end:
            return self.reply(NONE if offset == end else MOVED, end)
        found: list[int] = []
        most = self.random.randint(1, min(self.count_max, header.max_msg_nums))
        while offset < end and len(found) < most:
            if self.wanted(offset):
                found.append(offset)
            offset += 1
        text = "".join(f"{one};" for one in found).encode()
        return self.reply(FOUND if found else AGAIN, offset, text)

    def reply(self, code: int, next_offset: int, body: bytes = b"") -> Response:
        header = PullMessageReply(0, next_offset, self.first, self.end)
        return Response(code, header, {}, body)


class Connection(FakeConnection):
    """A fake `BrokerConnection` that answers a few requests at a time, in any order."""

    broker: Broker

    def __init__(self, address: str, _: object) -> None:
        self.broker.connects.append(address)
        super().__init__(address, is_up=self.broker.is_up(address))

    def exchange(self) -> None:
        if self.broker.fails():
            waiting, self.waiting = self.waiting, []
            for _, done in waiting:
                done(ConnectionLost("gone"))
            raise ConnectionLost("gone")
        self.broker.random.shuffle(self.waiting)
        for _ in range(self.broker.random.randint(1, len(self.waiting))):
            request, done = self.waiting.pop()
            late = self.broker.random.random() < 0.02 and self.broker.count_max < 32
            done(
                RequestTimeout("late") if late else self.broker.answer(request.header, self.address)
            )


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "BrokerConnection", Connection)
    monkeypatch.setattr(Fetcher, "_find_brokers", lambda _: None)


def fetch(
    broker: Broker, start: int, end: int, addresses: dict[int, str] | None = None, **options: str
) -> tuple[list[int], int]:
    Connection.broker = broker
    given = {"nameServer": "n:1", **options}
    fetcher = Fetcher(
        Span(QUEUE, start, end), addresses or {0: MASTER}, parse(given), pause=lambda _: None
    )
    found = [
        int(one)
        for piece in fetcher.pieces()
        for one in piece.body.decode().split(";")[:-1]
        if int(one) < piece.end
    ]
    return found, fetcher.lost_count


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 300),
    st.integers(1, 40),
    st.integers(1, 31),
    st.integers(1, 9),
    st.integers(0, 2**32),
)
def test_short_late_and_lost_answers_do_not_change_the_result(
    end: int, ask: int, most: int, depth: int, seed: int
) -> None:
    broker = Broker(400, count_max=most)
    broker.random = random.Random(seed)
    rare = random.Random(seed + 1)
    broker.fails = lambda: rare.random() < 0.05

    try:
        found, lost = fetch(broker, 0, end, pullBatchSize=str(ask), pullPipelineDepth=str(depth))
    except BrokerUnreachable:
        # Too many failures in a row are rare, and may fail the fetch.
        assert len(broker.connects) >= ATTEMPTS_MAX
        return
    assert (found, lost) == (list(range(end)), 0)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6000), st.integers(1, 50), st.integers(0, 2**32))
def test_filtered_answers_contain_each_match_once(end: int, every: int, seed: int) -> None:
    broker = Broker(9000)
    broker.random = random.Random(seed)
    broker.wanted = lambda offset: offset % every == 0

    found, lost = fetch(broker, 0, end, subExpression="a")

    assert (found, lost) == (list(range(0, end, every)), 0)


def test_deleted_messages_fail_or_are_counted() -> None:
    with pytest.raises(
        DataLoss, match=r"60 messages of T b 0 starting at offset 40 no longer exist"
    ):
        fetch(Broker(500, first=100), 40, 300)  # whatever the order of answers
    with pytest.raises(
        DataLoss, match=r"260 messages of T b 0 starting at offset 40 no longer exist"
    ):
        fetch(Broker(500, first=400), 40, 300)

    found, lost = fetch(Broker(500, first=100), 40, 300, failOnDataLoss="false")
    assert (found, lost) == (list(range(100, 300)), 60)


def test_shortened_queue_fails_or_is_counted() -> None:
    with pytest.raises(DataLoss, match="cannot be found"):
        fetch(Broker(50), 0, 10_000)

    found, lost = fetch(Broker(50), 0, 10_000, failOnDataLoss="false")
    assert (found, lost) == (list(range(50)), 9950)


def test_slave_takes_over_and_a_lagging_slave_loses_nothing() -> None:
    broker = Broker(500)
    broker.is_up = lambda address: address == SLAVE
    both = {0: MASTER, 1: SLAVE}

    assert fetch(broker, 0, 300, both) == (list(range(300)), 0)

    broker.slave_end = 200
    with pytest.raises(BrokerUnreachable, match="broker `b` does not answer"):
        fetch(broker, 0, 300, both, failOnDataLoss="false")

    broker.is_up = lambda _: True
    assert fetch(broker, 0, 300, both) == (list(range(300)), 0)


def test_read_from_restricts_the_brokers() -> None:
    broker, both = Broker(50), {0: MASTER, 1: SLAVE}

    fetch(broker, 0, 50, both, readFrom="slave")
    fetch(broker, 0, 50, both, readFrom="master")

    assert set(broker.connects[:1]) == {SLAVE}
    assert set(broker.connects[1:]) == {MASTER}
    with pytest.raises(BrokerUnreachable, match="no broker to read T b 0 from"):
        fetch(broker, 0, 50, {0: MASTER}, readFrom="slave")


def test_unreachable_broker_fails_the_task() -> None:
    broker = Broker(50)
    broker.is_up = lambda _: False

    with pytest.raises(
        BrokerUnreachable, match="broker `b` does not answer: cannot connect to m:1"
    ):
        fetch(broker, 0, 50)
    assert len(broker.connects) == ATTEMPTS_MAX


def test_busy_broker_is_retried_and_a_refusal_is_final() -> None:
    broker = Broker(50)
    broker.refuses = int(ResponseCode.SYSTEM_BUSY)
    with pytest.raises(BrokerUnreachable, match="SYSTEM_BUSY"):
        fetch(broker, 0, 50)
    assert len(broker.connects) == ATTEMPTS_MAX

    broker.connects.clear()
    broker.refuses = int(ResponseCode.NO_PERMISSION)
    with pytest.raises(Refused, match=r"refuses to read T b 0: .*because \(NO_PERMISSION 16"):
        fetch(broker, 0, 50)
    assert len(broker.connects) == 1
