# SPDX-License-Identifier: Apache-2.0
"""Sends that brokers reject at first are retried, in order and within limits."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Request, Response
from cometmq.remoting.errors import CometError, ConnectionLost
from cometmq.remoting.message.batch import split_batch
from cometmq.spark.cluster import connection
from cometmq.spark.cluster.topics import Route
from cometmq.spark.errors import NameServerUnreachable, SendIncomplete, TopicMissing
from cometmq.spark.options.definitions import parse
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.write import sending
from cometmq.spark.write.rows import OutgoingRow
from cometmq.spark.write.sending import ATTEMPTS_MAX, Sender

from .fake_connection import FakeConnection

QUEUES = tuple(Queue("T", name, number) for name in ("a", "b") for number in (0, 1))
ROUTE = Route(QUEUES, QUEUES, {"a": {0: "a:1"}, "b": {0: "b:1"}})
OK = int(ResponseCode.SUCCESS)


class Brokers:
    """Stores messages by queue, and answers as the test demands."""

    def __init__(self) -> None:
        self.stored: dict[Queue, list[bytes]] = {queue: [] for queue in QUEUES}
        self.requests: list[Request] = []
        self.code: Callable[[str], int] = lambda _: OK
        self.is_up: Callable[[str], bool] = lambda _: True
        self.is_lost: Callable[[], bool] = lambda: False
        self.random = random.Random(1)
        self.most_waiting = 0

    def serve(self, address: str, request: Request) -> Response | CometError:
        self.requests.append(request)
        header: Any = request.header
        code = self.code(address)
        if code == OK:
            body = bytes(request.body)  # type: ignore[arg-type]
            is_batch = request.code == RequestCode.SEND_BATCH_MESSAGE
            bodies = [bytes(one.body) for one in split_batch(body)] if is_batch else [body]
            self.stored[Queue(header.topic, address[0], header.queue_id)] += bodies
        if self.is_lost():
            return ConnectionLost("gone")
        return Response(code, None, {}, b"", "because")


class Connection(FakeConnection):
    brokers: Brokers

    def __init__(self, address: str, _: object) -> None:
        super().__init__(address, is_up=self.brokers.is_up(address))

    def submit(self, request: Request, done: Any) -> None:
        super().submit(request, done)
        self.brokers.most_waiting = max(self.brokers.most_waiting, len(self.waiting))

    def exchange(self) -> None:
        index = self.brokers.random.randrange(len(self.waiting))
        request, done = self.waiting.pop(index)
        done(self.brokers.serve(self.address, request))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BrokerConnection", Connection)
    monkeypatch.setattr(
        sending.NameServers, "route", lambda _, topic: ROUTE if topic == "T" else None
    )


def send(brokers: Brokers, rows: list[OutgoingRow], **options: str) -> Sender:
    Connection.brokers = brokers
    sender = Sender(
        parse({"nameServer": "n:1", **options}), clock_ms=lambda: 5, pause=lambda _: None
    )
    for row in rows:
        sender.add(row)
    sender.finish()
    return sender


def row(number: int, key: str | None = None, **more: Any) -> OutgoingRow:
    return OutgoingRow(number, "T", b"%05d" % number, "", key, **more)


def all_of(brokers: Brokers) -> list[bytes]:
    return sorted(body for bodies in brokers.stored.values() for body in bodies)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.none() | st.sampled_from("abcdef"), max_size=120),
    st.sampled_from([0, 60, 200, 1 << 20]),
    st.integers(1, 8),
    st.integers(0, 2**32),
)
def test_every_row_is_stored_and_keys_keep_their_order(
    keys: list[str | None], batch_bytes: int, in_flight: int, seed: int
) -> None:
    brokers = Brokers()
    brokers.random = random.Random(seed)
    rows = [row(number, key) for number, key in enumerate(keys)]

    sender = send(brokers, rows, batchBytes=str(batch_bytes), maxInFlight=str(in_flight))

    assert all_of(brokers) == [one.body for one in rows]
    assert sender.stored_count == len(rows)
    assert brokers.most_waiting <= in_flight
    for key in set(keys) - {None}:
        own = [one.body for one in rows if one.sharding_key == key]
        queue = next(q for q, bodies in brokers.stored.items() if own[0] in bodies)
        assert [body for body in brokers.stored[queue] if body in own] == own


def test_rows_of_a_busy_broker_go_to_another() -> None:
    brokers = Brokers()
    busy = int(ResponseCode.SYSTEM_BUSY)
    brokers.code = lambda address: busy if address == "a:1" else OK

    send(brokers, [row(number) for number in range(20)], batchBytes="0")

    assert all_of(brokers) == [b"%05d" % number for number in range(20)]
    assert not brokers.stored[QUEUES[0]]


def test_keys_keep_their_order_although_batches_are_rejected() -> None:
    brokers = Brokers()
    busy = int(ResponseCode.SYSTEM_BUSY)
    brokers.code = lambda _: busy if brokers.random.random() < 0.4 else OK
    rows = [row(number, "abcdef"[number % 6]) for number in range(300)]

    send(brokers, rows, batchBytes="60", maxInFlight="4")

    assert all_of(brokers) == [one.body for one in rows]
    for key in "abcdef":
        own = [one.body for one in rows if one.sharding_key == key]
        queue = next(q for q, bodies in brokers.stored.items() if own[0] in bodies)
        assert [body for body in brokers.stored[queue] if body in own] == own


def test_rows_go_to_the_new_master_once_it_is_elected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile the name server knows slaves of the group only."""
    new = [{0: "a:1"}, {1: "a:2"}, {1: "a:2"}, {0: "a:2"}]
    found = iter(Route(QUEUES[:2], QUEUES[:2], {"a": addresses}) for addresses in new)
    monkeypatch.setattr(sending.NameServers, "route", lambda *_: next(found))
    brokers = Brokers()
    brokers.is_up = lambda address: address == "a:2"
    rows = [row(number, "abc"[number % 3]) for number in range(30)]

    send(brokers, rows, batchBytes="100")

    assert all_of(brokers) == [one.body for one in rows]
    assert not next(found, None)


