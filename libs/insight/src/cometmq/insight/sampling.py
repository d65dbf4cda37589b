# SPDX-License-Identifier: Apache-2.0
"""Reads a sample of a topic, spread over all its queues and their whole length, within bounds.

Nothing is committed, so groups are not affected. Each queue has a share of the sample. A shorter
queue is read completely, a longer one in blocks at equal distances.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_messages import PULL_COUNT_MAX
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.errors import InvalidArgument
from cometmq.client.message import DamagedMessage, MessageExt, UnreadableMessage
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError

TOP_MAX: Final = 10
NAMES_MAX: Final = 100_000
"""The most different keys, tags, hosts or properties that are counted."""
NAME_CHARS_MAX: Final = 200
PERCENTILES: Final = (0, 25, 50, 75, 90, 95, 99, 99.9, 100)


class Point(msgspec.Struct, frozen=True):
    """A percentile of a distribution."""

    percent: float
    value: int


class Bar(msgspec.Struct, frozen=True):
    """The number of messages of at most `until` bytes that are larger than the previous bar's
    `until`.
    """

    until: int
    count: int


class Named(msgspec.Struct, frozen=True):
    """A frequent name, and in how many messages of the sample it is."""

    name: str
    count: int


class Names(msgspec.Struct, frozen=True):
    """The names of one kind: keys, tags, hosts or properties."""

    messages: int
    """Number of messages in the sample that have a name of this kind."""
    different: int
    """Number of different names in the sample; a lower bound for the topic."""
    top: Sequence[Named]
    is_cut: bool = False
    """Whether `different` is too low, because only NAMES_MAX names are counted."""


class Figures(msgspec.Struct, frozen=True):
    """The statistics of a sample."""

    messages: int
    body_bytes: int
    sizes: Sequence[Point]
    """Percentiles of the sizes of decompressed bodies, in bytes."""
    bars: Sequence[Bar]
    ages_s: Sequence[Point]
    keys: Names
    keys_per_message: Sequence[Point]
    tags: Names
    hosts: Names
    properties: Names
    damaged: int

    @property
    def mean_bytes(self) -> float:
        """Return the mean size of a body; 0 without messages."""
        return self.body_bytes / self.messages if self.messages else 0.0


class _Names:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._messages = 0
        self._is_cut = False

    def add(self, names: Sequence[str]) -> None:
        self._messages += bool(names)
        for name in {it[:NAME_CHARS_MAX] for it in names}:
            if name in self._counts or len(self._counts) < NAMES_MAX:
                self._counts[name] += 1
            else:
                self._is_cut = True

    def found(self) -> Names:
        ordered = sorted(self._counts.items(), key=lambda it: (-it[1], it[0]))[:TOP_MAX]
        top = [Named(*it) for it in ordered]
        return Names(self._messages, len(self._counts), top, self._is_cut)


class Collector:
    """Collects the statistics of messages without keeping the messages."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._sizes: list[int] = []
        self._ages_s: list[int] = []
        self._key_counts: list[int] = []
        self._keys, self._tags, self._hosts, self._properties = (_Names() for _ in range(4))
        self._damaged = 0

    @property
    def count(self) -> int:
        """The number of messages added."""
        return len(self._sizes)

    def add(self, message: MessageExt) -> None:
        """Include a message in the figures."""
        self._sizes.append(len(message.body))
        self._ages_s.append(max(0, self._now_ms - message.store_timestamp) // 1_000)
        self._key_counts.append(len(message.keys))
        self._keys.add(message.keys)
        self._tags.add([message.tag] if message.tag else [])
        self._hosts.add([message.born_host.rpartition(":")[0] or message.born_host])
        self._properties.add(list(message.user_properties))
        self._damaged += isinstance(message, DamagedMessage | UnreadableMessage)

    def figures(self) -> Figures:
        """Return the statistics of all messages added."""
        return Figures(
            messages=self.count,
            body_bytes=sum(self._sizes),
            sizes=percentiles(self._sizes),
            bars=bars(self._sizes),
            ages_s=percentiles(self._ages_s),
            keys=self._keys.found(),
            keys_per_message=percentiles(self._key_counts),
            tags=self._tags.found(),
            hosts=self._hosts.found(),
            properties=self._properties.found(),
            damaged=self._damaged,
        )


def percentiles(values: Sequence[int]) -> list[Point]:
    """Return the percentiles by nearest rank; empty without values."""
    ordered, last = sorted(values), len(values) - 1
    if last < 0:
        return []
    return [Point(it, ordered[round(it / 100 * last)]) for it in PERCENTILES]


def bars(sizes: Sequence[int]) -> list[Bar]:
    """Return a histogram whose bars double in width, without empty bars at either end."""
    counts = Counter(0 if size == 0 else 1 << (size - 1).bit_length() for size in sizes)
    if not counts:
        return []
    low, high = min(counts), max(counts)
    edges = [0] if low == 0 else []
    edge = max(1, low)
    while edge <= high:
        edges.append(edge)
        edge *= 2
    return [Bar(it, counts[it]) for it in edges]


COUNT_DEFAULT: Final = 5_000
COUNT_MAX: Final = 100_000
BYTES_MAX: Final = 256 << 20
TIME_MS_MAX: Final = 10_000


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one analysis."""

    count_max: int = COUNT_DEFAULT
    bytes_max: int = BYTES_MAX
    time_ms: int = TIME_MS_MAX
    begin_ms: int | None = None
    """Read only messages stored at this time or later."""


T = TypeVar("T")

QUEUES_AT_ONCE: Final = 8
QUEUES_MAX: Final = 4_096


class QueueShare(msgspec.Struct, frozen=True):
    """How many messages a queue has in the range, and how many of them were read."""

    broker: str
    queue: int
    messages: int
    sampled: int


class Analysis(msgspec.Struct, frozen=True):
    """The statistics of a topic's messages, computed from a sample."""

    topic: str
    messages: int
    """Number of messages that exist in the range."""
    per_s: float | None
    """Messages stored per second, between the first and the last of the sample; None if both have
    the same time.
    """
    figures: Figures
    queues: Sequence[QueueShare]
    ended: str
    """Why the sample is smaller than wanted; empty if it is complete."""
    unanswered: dict[str, str]
    """Why queues could not be read, by broker and queue."""

    @property
    def is_whole(self) -> bool:
        """Whether every message was read."""
        return self.figures.messages >= self.messages and not self.unanswered


class _Reading:
    """The progress of one analysis."""

    def __init__(self, bounds: Bounds, clock_ms: Callable[[], int], now_ms: int) -> None:
        self.collector = Collector(now_ms)
        self.sampled: dict[str, int] = {}
        self.first_ms: int | None = None
        self.last_ms: int | None = None
        self.ended = ""
        self._bounds = bounds
        self._size = 0
        self._clock_ms = clock_ms
        self._deadline_ms = clock_ms() + bounds.time_ms

    def has_ended(self) -> bool:
        """Return whether a bound is reached."""
        if self._size >= self._bounds.bytes_max:
            self.ended = f"the messages have more than {self._bounds.bytes_max >> 20} MiB"
        elif self._clock_ms() >= self._deadline_ms:
            self.ended = f"{self._bounds.time_ms / 1_000:g} seconds have passed"
        return bool(self.ended)

    def take(self, place: str, message: MessageExt) -> None:
        """Count a message."""
        self.collector.add(message)
        self.sampled[place] = self.sampled.get(place, 0) + 1
        self._size += len(message.body)
        stored_ms = message.store_timestamp
        self.first_ms = stored_ms if self.first_ms is None else min(self.first_ms, stored_ms)
        self.last_ms = stored_ms if self.last_ms is None else max(self.last_ms, stored_ms)


class _Queue(msgspec.Struct, frozen=True):
    broker: BrokerAdmin
    topic: str
    queue_id: int
    first: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.first

    @property
    def place(self) -> str:
        return f"{self.broker.name}:{self.queue_id}"


async def analyse(
    admin: AdminClient,
    topic: str,
    bounds: Bounds | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
    clock_ms: Callable[[], int] = monotonic_ms,
) -> Analysis:
    """Read a sample of a topic; `progress` is called with the number of messages read.

    Raise NoRoute if the topic does not exist.
    """
    bounds = bounds or Bounds()
    if not 0 < bounds.count_max <= COUNT_MAX:
        raise InvalidArgument(f"sample between 1 and {COUNT_MAX:,} messages")
    places = await admin.queues(topic)
    if not 0 < len(places) <= QUEUES_MAX:
        raise InvalidArgument(f"{topic} has {len(places):,} queues to read: at most {QUEUES_MAX:,}")
    brokers = {it.name: it for it in await admin.masters_of(topic)}
    failures: dict[str, str] = {}
    reading = _Reading(bounds, clock_ms, wall_ms())
    room = asyncio.Semaphore(QUEUES_AT_ONCE)

    async def attempt(place: str, work: Awaitable[T]) -> T | None:
        async with room:
            try:
                return await work
            except CometError as error:
                failures[place] = str(error) or type(error).__name__
                return None

    async def sample(queue: _Queue, share: int) -> None:
        async for _ in _read(queue, share, reading):
            progress(reading.collector.count)

    measured = []
    for it in places:
        if (broker := brokers.get(it.broker_name)) is None:
            failures[f"{it.broker_name}:{it.queue_id}"] = "the broker has no master"
        else:
            measured.append(attempt(f"{broker.name}:{it.queue_id}", _span(broker, it, bounds)))
    queues = [it for it in await _together(measured) if it is not None]
    shares = shared([it.length for it in queues], bounds.count_max)
    pairs = zip(queues, shares, strict=True)
    await _together([attempt(it.place, sample(it, share)) for it, share in pairs])
    return _analysis(topic, queues, reading, failures)


async def _together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(it) for it in works]
    return [it.result() for it in started]


