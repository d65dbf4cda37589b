# SPDX-License-Identifier: Apache-2.0
"""The SQL filters of consumer groups, by topic, and when they are deleted.

Heartbeats register filters. When the last member leaves, the group's filters are marked dead; a day
later they are deleted, so a group that reconnects within that time keeps its filters. An invalid
expression is not stored, so the group's pulls are refused until it sends a valid one.

Compatibility: consumerFilter.json and the version rules are RocketMQ's. Loaded filters are treated
as if they had died 30 s before startup.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.filters.arriving import ArrivingFilters
from cometmq.broker.filters.bloom import BloomPlaces, bloom_places
from cometmq.broker.filters.compiling import Compiler, Who
from cometmq.broker.filters.sql import EXPRESSION_TYPE, SqlError, SqlFilter, compile_sql
from cometmq.broker.filters.tags import is_tag_type
from cometmq.broker.limits import Room
from cometmq.remoting.bodies.dialect import decode_file, encode_json
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.runtime.limits import LimitReached
from cometmq.store.json_config import JsonTable

EXPRESSION_SHOWN: Final = 200
PIECE_CHARS_MAX: Final = 1 << 20  # of the expressions in a piece of changes
_DEAD_BEFORE_START_MS: Final = 30_000


class FilterData(msgspec.Struct, rename="camel"):
    """One group's filter for one topic, as stored in the file."""

    bloom_filter_data: BloomPlaces | None = None
    born_time: int = 0
    client_version: int = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: int = 0
    expression: str = ""
    expression_type: str = EXPRESSION_TYPE
    topic: str = ""

    @property
    def is_dead(self) -> bool:
        """Whether the group has left or no longer subscribes to the topic."""
        return self.dead_time >= self.born_time

    def compiled(self) -> SqlFilter | None:
        """Return the filter; None if the file contains an invalid expression or an unknown type."""
        if self.expression_type != EXPRESSION_TYPE:
            return None
        try:
            return compile_sql(self.expression)
        except SqlError:
            return None


class TopicFilters(msgspec.Struct, rename="camel"):
    group_filter_data: dict[str, FilterData] = {}
    topic: str = ""


class FilterFile(msgspec.Struct, rename="camel"):
    """The content of consumerFilter.json."""

    filter_data_by_topic: dict[str, TopicFilters] = {}


class FilterChanges(msgspec.Struct, rename="camel"):
    """Changed and removed filters, as the journal stores them."""

    changed: list[FilterData] = []
    removed: list[tuple[str, str]] = []  # group and topic


class BloomSize(msgspec.Struct, frozen=True):
    """The parameters of RocketMQ's bloom filter."""

    error_percent: int = 20
    expected_count: int = 32

    def places(self, group: str, topic: str) -> BloomPlaces:
        return bloom_places(
            f"{group}#{topic}", error_percent=self.error_percent, expected_count=self.expected_count
        )