def test_rows_wait_for_the_first_master(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([Route(QUEUES, (), {"a": {1: "a:2"}, "b": {1: "b:2"}}), ROUTE])
    monkeypatch.setattr(sending.NameServers, "route", lambda *_: next(found))
    brokers = Brokers()

    send(brokers, [row(0)])

    assert all_of(brokers) == [b"00000"]


def test_addresses_are_kept_while_no_name_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([ROUTE])

    def route(*_: object) -> Route:
        for answer in answers:
            return answer
        raise NameServerUnreachable("no name server answers")

    monkeypatch.setattr(sending.NameServers, "route", route)
    brokers = Brokers()
    ups = iter([False, False])
    brokers.is_up = lambda _: next(ups, True)

    send(brokers, [row(0)])

    assert all_of(brokers) == [b"00000"]


def test_rows_with_a_queue_stay_in_it() -> None:
    brokers = Brokers()
    brokers.code = lambda _: int(ResponseCode.SERVICE_NOT_AVAILABLE)
    placed = row(0, broker_name="a", queue_id=1)

    with pytest.raises(
        SendIncomplete, match=r"1 rows starting at row 0 .* in T a 1: .*SERVICE_NOT_AVAIL"
    ):
        send(brokers, [placed])
    places = {(one.header.queue_id) for one in brokers.requests}  # type: ignore[union-attr]
    assert (len(brokers.requests), places) == (ATTEMPTS_MAX, {1})


def test_lost_answer_is_retried_at_least_once() -> None:
    brokers = Brokers()
    lost = iter([True])
    brokers.is_lost = lambda: next(lost, False)

    send(brokers, [row(0)])

    assert all_of(brokers) == [b"00000", b"00000"]


@pytest.mark.parametrize("code", [10, 11, 12])
def test_flush_and_slave_timeouts_count_as_stored(code: int) -> None:
    brokers = Brokers()
    brokers.code = lambda _: code

    assert send(brokers, [row(0)]).stored_count == 1
    assert len(brokers.requests) == 1


def test_refusal_is_final() -> None:
    brokers = Brokers()
    brokers.code = lambda _: int(ResponseCode.MESSAGE_ILLEGAL)

    with pytest.raises(SendIncomplete, match=r"because \(MESSAGE_ILLEGAL 13"):
        send(brokers, [row(0)])
    assert len(brokers.requests) == 1


def test_delayed_rows_and_other_born_times_are_not_batched() -> None:
    brokers = Brokers()
    rows = [row(0), row(1), row(2, delay_level=3), row(3, born_ms=7), row(4, born_ms=8)]

    send(brokers, rows)

    codes = [one.code for one in brokers.requests]
    assert sorted(codes) == sorted(
        [RequestCode.SEND_BATCH_MESSAGE] + [RequestCode.SEND_MESSAGE_V2] * 3
    )
    born = {one.header.born_timestamp for one in brokers.requests}  # type: ignore[union-attr]
    assert born == {5, 7, 8}


def test_unknown_topic_is_named() -> None:
    with pytest.raises(TopicMissing, match="topic `nope` does not exist"):
        send(Brokers(), [OutgoingRow(0, "nope", b"", "")])