async def _span(broker: BrokerAdmin, queue: MessageQueue, bounds: Bounds) -> _Queue:
    place = (queue.topic, queue.queue_id)
    first, end = await broker.min_offset(*place), await broker.max_offset(*place)
    if bounds.begin_ms is not None:
        first = max(first, await broker.search_offset(*place, bounds.begin_ms))
    return _Queue(broker, *place, min(max(0, first), end), end)


def shared(lengths: Sequence[int], count_max: int) -> list[int]:
    """Divide a number of messages equally among queues; longer queues share what short ones do not
    use.

    The sum may exceed `count_max` by one message per queue.
    """
    shares = [0] * len(lengths)
    left, waiting = count_max, len(lengths)
    for at in sorted(range(len(lengths)), key=lengths.__getitem__):
        shares[at] = min(lengths[at], -(-left // waiting))
        left, waiting = max(0, left - shares[at]), waiting - 1
    return shares


def blocks(first: int, end: int, share: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of offsets to read: all of them, or blocks at equal distances."""
    if end - first <= share:
        if end > first:
            yield first, end
        return
    count = -(-share // PULL_COUNT_MAX)
    size = min(share, PULL_COUNT_MAX)
    distance = (end - first - size) / (count - 1) if count > 1 else 0.0
    for at in range(count):
        begin = end - size if at == count - 1 else first + int(at * distance)
        yield begin, begin + size


async def _read(queue: _Queue, share: int, reading: _Reading) -> AsyncIterator[None]:
    for begin, end in blocks(queue.first, queue.end, share):
        offset = begin
        while offset < end and not reading.has_ended():
            count = min(PULL_COUNT_MAX, end - offset)
            pulled = await queue.broker.pull(queue.topic, queue.queue_id, offset, count_max=count)
            for message in pulled.messages:
                if message.queue_offset < end:
                    reading.take(queue.place, message)
            if pulled.next_offset <= offset:
                break
            offset = pulled.next_offset
            yield


def _analysis(
    topic: str, queues: Sequence[_Queue], reading: _Reading, failures: dict[str, str]
) -> Analysis:
    messages = sum(it.length for it in queues)
    first_ms, last_ms = reading.first_ms, reading.last_ms
    passed_s = (last_ms - first_ms) / 1_000 if first_ms is not None and last_ms is not None else 0
    return Analysis(
        topic=topic,
        messages=messages,
        per_s=messages / passed_s if passed_s > 0 else None,
        figures=reading.collector.figures(),
        queues=[
            QueueShare(it.broker.name, it.queue_id, it.length, reading.sampled.get(it.place, 0))
            for it in sorted(queues, key=lambda it: (it.broker.name, it.queue_id))
        ],
        ended=reading.ended,
        unanswered=failures,
    )