class FilterSubscriptions:
    def __init__(
        self,
        file: JsonTable[FilterFile] | None = None,
        *,
        clock_ms: Callable[[], int],
        bloom: BloomSize | None = None,
        compiler: Compiler | None = None,
        keep_dead_ms: int = 86_400_000,
        log: Log = NO_LOG,
    ) -> None:
        """Load the file; filters are deleted `keep_dead_ms` after their group has left."""
        self.file = file
        self.is_dirty = False
        self.version = 0
        """Changes whenever a filter that pulls use changes."""
        self.noted: Callable[[], None] | None = None
        self._noted: dict[tuple[str, str], None] = {}  # group and topic
        self._clock_ms = clock_ms
        self.arriving = ArrivingFilters(compiler or Compiler(clock_ms), self._add_ready, log)
        self._bloom = bloom or BloomSize()
        self._keep_dead_ms = keep_dead_ms
        self._log = log
        self._filters: dict[str, dict[str, FilterData]] = {}  # group -> topic -> filter
        self._count = self._chars = 0
        loaded = file.load() if file is not None else None
        for topic in loaded.filter_data_by_topic.values() if loaded is not None else ():
            for data in topic.group_filter_data.values():
                self._load(data)

    @property
    def count(self) -> int:
        """The number of filters, including dead ones."""
        return self._count

    @property
    def chars(self) -> int:
        """The number of characters of all filters."""
        return self._chars

    def get(self, topic: str, group: str) -> FilterData | None:
        """Return a group's filter for a topic, even if the group has left."""
        topics = self._filters.get(group)
        return None if topics is None else topics.get(topic)

    def knows(self, group: str) -> bool:
        """Return whether the group has a filter for any topic."""
        return group in self._filters

    def compiled(self, data: FilterData, who: Who) -> SqlFilter | None:
        """Return the filter, None if it is invalid; raise SystemBusy while it is compiled."""
        if data.expression_type == EXPRESSION_TYPE:
            self.arriving.compiler.check(data.expression, who)
        return data.compiled()

    def register(
        self, group: str, subscriptions: Iterable[SubscriptionData], room: Room | None = None
    ) -> None:
        """Adopt the filters in the subscriptions of a group; mark its filters for other topics as
        dead.

        Raise LimitReached if there is no `room` for a filter, after all other filters were adopted.
        """
        wanted: set[str] = set()
        refusal: LimitReached | None = None
        for subscription in subscriptions:
            wanted.add(subscription.topic)
            if not is_tag_type(subscription.expression_type) and subscription.sub_string:
                try:
                    self._register(group, subscription, room)
                except LimitReached as error:
                    self.arriving.refuse(group, subscription)
                    refusal = error
        for topic, data in self._filters.get(group, {}).items():
            if topic not in wanted:
                self._mark_dead(data)
        self.arriving.cancel(group, wanted)
        if refusal is not None:
            raise refusal

    def unregister(self, group: str) -> None:
        """Mark a group's filters dead after its last member has left."""
        self.arriving.cancel(group)
        for data in self._filters.get(group, {}).values():
            self._mark_dead(data)

    def clean(self) -> None:
        """Delete filters that have been dead for longer than `keep_dead_ms`."""
        oldest_ms = self._clock_ms() - self._keep_dead_ms
        for group, topics in list(self._filters.items()):
            for topic, data in list(topics.items()):
                if data.is_dead and data.dead_time <= oldest_ms:
                    self._remove(group, topic)

    def encode_for_file(self) -> bytes:
        """Return the content of the file and clear `is_dirty`."""
        self.is_dirty = False
        by_topic: dict[str, TopicFilters] = {}
        for group, topics in self._filters.items():
            for topic, data in topics.items():
                filters = by_topic.setdefault(topic, TopicFilters(topic=topic))
                filters.group_filter_data[group] = data
        return encode_json(FilterFile(by_topic))

    def noted_changes(self) -> list[bytes]:
        """Return the noted filters in pieces of limited size, because expressions may be long."""
        return list(self._pieces(list(self._noted)))

    def whole(self) -> Iterator[bytes]:
        """Yield all filters, in pieces in the format of `noted_changes`."""
        return self._pieces([(group, topic) for group, ts in self._filters.items() for topic in ts])

    def _pieces(self, keys: Iterable[tuple[str, str]]) -> Iterator[bytes]:
        piece, chars = FilterChanges(), 0
        for group, topic in keys:
            data = self.get(topic, group)
            if data is None:
                piece.removed.append((group, topic))
            else:
                piece.changed.append(data)
                chars += len(data.expression)
            if chars > PIECE_CHARS_MAX:
                yield encode_json(piece)
                piece, chars = FilterChanges(), 0
        yield encode_json(piece)

    def forget_noted(self) -> None:
        self._noted = {}

    def apply_changes(self, raw: msgspec.Raw) -> None:
        """Apply a piece of `noted_changes` as if it came from the file, without noting it."""
        changes = decode_file(FilterChanges, bytes(raw))
        noted, self.noted = self.noted, None
        replaced = [(data.consumer_group, data.topic) for data in changes.changed]
        for group, topic in [*changes.removed, *replaced]:
            if self.get(topic, group) is not None:
                self._remove(group, topic)
        for data in changes.changed:
            self._load(data)
        self.noted = noted
        self.is_dirty = True

    def become(self, pieces: Sequence[msgspec.Raw]) -> None:
        """Replace all filters with those in another broker's `whole`; note the differences."""
        found = [decode_file(FilterChanges, bytes(piece)) for piece in pieces]
        wanted = {(data.consumer_group, data.topic): data for one in found for data in one.changed}
        known = [(group, topic) for group, ts in self._filters.items() for topic in ts]
        for group, topic in known:
            if self.get(topic, group) != wanted.get((group, topic)):
                self._remove(group, topic)
        for (group, topic), data in wanted.items():
            if self.get(topic, group) is None:
                self._load(data)
                self._note(group, topic)

    def _register(self, group: str, subscription: SubscriptionData, room: Room | None) -> None:
        old = self.get(subscription.topic, group)
        if old is not None and (
            old.expression == subscription.sub_string
            and old.expression_type == subscription.expression_type
        ):
            self._revive(old, subscription.sub_version)
            return
        if room is not None:  # if there is no room for the new one, the old one remains
            self.arriving.admit(group, subscription, room, count=self._count, chars=self._chars)
        if old is not None:
            self._remove(group, subscription.topic, is_replaced=True)
        who = partial(Requester, "broker") if room is None else room.requester
        self.arriving.start(group, subscription, who)

    def _add_ready(self, group: str, subscription: SubscriptionData) -> None:
        topic, expression = subscription.topic, subscription.sub_string
        data = FilterData(
            bloom_filter_data=self._bloom.places(group, topic),
            born_time=self._clock_ms(),
            client_version=subscription.sub_version,
            consumer_group=group,
            expression=expression,
            expression_type=subscription.expression_type,
            topic=topic,
        )
        if data.compiled() is None:
            self.arriving.disown(group, topic)
            self._log.warning(
                "filter.invalid", group=group, topic=topic, expression=expression[:EXPRESSION_SHOWN]
            )
            return
        self._put(data)
        self._note(group, topic)

    def _load(self, data: FilterData) -> None:
        if self.get(data.topic, data.consumer_group) is not None:
            return  # a duplicate in a file that was edited manually
        if data.dead_time == 0:
            data.dead_time = max(data.born_time, self._clock_ms() - _DEAD_BEFORE_START_MS)
        data.dead = data.is_dead
        data.bloom_filter_data = self._bloom.places(data.consumer_group, data.topic)
        self._put(data)

    def _put(self, data: FilterData) -> None:
        self.version += 1
        self._filters.setdefault(data.consumer_group, {})[data.topic] = data
        self._count += 1
        self._chars += len(data.topic) + len(data.expression)

    def _remove(self, group: str, topic: str, *, is_replaced: bool = False) -> None:
        self.version += 1
        topics = self._filters[group]
        data = topics.pop(topic)
        if not topics:
            del self._filters[group]
        self._count -= 1
        self._chars -= len(topic) + len(data.expression)
        if not is_replaced:
            self.arriving.disown(group, topic)
        self._note(group, topic)

    def _mark_dead(self, data: FilterData) -> None:
        if not data.is_dead:
            data.dead_time = self._clock_ms()
            data.dead = True
            self._note(data.consumer_group, data.topic)

    def _revive(self, data: FilterData, version: int) -> None:
        if data.is_dead or data.client_version != version:
            data.dead_time = 0
            data.dead = False
            data.client_version = version
            self.version += 1
            self._note(data.consumer_group, data.topic)

    def _note(self, group: str, topic: str) -> None:
        self.is_dirty = True
        if self.noted is None:
            return
        if not self._noted:
            self.noted()
        self._noted[group, topic] = None


def filter_file(path: str | Path) -> JsonTable[FilterFile]:
    return JsonTable(path, decode=partial(decode_file, FilterFile), encode=encode_json)
