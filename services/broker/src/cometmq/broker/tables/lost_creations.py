# SPDX-License-Identifier: Apache-2.0
"""Topics whose creation may be lost, although the log has messages that wait for them.

A crash of the host loses what the journal got last. A topic of stored messages is found by its
queues; one whose messages all wait, in a delay level or as half messages, has no queues yet.
"""

from typing import Final

DELETED_MAX: Final = 10_000  # topics; beyond that, messages are parked


class LostCreations:
    """The part of the log whose topics may be missing from the table."""

    def __init__(self) -> None:
        self._places = range(0)
        self._deleted: set[str] = set()

    def expect(self, begin: int, end: int) -> None:
        """Expect that the topics of messages in this part of the log were not deleted."""
        self._places = range(begin, end)

    def note_deletion(self, topic: str) -> None:
        """Note that a topic is missing from now on because it was deleted."""
        if not self._places:
            return
        self._deleted.add(topic)
        if len(self._deleted) > DELETED_MAX:
            self._places, self._deleted = range(0), set()

    def has(self, topic: str, physical_offset: int) -> bool:
        """Return whether the creation of the missing topic of a message must have been lost."""
        return physical_offset in self._places and topic not in self._deleted
