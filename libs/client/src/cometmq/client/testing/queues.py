# SPDX-License-Identifier: Apache-2.0
"""The queues of the in-memory broker, with records in the format of a real broker."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from cometmq.remoting.message.flags import Perm
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import PropertyKey, parse_properties, render_properties
from cometmq.remoting.message.record import MessageRecord, decode_record

READ_WRITE: Final = int(Perm.READ | Perm.WRITE)


class MemoryQueues:
    """Queues of records by topic and queue id; records are deleted only on request."""

    def __init__(self) -> None:
        self.queue_counts: dict[str, int] = {}
        self._perms: dict[str, int] = {}
        self._queues: dict[tuple[str, int], list[bytes]] = {}
        self._first_offsets: dict[tuple[str, int], int] = {}
        self._records: dict[int, bytes] = {}
        self._end = 0

    def create(self, topic: str, queue_count: int) -> None:
        """Create a topic, or increase its number of queues."""
        self.queue_counts[topic] = max(queue_count, self.queue_counts.get(topic, 0))

    def configure(self, topic: str, queue_count: int, *, perm: int) -> None:
        """Create a topic, or set its number of queues and its permissions."""
        self.queue_counts[topic] = queue_count
        self._perms[topic] = perm

    def perm(self, topic: str) -> int:
        return self._perms.get(topic, READ_WRITE)

    def delete(self, topic: str) -> None:
        """Delete a topic; a topic of this name that is created later begins at offset 0."""
        for key in [key for key in self._queues if key[0] == topic]:
            del self._queues[key]
            self._first_offsets.pop(key, None)
        self.queue_counts.pop(topic, None)
        self._perms.pop(topic, None)

    def put(self, message: NewMessage, now_ms: int) -> tuple[int, int]:
        """Store a message; return its queue offset and its physical offset."""
        key = (message.topic, message.queue_id)
        queue_offset, physical_offset = self.max_offset(*key), self._end
        record = encode_record(message, queue_offset, physical_offset, now_ms)
        self._queues.setdefault(key, []).append(record)
        self._records[physical_offset] = record
        self._end += len(record)
        return queue_offset, physical_offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._first_offsets.get((topic, queue_id), 0)

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the exclusive end offset of a queue."""
        queue = self._queues.get((topic, queue_id), [])
        return self.min_offset(topic, queue_id) + len(queue)

    def read(self, topic: str, queue_id: int, offset: int, count_max: int) -> list[bytes]:
        """Return up to `count_max` records, starting at an offset."""
        start = offset - self.min_offset(topic, queue_id)
        return self._queues.get((topic, queue_id), [])[start : start + count_max]

    def replace(self, topic: str, queue_id: int, offset: int, record: bytes) -> None:
        """Replace the bytes of a record, to damage it; pulls skip an empty record."""
        start = offset - self.min_offset(topic, queue_id)
        self._queues[topic, queue_id][start] = record

    def raw_record(self, physical_offset: int) -> bytes | None:
        return self._records.get(physical_offset)

    def record_at(self, physical_offset: int) -> MessageRecord | None:
        record = self._records.get(physical_offset)
        return decode_record(record) if record is not None else None

    def records(self, topic: str) -> Iterator[MessageRecord]:
        for queue_id in range(self.queue_counts.get(topic, 0)):
            for record in self._queues.get((topic, queue_id), []):
                yield decode_record(record)

    def expire(self, topic: str, queue_id: int, first_offset: int) -> None:
        """Delete the records before an offset, as retention does."""
        old = self.min_offset(topic, queue_id)
        queue = self._queues.get((topic, queue_id), [])
        self._queues[topic, queue_id] = queue[first_offset - old :]
        self._first_offsets[topic, queue_id] = first_offset


def sent_back(record: MessageRecord, topic: str, message_id: str) -> NewMessage:
    """Return the copy of a record for a retry or dead-letter topic."""
    properties: Mapping[str, str] = {
        str(PropertyKey.RETRY_TOPIC): record.topic,
        str(PropertyKey.ORIGIN_MESSAGE_ID): message_id,
        **parse_properties(record.properties_text),
    }
    return msgspec.structs.replace(
        record.to_new_message(),
        topic=topic,
        queue_id=0,
        reconsume_times=record.reconsume_times + 1,
        properties=render_properties(properties),
    )
