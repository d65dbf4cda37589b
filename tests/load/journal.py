# SPDX-License-Identifier: Apache-2.0
"""Delivery journals, written by consumers and read while they are being written.

Our consumers write a line per event, `KIND NANOSECONDS TOPIC BROKER QUEUE [OFFSET [KEY-NUMBER]]`,
so that a kill loses nothing. Java consumers print JSON, and their client's log shows the offset
that it stored when it released a queue. All of them use the machine's monotonic clock.
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
"""A Java client logs this when it leaves a queue, and only then."""

Queue = tuple[str, str, int]
"""Topic, broker, queue id."""


class Delivery(msgspec.Struct):
    queue: Queue
    offset: int
    name: str
    """`KEY-NUMBER`, unique within the topic."""
    member: str
    period: int
    """How many times the member had been assigned this queue before."""
    begin_ns: int
    end_ns: int | None = None
    """None if the listener did not return."""


class Handover(NamedTuple):
    """A clean release of a queue by a member that had stored its offset."""

    member: str
    queue: Queue
    moment_ns: int
    offset: int | None = None
    """The stored offset; None means the offset after the last message of the listener."""


class JournalWriter:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, kind: str, *words: object) -> None:
        text = " ".join(map(str, (kind, time.monotonic_ns(), *words)))
        os.write(self._descriptor, f"{text}\n".encode())


class LineReader(ABC):
    """Reads the file of one member up to the last complete line."""

    def __init__(self, member: str, path: Path) -> None:
        self.deliveries: list[Delivery] = []
        self.done: set[tuple[str, str]] = set()
        """Topic and name of the messages that the listener has finished."""
        self._member = member
        self._path = path
        self._offset = 0
        self._periods: dict[Queue, int] = {}

    def read(self) -> None:
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
        """Process the next lines of the journal."""

    @abstractmethod
    def handovers(self) -> Iterable[Handover]:
        """Return the clean handovers so far."""

    def _begin(self, queue: Queue, offset: int, name: str, moment: int) -> Delivery:
        period = self._periods.get(queue, 0)
        delivery = Delivery(queue, offset, name, self._member, period, moment)
        self.deliveries.append(delivery)
        return delivery


class JournalReader(LineReader):
    def __init__(self, member: str, path: Path) -> None:
        super().__init__(member, path)
        self._open: dict[tuple[Queue, int], deque[Delivery]] = defaultdict(deque)
        self._handovers: list[Handover] = []

    def handovers(self) -> Iterable[Handover]:
        return self._handovers

    def take(self, lines: Iterable[str]) -> None:
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
            else:  # after a revocation, a redelivery may overlap the first delivery
                delivery = self._open[queue, offset].popleft()
                delivery.end_ns = int(moment)
                self.done.add((topic, delivery.name))


class JavaReader(LineReader):
    """Reads the output of a Java consumer whose listener returns at once.

    The consumer does not report assignments, so they are inferred. In an ordered topic, a new
    period begins at an offset that does not follow the previous one; in other topics, at an offset
    that was seen before.
    """

    def __init__(self, member: str, path: Path, *, stores: Path, is_ordered: bool) -> None:
        """`stores` is the log of the Java client library."""
        super().__init__(member, path)
        self._stores = stores
        self._is_ordered = is_ordered
        self._last: dict[Queue, int] = {}
        self._seen: dict[Queue, set[int]] = {}

    def take(self, lines: Iterable[str]) -> None:
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
