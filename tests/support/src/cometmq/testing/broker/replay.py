# SPDX-License-Identifier: Apache-2.0
"""Runs captured exchanges through the real codec and a handler, without a socket."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from cometmq.broker.broker import Broker
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec, Connection
from cometmq.remoting.errors import CommandError
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.types import Buffer
from cometmq.testing.remoting.golden import Exchange, GoldenFrame, load_exchanges
from cometmq.testing.remoting.peer import FakePeer

Handler = Callable[..., Any]

_CODEC = Codec(COMMANDS)


class Answer(msgspec.Struct):
    """An answer that was encoded and decoded again."""

    code: int
    remark: str | None
    ext: dict[str, str]
    body: bytes
    serialization: int


def answered_exchanges(root: Path, pattern: str) -> list[Exchange]:
    """Return the captured exchanges whose request has an answer."""
    return [one for one in load_exchanges(root, pattern) if one.response is not None]


def name_of(exchange: Exchange) -> str:
    return exchange.name


def call_of(frame: GoldenFrame, peer: FakePeer) -> Call[Any]:
    """Return the call that a captured request makes."""
    connection = Connection(_CODEC, peer)
    (call,) = connection.receive(frame.data, 0)
    assert not connection.faults
    return call


async def replay(
    broker: Broker, exchange: Exchange, handler: Handler, peer: FakePeer | None = None
) -> Answer:
    """Serve a captured request and return the answer as a client decodes it."""
    peer = peer or FakePeer()
    connection = Connection(_CODEC, peer)
    (call,) = connection.receive(exchange.request.data, 0)
    assert not connection.faults
    return read_answer(frame_of(call, await serve(broker, call, handler)))


def frame_of(call: Call[Any], reply: Reply) -> bytes:
    """Encode an answer as the broker would send it to the caller."""
    parts: list[Buffer] = []
    _CODEC.encoder.encode_reply(parts, call.serialization, call.opaque, reply)
    return b"".join(parts)


async def serve(broker: Broker, call: Call[Any], handler: Handler) -> Reply:
    """Call a handler, synchronous or not; convert a refusal into its answer."""
    try:
        result = handler(broker, call)
        if inspect.isawaitable(result):
            result = await result
    except CommandError as error:
        return Reply(code=error.code, remark=error.remark)
    if result is None:
        return call.peer.replies.pop()  # type: ignore[no-any-return]  # a FakePeer
    return result if isinstance(result, Reply) else Reply(header=result)


def read_answer(frame: bytes) -> Answer:
    ((serialization, head, body),) = FrameReader().feed(frame)
    raw = _CODEC.decoder.decode(serialization, head)
    assert isinstance(raw, RawCommand)
    return Answer(raw.code, raw.remark, raw.ext, bytes(body), serialization)


def expected_answer(exchange: Exchange) -> Answer:
    """Return the answer that the Java server gave."""
    assert exchange.response is not None
    return read_answer(exchange.response.data)
