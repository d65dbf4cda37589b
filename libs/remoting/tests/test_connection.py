# SPDX-License-Identifier: Apache-2.0
"""A connection without its socket: calls and answers over a fake link."""

import functools
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.remoting import Reply, Request, RequestCode, Response, Serialization
from cometmq.remoting.commands.offsets import QueryConsumerOffset, QueryConsumerOffsetReply
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import ConnectionLost, RemoteProtocolError, RequestTimeout
from cometmq.remoting.frame import frame_prefix
from cometmq.remoting.raw import FLAG_REPLY, RawCommand
from cometmq.testing.remoting.frames import encode_frame
from cometmq.testing.remoting.link import End, Link
from cometmq.testing.remoting.peer import FakePeer

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
HEADER = QueryConsumerOffset("g", "t", 1)


def answer(end: End, reply: Any) -> None:
    """Answer all calls received by one end, in reverse order."""
    for call in reversed(end.calls):
        answer_one(end.connection, call, reply)
    end.calls.clear()


def answer_one(connection: Connection, call: Any, reply: Any) -> None:
    encoder = Link().client.connection._codec.encoder
    connection.out_bytes += encoder.encode_reply(
        connection.out, call.serialization, call.opaque, reply
    )


@given(
    st.lists(st.integers(1, 700), min_size=1, max_size=5),
    st.sampled_from(Serialization),
    st.integers(1, 8),
)
def test_answers_find_their_requests(
    sizes: list[int], serialization: Serialization, count: int
) -> None:
    link = Link(serialization=serialization, chunk_sizes=tuple(sizes))
    results: dict[int, Any] = {}
    for number in range(count):
        link.client.connection.invoke(
            Request(QUERY, QueryConsumerOffset("g", "t", number), b"b" * number),
            deadline_ms=100,
            done=functools.partial(results.__setitem__, number),
        )
    link.transfer()
    assert [call.header.queue_id for call in link.server.calls] == list(range(count))
    assert [call.body for call in link.server.calls] == [b"b" * n for n in range(count)]
    for call in reversed(link.server.calls):
        reply = QueryConsumerOffsetReply(offset=call.header.queue_id * 10)
        answer_one(link.server.connection, call, Reply(header=reply, body=call.body))
    link.transfer()

    assert {n: (r.header.offset, r.body) for n, r in results.items()} == {
        n: (n * 10, b"b" * n) for n in range(count)
    }
    assert link.client.connection.pending_count == 0


def test_a_deadline_ends_a_request_and_its_late_answer_is_dropped() -> None:
    link = Link()
    results: list[Any] = []
    for deadline_ms in (10, 20):
        link.client.connection.invoke(
            Request(QUERY, HEADER), deadline_ms=deadline_ms, done=results.append
        )
    link.transfer()
    assert link.client.connection.next_deadline_ms == 10

    link.client.connection.expire(9)
    assert results == []
    link.client.connection.expire(10)
    assert [type(result) for result in results] == [RequestTimeout]
    answer(link.server, QueryConsumerOffsetReply(offset=1))
    link.transfer()

    assert [type(result) for result in results] == [RequestTimeout, Response]
    assert link.client.connection.next_deadline_ms is None


def test_a_lost_connection_ends_every_request_once() -> None:
    link = Link()
    results: list[Any] = []
    link.client.connection.invoke(Request(QUERY, HEADER), deadline_ms=10, done=results.append)
    error = ConnectionLost("gone")

    link.client.connection.lost(error)
    link.client.connection.lost(error)
    link.client.connection.expire(99)

    assert results == [error]


def test_an_opaque_in_use_is_not_given_again() -> None:
    connection = Link().client.connection
    connection._next_opaque = 0x7FFFFFFF
    opaques = [
        connection.invoke(Request(QUERY, HEADER), deadline_ms=10, done=lambda _: None)
        for _ in range(2)
    ]
    connection._next_opaque = 0x7FFFFFFF
    opaques.append(connection.invoke(Request(QUERY, HEADER), deadline_ms=10, done=lambda _: None))

    assert opaques == [0x7FFFFFFF, 0, 1]


def test_an_answer_to_nobody_is_dropped() -> None:
    link = Link()

    link.client.receive(encode_frame(RawCommand(code=0, flag=FLAG_REPLY, opaque=5)), 0)

    assert link.client.calls == []


