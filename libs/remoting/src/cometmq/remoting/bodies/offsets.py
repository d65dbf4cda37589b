# SPDX-License-Identifier: Apache-2.0
"""Offsets of groups and queues."""

import msgspec

from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.integers import Int32, Int64
from cometmq.remoting.progress import waiting


class ConsumerOffsetTable(msgspec.Struct, gc=False, rename="camel"):
    """Committed offsets by `topic@group` and queue id: code 43, and consumerOffset.json."""

    offset_table: dict[str, dict[Int32, Int64]] = {}
    data_version: DataVersion | None = None


class DelayOffsetTable(msgspec.Struct, gc=False, rename="camel"):
    """Next queue offset by delay level: code 45, and delayOffset.json.

    Compatibility: only CometMQ's brokers recall messages of delay levels.
    """

    offset_table: dict[Int32, Int64] = {}
    data_version: DataVersion | None = None
    recalled: dict[Int32, dict[Int64, str]] = {}
    """Delay level -> queue offset -> unique key of the message that is recalled there."""

    def is_recalled(self, level: int, queue_offset: int, unique_key: str) -> bool:
        """Return whether this message is recalled.

        The unique key is compared, because another message may have taken the offset of one that
        the log has lost.
        """
        return self.recalled.get(level, {}).get(queue_offset) == unique_key

    def passed(self) -> dict[int, int]:
        """Return the offset of each level as if its recalled messages came first: so its lag does
        not count them.
        """
        found = {}
        for level in self.offset_table.keys() | self.recalled.keys():
            offset = self.offset_table.get(level, 0)
            found[level] = offset + sum(it >= offset for it in self.recalled.get(level, ()))
        return found

    def waiting(self, level: int, first: int, end: int) -> int:
        """Return how many messages of a level are yet to be delivered; its queue has these ends."""
        recalled = sorted(self.recalled.get(level, ()))
        return waiting(self.offset_table.get(level), first, end, recalled)


class QueueOffsetTable(msgspec.Struct, gc=False, rename="camel"):
    """Offsets by queue: the body of codes 220 and 222."""

    offset_table: dict[MessageQueue, Int64] = {}


class QueueOffset(msgspec.Struct, gc=False, rename="camel"):
    """One entry of the list that C++ clients receive instead of a table."""

    broker_name: str = ""
    offset: Int64 = 0
    queue_id: Int32 = 0
    topic: str = ""


class QueueOffsetList(msgspec.Struct, gc=False, rename="camel"):
    """Body of code 220 when a C++ client requests the reset."""

    offset_table: list[QueueOffset] = []


class ConsumerStatus(msgspec.Struct, gc=False, rename="camel"):
    """Offsets of one client (code 221), or of several clients by client id (code 223)."""

    consumer_table: dict[str, dict[MessageQueue, Int64]] = {}
    message_queue_table: dict[MessageQueue, Int64] = {}


class CorrectionOffsets(msgspec.Struct, gc=False, rename="camel"):
    """The smallest offsets of other groups, by queue id."""

    correction_offsets: dict[Int32, Int64] = {}
