# SPDX-License-Identifier: Apache-2.0
"""Compares the acknowledged messages, offsets and tables with the broker's after a crash.

The functions do no I/O. The key of a message is unique and names its sender: `WORKER-NUMBER`. A
worker waits for each answer, so its numbers increase in every queue.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.message.record import MessageRecord

Queue = tuple[str, int]


class Place(NamedTuple):
    """The position of a message according to the answer to its send."""

    key: str
    message_id: str

    @property
    def physical_offset(self) -> int:
        return parse_offset_message_id(self.message_id).physical_offset


def digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


class Acknowledged:
    def __init__(self) -> None:
        self.attempted: dict[str, bytes] = {}
        self.places: dict[Queue, dict[int, Place]] = {}
        self.delayed: dict[str, bytes] = {}
        self.topics: dict[str, int] = {}
        self.deleted_topics: set[str] = set()
        self.groups: dict[str, int] = {}
        self.commit_min: dict[Queue, int] = {}
        self.commit_max: dict[Queue, int] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self.places.values())) + len(self.delayed)

    def note_attempt(self, key: str, body: bytes) -> None:
        self.attempted[key] = digest(body)

    def note_place(self, queue: Queue, offset: int, key: str, message_id: str) -> None:
        there = self.places.setdefault(queue, {})
        assert offset not in there, f"{queue} {offset} was given to {there[offset].key} and {key}"
        there[offset] = Place(key, message_id)

    def note_commit(self, queue: Queue, offset: int) -> None:
        self.commit_min[queue] = offset

    def note_delayed(self, key: str) -> None:
        self.delayed[key] = self.attempted[key]

    def judge_queue(
        self, queue: Queue, minimum: int, records: list[MessageRecord], *, log_begin: int
    ) -> list[str]:
        """Return the faults of a queue that was read from its minimum to its end."""
        wrong = []
        places = self.places.get(queue, {})
        end = minimum + len(records)
        for offset, place in places.items():
            if offset >= end:
                wrong.append(f"{queue} {offset}: {place.key} was acknowledged and is lost")
            elif offset < minimum and place.physical_offset >= log_begin:
                wrong.append(f"{queue} {offset}: {place.key} is in the log, not in the queue")
        for offset, record in enumerate(records, minimum):
            reason = self._judge_record(queue, offset, record, places.get(offset))
            if reason:
                wrong.append(f"{queue} {offset}: {reason}")
        return wrong + self._judge_order(queue, records)

    def _judge_record(
        self, queue: Queue, offset: int, record: MessageRecord, place: Place | None
    ) -> str:
        if (record.topic, record.queue_id, record.queue_offset) != (*queue, offset):
            return f"the record says {record.topic} {record.queue_id} {record.queue_offset}"
        key = record.properties.get("KEYS", "")
        if self.attempted.get(key) != digest(record.body):
            return f"no message {key!r} with this body was sent"
        if place is not None and (key, record.offset_message_id) != place:
            return f"holds {key} {record.offset_message_id}, acknowledged for {place}"
        return ""

    def _judge_order(self, queue: Queue, records: Iterable[MessageRecord]) -> list[str]:
        last: dict[str, int] = {}
        wrong = []
        for record in records:
            worker, _, number = record.properties.get("KEYS", "-0").rpartition("-")
            if int(number) <= last.get(worker, -1):
                wrong.append(f"{queue} {record.queue_offset}: {worker}-{number} is not in order")
            last[worker] = int(number)
        return wrong

    def judge_once(self, queues: dict[Queue, list[MessageRecord]]) -> list[str]:
        keys = Counter(r.properties.get("KEYS") for records in queues.values() for r in records)
        return [f"{key} is there {count} times" for key, count in keys.items() if count > 1]

    def judge_delayed(self, records: list[MessageRecord]) -> list[str]:
        """Return the delayed messages that were lost or changed."""
        keys = [record.properties.get("KEYS", "") for record in records]
        wrong = [f"delayed {key} was not delivered" for key in self.delayed.keys() - set(keys)]
        for key, record in zip(keys, records, strict=True):
            if self.attempted.get(key) != digest(record.body):
                wrong.append(f"no delayed message {key!r} with this body was sent")
        return wrong

    def judge_tables(self, topics: dict[str, int], groups: dict[str, int]) -> list[str]:
        wrong = [
            f"topic {name} has {topics.get(name)} queues, {count} were acknowledged"
            for name, count in self.topics.items()
            if topics.get(name) != count
        ]
        wrong += [f"topic {name} is back" for name in self.deleted_topics & topics.keys()]
        return wrong + [
            f"group {name} has {groups.get(name)} retries, {count} were acknowledged"
            for name, count in self.groups.items()
            if groups.get(name) != count
        ]

    def judge_commit(self, queue: Queue, found: int) -> list[str]:
        """Return a fault if an offset was never sent, or is lower than an offset known earlier."""
        low = self.commit_min.get(queue, 0)
        high = self.commit_max.get(queue, 0)
        self.commit_min[queue] = found
        return [] if low <= found <= high else [f"{queue}: offset {found}, not {low} to {high}"]
