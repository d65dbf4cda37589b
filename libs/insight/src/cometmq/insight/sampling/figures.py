# SPDX-License-Identifier: Apache-2.0
"""Statistics of a sample of a topic's messages: sizes, keys, tags, producers, ages (pure)."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from cometmq.client.message import DamagedMessage, MessageExt, UnreadableMessage

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
