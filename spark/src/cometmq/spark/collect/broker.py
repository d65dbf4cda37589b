# SPDX-License-Identifier: Apache-2.0
"""Queries one broker for a snapshot, in an order that keeps lags correct.

Invariant
    Consumer offsets are read before queue ends, so an offset never exceeds the end of its queue.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import (
    CometError,
    CommandError,
    ConsumerNotOnline,
    ServerError,
    TopicNotExist,
)
from cometmq.remoting.message.record import scan_record
from cometmq.remoting.names import SCHEDULE_GROUP, SCHEDULE_TOPIC
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings
from cometmq.spark.cluster.pulling import PULL_CODES, pull_header
from cometmq.spark.options.definitions import READER_GROUP
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.tables.rows import BrokerState, Pair, Sample, TimeSpan, is_filter


class CollectSettings(msgspec.Struct, frozen=True, kw_only=True):
    namesrv: str = ""
    """`host:port;host:port`; if empty, the value of the environment variable NAMESRV_ADDR."""
    namesrv_url: str = ""
    """HTTP address that lists name servers."""
    cluster: str | None = None
    """Restricts the collector to the brokers of this cluster."""
    timestamp_budget: Annotated[int, Meta(ge=0)] = 2000
    """Message-age queries per broker and snapshot; each may read the commit log from disk."""
    sample_tags: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Unread messages tested per filtered topic of a group; 0 tests none."""
    pipeline: Annotated[int, Meta(ge=1, le=1024)] = 32
    """Concurrent queries per broker."""
    timeout_ms: Annotated[int, Meta(ge=1)] = 15_000
    """Timeout of one query."""
    reply_bytes_max: Annotated[int, Meta(ge=1024)] = 256 * 1024 * 1024
    """Largest accepted answer; all offsets of a large broker arrive in a single one."""
    credentials: SessionCredentials | None = None
    tls: TlsSettings = TlsSettings()


SAMPLED_PAIRS_MAX: Final = 100
"""Maximum number of sampled pairs of topic and group per broker and snapshot; each pair costs about
a hundred pulls.
"""

T = TypeVar("T")


async def ask(broker: BrokerAdmin, state: BrokerState, settings: CollectSettings) -> None:
    """Run all queries of one snapshot against a broker, and store the answers in its state."""
    round_ = _Round(broker, state, settings)
    await round_.ask_itself()
    await round_.ask_offsets()
    await round_.each(sorted(state.topics), round_.ask_topic)
    await round_.each(_groups(state), round_.ask_group)
    await round_.each(behind(state, settings.timestamp_budget), round_.ask_times)
    if settings.sample_tags:
        await round_.each(filtered(state, SAMPLED_PAIRS_MAX), round_.ask_matches)


class _Round:
    def __init__(self, broker: BrokerAdmin, state: BrokerState, settings: CollectSettings) -> None:
        self._broker = broker
        self._state = state
        self._pipeline = settings.pipeline
        self._sample_count = settings.sample_tags

    async def each(self, items: Iterable[T], ask_one: Callable[[T], Awaitable[None]]) -> None:
        """Process items concurrently, `pipeline` at a time; the first failure cancels the rest."""
        left = iter(items)

        async def work() -> None:
            for item in left:
                await ask_one(item)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._pipeline):
                    tasks.create_task(work())
        except* Exception as failures:
            raise failures.exceptions[0] from failures

    async def ask_itself(self) -> None:
        broker, state = self._broker, self._state
        try:
            state.runtime = await broker.runtime_info()
        except ServerError:
            state.runtime = {}  # RocketMQ has no runtime figures in its first seconds
        state.asked_ms = wall_ms()
        state.config = await broker.config()
        state.topics = await broker.topics()
        state.groups = await broker.groups()

    async def ask_offsets(self) -> None:
        state = self._state
        try:
            table = (await self._broker.consumer_offsets()).offset_table
            state.offsets = {_pair(name): queues for name, queues in table.items() if "@" in name}
        except CommandError as refusal:  # proxies, and brokers that restrict accounts
            await self.each(sorted(state.groups), self.ask_offsets_of)
            # Every group was rejected as well, so the account lacks the right, and the broker
            # fails.
            if state.groups and not state.consume_tps:
                raise refusal from None
        state.offsets_ms = wall_ms()
        try:
            delays = await self._broker.delay_offsets()
        except CommandError:  # a proxy, or an account without the right: this backlog is unknown
            return
        if passed := delays.passed():
            state.offsets[SCHEDULE_TOPIC, SCHEDULE_GROUP] = {
                level - 1: offset for level, offset in passed.items()
            }

    async def ask_offsets_of(self, group: str) -> None:
        """Query the offsets of one group, for brokers that reject the query for all groups."""
        try:
            stats = await self._broker.consume_stats(group)
        except CommandError:
            return  # deleted since it was listed
        self._state.consume_tps[group] = stats.consume_tps
        for queue, found in stats.offset_table.items():
            if found.consumer_offset > 0:  # 0 may also mean that none is committed
                offsets = self._state.offsets.setdefault((queue.topic, group), {})
                offsets[queue.queue_id] = found.consumer_offset

    async def ask_topic(self, topic: str) -> None:
        try:
            stats = await self._broker.topic_stats(topic)
        except TopicNotExist:
            return  # deleted since it was listed
        self._state.stats_ms[topic] = wall_ms()
        self._state.stats[topic] = {
            queue.queue_id: found for queue, found in stats.offset_table.items()
        }

    async def ask_group(self, group: str) -> None:
        try:
            self._state.connections[group] = await self._broker.consumer_connections(group)
        except ConsumerNotOnline:
            return

    async def ask_times(self, pair: Pair) -> None:
        try:
            spans = await self._broker.time_spans(*pair)
        except TopicNotExist:
            return
        except CommandError:  # RocketMQ fails on queues without files
            await self._ask_consumed(pair)
            return
        asked_ms = wall_ms()
        self._state.spans[pair] = {
            span.message_queue.queue_id: TimeSpan(asked_ms, span)
            for span in spans
            if span.message_queue is not None
        }

    async def _ask_consumed(self, pair: Pair) -> None:
        """Query when the last consumed messages were stored; the age of the next messages stays
        unknown.
        """
        topic, group = pair
        try:
            stats = await self._broker.consume_stats(group, topic)
        except CommandError:
            return  # deleted since it was listed
        self._state.consumed_ms[pair] = {
            queue.queue_id: found.last_timestamp for queue, found in stats.offset_table.items()
        }

    async def ask_matches(self, pair: Pair) -> None:
        self._state.samples[pair] = await sample(
            self._broker, self._state, pair, self._sample_count
        )


