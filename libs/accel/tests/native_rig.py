# SPDX-License-Identifier: Apache-2.0
"""A send lane, and a pull lane over a log of three records."""

import struct
from typing import NamedTuple

import pytest

from cometmq.remoting.command import ConstantExt
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.typed_encode import binary_constant, lane_pieces
from cometmq.remoting.types import Serialization
from cometmq.store.log.damage import DamagedRange as Range
from cometmq.testing.remoting.frames import encode_frame

accel = pytest.importorskip("cometmq.accel", reason="cometmq-accel is built only with cargo")

HOST = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])
FIELDS = {
    "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000",
    "h": "0", "j": "0", "k": "false", "m": "false",
}  # fmt: skip


def make_lane(**changes):
    constant = ConstantExt({"TRACE_ON": "100%"})
    options = {
        "store_host": HOST, "cluster": "CLUSTER\x01c", "frame_bytes_max": 1 << 20,
        "body_bytes_max": 4096, "batch_count_max": 100, "request_bytes_max": 8192,
        **lane_pieces(0, ("msgId", "queueId", "queueOffset"), constant),
        "binary_entries": binary_constant(constant),
        "delayed": ("Delayed", [1_000, 5_000]),
        "transactions": ("Half", "Op", "TAGS\x01d", 100), "accounts": None,
    }  # fmt: skip
    lane = accel.SendLane(**options | changes)
    lane.learn("T", 4)
    return lane


def send(opaque=1, *, serialization=0, **fields):
    return encode_frame(
        RawCommand(
            code=310, opaque=opaque, ext=FIELDS | fields, body=b"body",
            serialization=Serialization(serialization),
        )
    )  # fmt: skip


class View(NamedTuple):
    first: int
    end: int
    file_size: int
    damage: tuple[Range, ...] = ()


class PulledQueue:
    min_offset = 0
    max_offset = 3
    life = 0


class PullWorld:
    """A log of three records in one queue, and reads of it."""

    def __init__(self, **changes):
        self.queue = PulledQueue()
        self.log = b"".join(self.record(number) for number in range(3))
        self.size = len(self.log) // 3
        self.reads = []
        self.answer_to_read = lambda data: data
        names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
        options = {
            "frame_bytes_max": 1 << 20, "cache_bytes": 1 << 20, "count_max": 32,
            "bytes_max": 1 << 18, "memory_bytes": 1 << 30,
            **lane_pieces(0, names, remark="FOUND"), "remark": b"FOUND",
            "names": [name.encode() for name in names], "queues": {("T", 0): self.queue},
            "read_log": self.read_log, "read_entries": self.read_entries, "accounts": None,
        }  # fmt: skip
        self.lane = accel.PullLane(**options | changes)
        self.sends = make_lane()

    @staticmethod
    def record(number):
        fixed = bytearray(88)
        struct.pack_into(">ii", fixed, 0, 92, -626843481)
        struct.pack_into(">qq", fixed, 20, number, 92 * number)
        return bytes(fixed) + b"\x01T\0\0"

    def read_log(self, view, start, known, count):
        self.reads.append(("log", start + known, count - known))
        return self.answer_to_read(self.log[start + known : start + count])

    def read_entries(self, queue, offset, count):
        assert queue is self.queue
        self.reads.append(("entries", offset, count))
        numbers = range(offset, offset + count)
        return b"".join(struct.pack(">qiq", 92 * one, 92, one) for one in numbers)

    def head(self, offset=0, **changes):
        ext = {
            "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "5", "commitOffset": "1", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        return encode_frame(RawCommand(code=11, opaque=9, ext=ext | changes))

    def learn(self, **options):
        data = self.head()
        return self.lane.learn(0, data[8:], "g", "T", queue_count=1, suggested_id=0, **options)

    def stage(self, data):
        return self.sends.stage(data, object(), HOST, 9, pulls=self.lane)

    def answer(self, data, **view):
        """Answer a chunk; the effects are returned without their seconds, which differ."""
        count = -self.stage(data)[0][0]
        shown = View(0, len(self.log), 1 << 20)._replace(**view)
        *answered, (*effects, seconds) = self.lane.answer(0, count, 1 << 20, shown, 99)
        assert 0 < seconds < 60
        return *answered, tuple(effects)
