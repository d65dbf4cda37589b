# SPDX-License-Identifier: Apache-2.0
"""Builds requests as bytes, for peers that do not behave like clients."""

from typing import Any, Final

import msgspec

from cometmq.remoting import Request, RequestCode, Serialization
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.queries import QueryConsumeQueue
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.typed_encode import FrameEncoder

_ENCODER: Final = FrameEncoder()
_HOLD, _SUBSCRIPTION = 2, 4


def send_frame(topic: str, queue_id: int, body: bytes, opaque: int) -> bytes:
    header = SendMessageV2("P", topic, "TBW102", 4, queue_id, 0, 0, 0, f"UNIQ_KEY\x01U{opaque}")
    return _frame(RequestCode.SEND_MESSAGE_V2, header, body, opaque)


def pull_frame(topic: str, queue_id: int, offset: int, opaque: int, *, hold_ms: int = 0) -> bytes:
    """Return a pull; with `hold_ms`, the broker holds it until messages arrive."""
    flags = _SUBSCRIPTION | (_HOLD if hold_ms else 0)
    header = PullMessage("READER", topic, queue_id, offset, 32, flags, 0, hold_ms, 0, "*")
    return _frame(RequestCode.PULL_MESSAGE, header, b"", opaque)


def list_frame(topic: str, count: int, opaque: int) -> bytes:
    """Return a request for the first entries of a queue."""
    header = QueryConsumeQueue(topic, 0, 0, count, "READER")
    return _frame(RequestCode.QUERY_CONSUME_QUEUE, header, b"", opaque)


def _frame(code: RequestCode, header: msgspec.Struct, body: bytes, opaque: int) -> bytes:
    out: list[Any] = []
    _ENCODER.encode_request(out, int(Serialization.JSON), opaque, Request(code, header, body))
    return b"".join(map(bytes, out))
