# SPDX-License-Identifier: Apache-2.0
"""What consumers write down about each delivery, and how it is read while they still write.

Ours write a line per event, `KIND NANOSECONDS TOPIC BROKER QUEUE [OFFSET [KEY-NUMBER]]`, so
that a kill loses nothing; Java's print theirs, and their client's own log tells which offset it
stored when it left a queue. The clock is that of the machine: lines of all processes compare.
"""

import json
import os
import re
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

ASSIGNED: Final = "assigned"
REVOKED: Final = "revoked"
BEGUN: Final = "begun"
ENDED: Final = "ended"
JAVA_EVENT: Final = '{"event":"received"'

JAVA_STORED: Final = re.compile(
    r"(?P<moment>[\d-]+ [\d:]+,\d+) INFO RocketmqClient - \[persist\] .* MessageQueue "
    r"\[topic=(?P<topic>\S+), brokerName=(?P<broker>\S+), queueId=(?P<queue>\d+)\] (?P<offset>\d+)"
)
"""What a Java client logs when it leaves a queue, and only then."""

Queue = tuple[str, str, int]
"""Topic, broker, queue id."""


class Delivery(msgspec.Struct):
    """One message at one listener."""

    queue: Queue
    offset: int
    name: str
    """`KEY-NUMBER`: which message it is."""
    member: str
    period: int
    """Which of its times with this queue the member is in."""
    begin_ns: int
    end_ns: int | None = None
    """None: the listener did not return."""


class Handover(NamedTuple):
    """A member left a queue in order: it had stored its offset."""

    member: str
    queue: Queue
    moment_ns: int
    offset: int | None = None
    """None: that after the last message which its listener had."""


class JournalWriter:
    """Appends lines to one file."""

    def __init__(self, path: Path) -> None:
        """Make the file."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: str, *words: object) -> None:
        """Write a line with the present moment."""
        text = " ".join(map(str, (kind, time.monotonic_ns(), *words)))
        os.write(self._descriptor, f"{text}\n".encode())


class LineReader(ABC):
    """Reads the file of one member, as far as it is written."""

    def __init__(self, member: str, path: Path) -> None:
        """Begin at the first line."""
        self.deliveries: list[Delivery] = []
        self.done: set[tuple[str, str]] = set()
        """Topic and name of the messages that the listener has finished."""
        self._member = member
        self._path = path
        self._offset = 0
        self._periods: dict[Queue, int] = {}

    def read(self) -> None:
        """Take what was written since the last time."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self.take(whole.decode(errors="replace").splitlines())

    @abstractmethod
    def take(self, lines: Iterable[str]) -> None:
        """Take lines."""

    @abstractmethod
    def handovers(self) -> Iterable[Handover]:
        """Return when queues were left in order."""

    def _begin(self, queue: Queue, offset: int, name: str, moment: int) -> Delivery:
        period = self._periods.get(queue, 0)
        delivery = Delivery(queue, offset, name, self._member, period, moment)
        self.deliveries.append(delivery)
        return delivery


class JournalReader(LineReader):
    """Reads a journal."""

    def __init__(self, member: str, path: Path) -> None:
        """Begin at the first line."""
        super().__init__(member, path)
        self._open: dict[tuple[Queue, int], deque[Delivery]] = defaultdict(deque)
        self._handovers: list[Handover] = []

    def handovers(self) -> Iterable[Handover]:
        """Return what was read of them."""
        return self._handovers

    def take(self, lines: Iterable[str]) -> None:
        """Take lines."""
        for line in lines:
            kind, moment, topic, broker, queue_id, *rest = line.split(" ")
            queue = (topic, broker, int(queue_id))
            if kind == ASSIGNED:
                self._periods[queue] = self._periods.get(queue, 0) + 1
                continue
            if kind == REVOKED:
                self._handovers.append(Handover(self._member, queue, int(moment)))
                continue
            offset = int(rest[0])
            if kind == BEGUN:
                delivery = self._begin(queue, offset, rest[1], int(moment))
                self._open[queue, offset].append(delivery)
            else:  # a queue that went and came back may bring what is still in work
                delivery = self._open[queue, offset].popleft()
                delivery.end_ns = int(moment)
                self.done.add((topic, delivery.name))


class JavaReader(LineReader):
    """Reads what a Java consumer prints: its listener returns at once.

    It does not tell when it gets a queue anew. In order, an offset that is not the next says so,
    otherwise one that it has had before.
    """

    def __init__(self, member: str, path: Path, *, stores: Path, is_ordered: bool) -> None:
        """Begin at the first line; `stores` is the log of the client itself."""
        super().__init__(member, path)
        self._stores = stores
        self._is_ordered = is_ordered
        self._last: dict[Queue, int] = {}
        self._seen: dict[Queue, set[int]] = {}

    def take(self, lines: Iterable[str]) -> None:
        """Take lines."""
        for line in lines:
            if not line.startswith(JAVA_EVENT):
                continue
            event = json.loads(line)
            queue = (event["topic"], event["broker"], event["queue_id"])
            offset = event["queue_offset"]
            self._note(queue, offset)
            delivery = self._begin(queue, offset, event["key"], event["at_ns"])
            delivery.end_ns = delivery.begin_ns
            self.done.add((queue[0], delivery.name))

    def handovers(self) -> Iterator[Handover]:
        """Yield what the client says of them."""
        if not self._stores.exists():
            return
        wall_ns = time.time_ns() - time.monotonic_ns()
        for found in map(JAVA_STORED.match, self._stores.read_text(errors="replace").splitlines()):
            if found is None:
                continue
            moment = datetime.strptime(found["moment"], "%Y-%m-%d %H:%M:%S,%f").astimezone()
            queue = (found["topic"], found["broker"], int(found["queue"]))
            moment_ns = int(moment.timestamp() * 1e9) - wall_ns
            yield Handover(self._member, queue, moment_ns, int(found["offset"]))

    def _note(self, queue: Queue, offset: int) -> None:
        seen = self._seen.setdefault(queue, set())
        is_next = offset == self._last.get(queue, -1) + 1
        if offset in seen or (self._is_ordered and not is_next):
            self._periods[queue] = self._periods.get(queue, 0) + 1
            seen.clear()
        seen.add(offset)
        self._last[queue] = offset
