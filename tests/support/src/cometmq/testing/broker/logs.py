# SPDX-License-Identifier: Apache-2.0
"""A log whose events tests can read."""

from typing import NamedTuple


class Event(NamedTuple):
    name: str
    facts: dict[str, object]


class RecordingLog:
    """Records every event, whatever its level."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.alarms: list[Event] = []
        """The events at the levels warning and error."""
        self.errors: list[Event] = []

    def debug(self, event: str, /, **facts: object) -> None:
        self.events.append(Event(event, facts))

    def warning(self, event: str, /, **facts: object) -> None:
        self.debug(event, **facts)
        self.alarms.append(self.events[-1])

    def error(self, event: str, /, **facts: object) -> None:
        self.warning(event, **facts)
        self.errors.append(self.events[-1])

    info = debug

    def named(self, name: str) -> list[dict[str, object]]:
        return [event.facts for event in self.events if event.name == name]
