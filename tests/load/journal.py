# SPDX-License-Identifier: Apache-2.0
"""What consumers write down about each delivery, and how it is read while they still write.

A line per event, `KIND NANOSECONDS TOPIC BROKER QUEUE [OFFSET [KEY-NUMBER]]`, written at once, so
that a kill loses nothing. The clock is that of the machine: lines of all processes compare.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

ASSIGNED: Final = "assigned"
BEGUN: Final = "begun"
ENDED: Final = "ended"


class Delivery(msgspec.Struct):
    """One message at one listener."""

    queue: tuple[str, str, int]
    offset: int
    name: str
    """`KEY-NUMBER`: which message it is."""
    member: str
    period: int
    """Which of its times with this queue the member is in."""
    begin_ns: int
    end_ns: int | None = None
    """None: the listener did not return."""


class JournalWriter:
    """Appends lines to one file."""

    def __init__(self, path: Path) -> None:
        """Make the file."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: str, *words: object) -> None:
        """Write a line with the present moment."""
        text = " ".join(map(str, (kind, time.monotonic_ns(), *words)))
        os.write(self._descriptor, f"{text}\n".encode())


class JournalReader:
    """Reads the file of one member, as far as it is written."""

    def __init__(self, member: str, path: Path) -> None:
        """Begin at the first line."""
        self.deliveries: list[Delivery] = []
        self.done: set[tuple[str, str]] = set()
        """Topic and name of the messages that the listener has finished."""
        self._member = member
        self._path = path
        self._offset = 0
        self._periods: dict[tuple[str, str, int], int] = {}
        self._open: dict[tuple[tuple[str, str, int], int], Delivery] = {}

    def read(self) -> None:
        """Take what was written since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.take(whole.decode().splitlines())

    def take(self, lines: Iterable[str]) -> None:
        """Take lines."""
        for line in lines:
            kind, moment, topic, broker, queue_id, *rest = line.split(" ")
            queue = (topic, broker, int(queue_id))
            if kind == ASSIGNED:
                self._periods[queue] = self._periods.get(queue, 0) + 1
            elif kind == BEGUN:
                self._begin(queue, int(rest[0]), rest[1], int(moment))
            else:
                delivery = self._open.pop((queue, int(rest[0])))
                delivery.end_ns = int(moment)
                self.done.add((topic, delivery.name))

    def _begin(self, queue: tuple[str, str, int], offset: int, name: str, moment: int) -> None:
        period = self._periods.get(queue, 0)
        delivery = Delivery(queue, offset, name, self._member, period, moment)
        self.deliveries.append(delivery)
        self._open[queue, offset] = delivery