def test_a_peer_sends_no_more_answers_than_there_were_requests() -> None:
    link = Link()
    data = encode_frame(RawCommand(code=0, flag=FLAG_REPLY, opaque=5_000))
    connection = Connection(link.client.connection._codec, FakePeer(), unasked_max=2)
    asked = 3
    for number in range(asked):
        opaque = connection.invoke(Request(QUERY, HEADER), deadline_ms=10, done=lambda _: None)
        if not number:
            connection.forget(opaque)
    connection.expire(10)
    connection.send(Request(QUERY, HEADER, is_oneway=True))
    connection.receive(data * (asked + 1 + 2), 0)
    with pytest.raises(RemoteProtocolError, match="answers to no request"):
        connection.receive(data, 0)


def test_a_success_without_its_fields_is_an_error_a_refusal_is_not() -> None:
    link = Link()
    results: list[Any] = []
    for _ in range(2):
        link.client.connection.invoke(Request(QUERY, HEADER), deadline_ms=10, done=results.append)
    link.transfer()
    for call, reply in zip(link.server.calls, (Reply(), Reply(code=22, remark="r")), strict=True):
        answer_one(link.server.connection, call, reply)
    link.transfer()

    assert isinstance(results[0], RemoteProtocolError)
    assert (results[1].code, results[1].remark, results[1].header) == (22, "r", None)


def test_a_json_header_cannot_set_what_the_connection_knows() -> None:
    """Only the fields up to the remark come from the header; the connection sets all others."""
    peer = FakePeer()
    link = Link(peer=peer)
    head = (
        b'{"code":14,"extFields":{"consumerGroup":"g","topic":"t","queueId":"1"},"opaque":3,'
        b'"is_answered":true,"body":"aGk=","peer":1,"serialization":1,"received_ms":9,"head":"aGk="}'
    )
    link.server.receive(
        len(head + b"1234").to_bytes(4, "big") + len(head).to_bytes(4, "big") + head, 4
    )

    (call,) = link.server.calls
    assert call.peer is peer
    assert (call.body, call.serialization, call.received_ms) == (b"", 0, 4)
    assert (call.head, call.is_answered) == (head, False)


def test_a_call_is_answered_once() -> None:
    peer = FakePeer()
    call = peer.call(QUERY, HEADER)

    call.answer(QueryConsumerOffsetReply(offset=1))
    call.answer(QueryConsumerOffsetReply(offset=2))

    assert [reply.header for reply in peer.replies] == [QueryConsumerOffsetReply(offset=1)]


UNREADABLE = [
    (0, b'{"code":%d,"opaque":%d,"flag":%d,"extFields":[]}'),
    (0, b'{"extFields":{"a":"\\"opaque\\":9}, "code" : %d, "opaque" : %d, "flag":%d'),
    (0, b'{"code":%d,"opaque":%d,"flag":%d,"language":[]}'),
    (1, None),
]


def unreadable(code: int, opaque: int, flag: int) -> Iterator[bytes]:
    for serialization, form in UNREADABLE:
        if form is None:
            head = struct.pack(">hBhiiii", code, 0, 0, opaque, flag, -1, 0)
        else:
            head = form % (code, opaque, flag)
        yield frame_prefix(serialization, len(head), 4) + head + b"body"


def test_an_unreadable_request_is_refused_and_the_next_one_served() -> None:
    link = Link()
    for number, data in enumerate(unreadable(QUERY, 5, 0)):
        connection = link.server.connection
        calls = connection.receive(data + encode_frame(RawCommand(code=9999, opaque=6)), 0)

        assert [call.opaque for call in calls] == [6], number
        (fault,) = connection.faults
        assert (fault.call.code, fault.call.opaque, fault.error.code) == (QUERY, 5, 1)
        assert (fault.call.body, fault.call.serialization) == (b"body", UNREADABLE[number][0])
        connection.faults.clear()


def test_an_unreadable_answer_fails_only_its_request() -> None:
    for data in unreadable(0, 0, FLAG_REPLY):
        connection, results = Link().client.connection, list[Any]()
        for _ in range(2):
            connection.invoke(Request(QUERY, HEADER), deadline_ms=10, done=results.append)
        assert connection.receive(data, 0) == []

        assert [type(result) for result in results] == [RemoteProtocolError]
        assert connection.pending_count == 1


@pytest.mark.parametrize(
    "head", [b"{}", b'{"opaque":99999999999}', b'{"opaque":1,"extFields":[{"opaque":2}]}', b"x"]
)
def test_a_header_without_a_clear_opaque_ends_the_connection(head: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Link().server.connection.receive(frame_prefix(0, len(head), 0) + head, 0)
