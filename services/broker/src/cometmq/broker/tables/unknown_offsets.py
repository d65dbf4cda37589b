# SPDX-License-Identifier: Apache-2.0
"""Committed offsets of groups, topics or queues that do not exist.

Such offsets are stored, as in RocketMQ, but with a bound of their own, so that a client that
invents names does not use up the bound of all offsets.
"""

from collections.abc import Mapping

from cometmq.broker.limits import UNKNOWN_OFFSETS, Room
from cometmq.broker.tables.offset_index import KEY_SEPARATOR
from cometmq.broker.tables.subscription_groups import Groups
from cometmq.broker.tables.topics import Topics
from cometmq.remoting.names import is_system_group


class UnknownOffsets:
    """The offsets whose group or queue did not exist when they were committed; `check` bounds
    them.
    """

    def __init__(self, topics: Topics, groups: Groups) -> None:
        self._topics = topics
        self._groups = groups
        self._found: set[tuple[str, int]] = set()  # key and queue
        self._recounted_as_of: object = None

    def __len__(self) -> int:
        return len(self._found)

    def is_known(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group, and a queue of a topic, exist."""
        config = self._topics.get(topic)
        if config is None or not (group in self._groups.table or is_system_group(group)):
            return False
        return 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def _is_known(self, key: str, queue_id: int) -> bool:
        topic, _, group = key.partition(KEY_SEPARATOR)
        return self.is_known(group, topic, queue_id)

    def find(self, table: Mapping[str, Mapping[int, int]]) -> None:
        """Find the unknown offsets in a loaded table."""
        for key, queues in table.items():
            self._found.update(
                (key, queue_id) for queue_id in queues if not self._is_known(key, queue_id)
            )

    def check(self, room: Room) -> None:
        """Raise LimitReached if there is no room for another unknown offset."""
        if len(self._found) >= room.limits.maximum(UNKNOWN_OFFSETS):
            self._recount()
        room.admit(UNKNOWN_OFFSETS, len(self._found))

    def _recount(self) -> None:
        """Remove the offsets whose group, topic and queue exist by now."""
        version = (self._topics.version, self._groups.version)
        if version != self._recounted_as_of:
            self._recounted_as_of = version
            self._found = {found for found in self._found if not self._is_known(*found)}

    def add(self, group: str, topic: str, queue_id: int) -> None:
        self._found.add((f"{topic}{KEY_SEPARATOR}{group}", queue_id))

    def discard(self, key: str, queue_id: int) -> None:
        self._found.discard((key, queue_id))