def _pair(name: str) -> Pair:
    topic, _, group = name.partition("@")
    return topic, group


def _groups(state: BrokerState) -> list[str]:
    with_offsets = {group for _, group in state.offsets if group != SCHEDULE_GROUP}
    return sorted(with_offsets | set(state.groups))


def behind(state: BrokerState, budget: int) -> list[Pair]:
    """Select up to `budget` pairs of topic and group with unread messages; later snapshots select
    others.
    """
    return rotated((pair for pair in state.offsets if _is_behind(state, pair)), state, budget)


def filtered(state: BrokerState, budget: int) -> list[Pair]:
    """Select up to `budget` pairs that have unread messages and whose group filters the topic."""
    pairs = (
        pair
        for pair in state.offsets
        if _is_behind(state, pair)
        and pair[1] in state.connections
        and is_filter(state.connections[pair[1]], pair[0])
    )
    return rotated(pairs, state, budget)


def rotated(pairs: Iterable[Pair], state: BrokerState, budget: int) -> list[Pair]:
    """Select up to `budget` pairs of topic and group.

    The selection rotates with the snapshot id, so no state needs to survive between snapshots.
    """
    known = sorted(pairs)
    if len(known) <= budget:
        return known
    first = state.snapshot_id * budget % len(known)
    return (known + known)[first : first + budget]


def _is_behind(state: BrokerState, pair: Pair) -> bool:
    topic, group = pair
    stats = state.stats.get(topic, {})
    return group != SCHEDULE_GROUP and any(
        queue in stats and offset < stats[queue].max_offset
        for queue, offset in state.offsets[pair].items()
    )


async def sample(broker: BrokerAdmin, state: BrokerState, pair: Pair, count: int) -> Sample:
    """Test `count` unread messages of a group in a topic; an error ends the sample early."""
    tried = matched = 0
    with suppress(CometError):
        for place in places(unread(state, pair), count):
            matched += await _matches(broker, state, pair, place)
            tried += 1
    return Sample(tried, matched)


def unread(state: BrokerState, pair: Pair) -> dict[int, range]:
    topic, _ = pair
    found = state.stats.get(topic, {})
    return {
        queue: range(max(offset, found[queue].min_offset), found[queue].max_offset)
        for queue, offset in sorted(state.offsets.get(pair, {}).items())
        if queue in found
    }


def places(queues: dict[int, range], count: int) -> Iterator[tuple[int, int]]:
    """Yield `count` evenly spread (queue, offset) positions, or all if there are fewer."""
    ends = dict(zip(queues, accumulate(len(it) for it in queues.values()), strict=True))
    total = max(ends.values(), default=0)
    chosen = min(count, total)
    for number in range(chosen):
        place = (2 * number + 1) * total // (2 * chosen)
        queue = next(it for it, end in ends.items() if place < end)
        yield queue, queues[queue][place - ends[queue]]


async def _matches(
    broker: BrokerAdmin, state: BrokerState, pair: Pair, place: tuple[int, int]
) -> bool:
    """Return whether the message at `place` matches.

    A pull that starts at a matching message returns that message's offset.
    """
    topic, group = pair
    queue_id, offset = place
    wanted = state.connections[group].subscription_table[topic]
    # Pulls use the data source's group, so no consumer group's figures change.
    header = pull_header(
        Queue(topic, state.broker_name, queue_id),
        offset,
        1,
        group=READER_GROUP,
        expression=wanted.sub_string,
        expression_type=wanted.expression_type,
    )
    answer = await broker.invoke(RequestCode.PULL_MESSAGE, header, ok=PULL_CODES)
    return bool(answer.body) and scan_record(answer.body).queue_offset == offset
