# SPDX-License-Identifier: Apache-2.0
"""A log that tests read."""

from typing import NamedTuple


class Event(NamedTuple):
    """One line of the log."""

    name: str
    facts: dict[str, object]


class RecordingLog:
    """Keeps every event, whatever its level."""

    def __init__(self) -> None:
        """Start empty."""
        self.events: list[Event] = []

    def debug(self, event: str, /, **facts: object) -> None:
        """Keep the event."""
        self.events.append(Event(event, facts))

    info = warning = error = debug

    def named(self, name: str) -> list[dict[str, object]]:
        """Return the facts of all events of a name."""
        return [event.facts for event in self.events if event.name == name]
