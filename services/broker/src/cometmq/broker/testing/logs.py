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

    def debug(self, event: str, /, **facts: object) -> None:
        self.events.append(Event(event, facts))

    info = warning = error = debug

    def named(self, name: str) -> list[dict[str, object]]:
        return [event.facts for event in self.events if event.name == name]
