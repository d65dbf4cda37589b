# SPDX-License-Identifier: Apache-2.0
"""Requests that wait in encoded form are decoded unchanged."""

import random
import sys
from typing import Any

import pytest

from cometmq.remoting import RawCommand
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.header import encode_frame
from cometmq.remoting.transport.peer.backlog import Backlog
from cometmq.remoting.types import Serialization
from cometmq.testing.remoting.peer import FakePeer

EXT = {"consumerGroup": "g", "topic": "t", "queueId": "3"}


def frame(opaque: int, serialization: Serialization) -> bytes:
    body = b"x" * (opaque % 7)
    code = RequestCode.QUERY_CONSUMER_OFFSET
    return encode_frame(
        RawCommand(code=code, ext=EXT, opaque=opaque, body=body, serialization=serialization)
    )


@pytest.fixture
def connection() -> Connection:
    return Connection(Codec(COMMANDS), FakePeer())


def facts(call: Call[Any]) -> tuple[Any, ...]:
    return call.opaque, call.code, call.header, bytes(call.body), call.serialization


@pytest.mark.parametrize("seed", range(20))
def test_requests_come_in_order_and_with_the_time_of_their_arrival(
    connection: Connection, seed: int
) -> None:
    dice = random.Random(seed)
    backlog, expected, opaque = Backlog(), [], 0
    for now_ms in range(200):
        if dice.random() < 0.4:
            count = dice.randint(1, 9)
            serialization = dice.choice(list(Serialization))
            data = b"".join(frame(opaque + it, serialization) for it in range(count))
            opaque += count
            arrived = connection.receive(data, now_ms)
            backlog.put(arrived)
            expected += [(now_ms, facts(call)) for call in arrived]
        elif expected:
            calls = backlog.take(connection, dice.randint(1, 6))
            assert [(call.received_ms, facts(call)) for call in calls] == expected[: len(calls)]
            served = dice.randint(0, len(calls))
            backlog.put_back(len(calls) - served)
            del expected[:served]
        assert len(backlog) == len(expected)
    rest = backlog.take_all()
    assert [facts(call) for call in connection.receive(rest, 0)] == [it for _, it in expected]
    assert (len(backlog), backlog.size_bytes, backlog.take_all()) == (0, 0, b"")


def test_a_connection_may_end_while_its_requests_are_served(connection: Connection) -> None:
    backlog = Backlog()
    backlog.put(connection.receive(frame(1, Serialization.JSON) * 3, 0))
    backlog.take(connection, 2)
    backlog.clear()
    backlog.put_back(1)
    assert (len(backlog), backlog.size_bytes) == (0, 0)


def test_what_waits_takes_little_more_memory_than_its_bytes(connection: Connection) -> None:
    backlog = Backlog()
    data = b"".join(frame(it, Serialization.JSON) for it in range(100))
    backlog.put(connection.receive(data, 0))
    held = (backlog._data, backlog._ends, backlog._times_ms)
    assert backlog.size_bytes == len(data)
    assert sum(map(sys.getsizeof, held)) < len(data) + 2_000
