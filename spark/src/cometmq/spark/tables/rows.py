# SPDX-License-Identifier: Apache-2.0
"""Converts a broker's state to rows of the four tables, for files and for the data source.

Rows are tuples in the order of `columns.py`; times are microseconds since 1970.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa

from cometmq.client.admin.figures import read_figures
from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.stats import QueueTimeSpan, TopicOffset
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.names import ALL_TAGS
from cometmq.spark.tables.arrow import table_of
from cometmq.spark.tables.columns import SCHEMA_VERSION, TABLES, topic_kind

Pair = tuple[str, str]
"""Topic and group."""


class TimeSpan(msgspec.Struct, frozen=True, gc=False):
    """Message ages of a queue, and when they were queried."""

    asked_ms: int
    span: QueueTimeSpan


class Sample(msgspec.Struct, frozen=True, gc=False):
    """Unread messages of a group that were tested, and how many of them match its filter."""

    tried: int
    matched: int


class BrokerState(msgspec.Struct, kw_only=True):
    """One broker in one snapshot; times are milliseconds of the collector's clock."""

    snapshot_id: int
    cluster: str
    broker_name: str
    broker_id: int
    address: str
    asked_ms: int
    error: str | None = None
    """Why the broker could not be queried; all fields below are then empty."""
    runtime: dict[str, str] = {}
    config: dict[str, str] = {}
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    offsets_ms: int = 0
    """When consumer offsets were read: before queue ends, so that no lag is negative."""
    offsets: dict[Pair, dict[int, int]] = {}
    stats_ms: dict[str, int] = {}
    stats: dict[str, dict[int, TopicOffset]] = {}
    """Start and end by topic and queue."""
    connections: dict[str, ConsumerConnections] = {}
    """Groups with connected members."""
    spans: dict[Pair, dict[int, TimeSpan]] = {}
    consumed_ms: dict[Pair, dict[int, int]] = {}
    """Store times of the last consumed messages, for brokers that report no other time."""
    consume_tps: dict[str, float] = {}
    samples: dict[Pair, Sample] = {}
    """Only for groups with a filter."""

    def emptied(self, error: str) -> "BrokerState":
        """Return a copy that has only this broker's identity and an error."""
        return BrokerState(
            snapshot_id=self.snapshot_id,
            cluster=self.cluster,
            broker_name=self.broker_name,
            broker_id=self.broker_id,
            address=self.address,
            asked_ms=self.asked_ms,
            error=error,
        )


Row = tuple[Any, ...]

AGE_MS_MAX: Final = 20 * 365 * 86_400_000
"""A higher age means that the message was deleted: RocketMQ then reports "now + 1 ms"."""
_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1
_TIME_MS_MAX: Final = 253_402_300_799_999
_RUNTIME: Final = re.compile(r"(\d+) days?, (\d+) hours?, (\d+) minutes?, (\d+) seconds?")


def micros(ms: int | None) -> int | None:
    """Convert to microseconds; None for values that mean "no time", or a time after the year 9999,
    which no program can read.
    """
    return None if ms is None or not 0 < ms <= _TIME_MS_MAX else ms * 1000


# -- offsets ------------------------------------------------------------------------------------


def offset_rows(state: BrokerState) -> Iterator[Row]:
    min_times = _min_store_times(state)
    for topic, queues in sorted(state.stats.items()):
        kind, read = topic_kind(topic), micros(state.stats_ms[topic])
        perm = state.topics[topic].perm
        for queue, found in sorted(queues.items()):
            yield (
                state.snapshot_id,
                state.cluster,
                state.broker_name,
                topic,
                queue,
                *_bounds(found),
                micros(found.last_update_timestamp),
                micros(min_times.get((topic, queue))),
                read,
                perm,
                kind,
            )


def _bounds(found: TopicOffset) -> tuple[int, int]:
    """Return the start and end of a queue.

    After deleting files, a broker may report a start beyond the end; the end is then used.
    """
    end = max(found.max_offset, 0)
    return min(max(found.min_offset, 0), end), end


def _min_store_times(state: BrokerState) -> dict[tuple[str, int], int]:
    return {
        (topic, queue): it.span.min_time_stamp
        for (topic, _), spans in state.spans.items()
        for queue, it in spans.items()
    }


# -- progress -----------------------------------------------------------------------------------


def progress_rows(state: BrokerState) -> Iterator[Row]:
    """Yield a row per group and queue, for groups with offsets and groups with members."""
    for topic, group in sorted(_pairs(state)):
        queues = state.stats.get(topic)
        if not queues:
            continue  # offsets outlive a deleted topic
        yield from _progress_of(state, (topic, group), queues)


def _pairs(state: BrokerState) -> set[Pair]:
    subscribed = {
        (topic, group)
        for group, members in state.connections.items()
        for topic in members.subscription_table
    }
    return subscribed | set(state.offsets)


def _progress_of(state: BrokerState, pair: Pair, queues: dict[int, TopicOffset]) -> Iterator[Row]:
    topic, group = pair
    offsets, spans = state.offsets.get(pair, {}), state.spans.get(pair, {})
    consumed = state.consumed_ms.get(pair, {})
    members = state.connections.get(group)
    model = None if members is None else members.message_model
    is_filtered = members is not None and is_filter(members, topic)
    read, max_read = micros(state.offsets_ms), micros(state.stats_ms[topic])
    for queue, found in sorted(queues.items()):
        offset = offsets.get(queue)
        yield (
            state.snapshot_id,
            state.cluster,
            group,
            state.broker_name,
            topic,
            queue,
            None if offset is None or offset < 0 else offset,
            None,
            *_bounds(found),
            *_times(spans.get(queue), offset, consumed.get(queue)),
            micros(found.last_update_timestamp),
            read,
            max_read,
            members is not None,
            model,
            is_filtered,
            SCHEMA_VERSION,
        )


def is_filter(members: ConsumerConnections, topic: str) -> bool:
    """Return whether a group subscribes to only part of a topic's messages."""
    subscription = members.subscription_table.get(topic)
    return subscription is not None and subscription.sub_string not in (ALL_TAGS, "")


def _times(
    found: TimeSpan | None, offset: int | None, consumed_ms: int | None
) -> tuple[int | None, int | None, int | None]:
    """Return the store times of the last consumed and the next message, and the age of the next."""
    if found is None:
        return micros(consumed_ms) if offset else None, None, None
    span = found.span
    consumed = micros(span.consume_time_stamp) if offset else None
    age_ms = span.delay_time
    if age_ms > AGE_MS_MAX:  # deleted: the oldest remaining message is next
        age_ms = found.asked_ms - span.min_time_stamp if span.min_time_stamp > 0 else 0
    if age_ms <= 0:
        return consumed, None, None
    return consumed, micros(found.asked_ms - age_ms), age_ms


# -- groups and brokers ---------------------------------------------------------------------------


def group_rows(state: BrokerState) -> Iterator[Row]:
    """Yield a row per group that is configured, has offsets or has members."""
    names = {group for _, group in state.offsets} | set(state.connections) | set(state.groups)
    for group in sorted(names):
        members, config = state.connections.get(group), state.groups.get(group)
        yield (
            state.snapshot_id,
            state.cluster,
            group,
            state.broker_name,
            0 if members is None else len(members.connection_set),
            None if members is None else members.message_model,
            None if members is None else members.consume_type,
            [] if members is None else _expressions(members),
            state.consume_tps.get(group),
            None if config is None else config.retry_max_times,
            None if config is None else config.consume_enable,
            [] if members is None else sorted({it.language for it in members.connection_set}),
            *_samples(state, group),
            micros(state.offsets_ms),
        )


def _samples(state: BrokerState, group: str) -> tuple[list[tuple[str, int]] | None, ...]:
    own = sorted((topic, it) for (topic, of), it in state.samples.items() if of == group)
    if not own:
        return None, None
    return [(topic, it.tried) for topic, it in own], [(topic, it.matched) for topic, it in own]


def _expressions(members: ConsumerConnections) -> list[tuple[str, str]]:
    return sorted((topic, it.sub_string or "") for topic, it in members.subscription_table.items())


def broker_rows(state: BrokerState) -> Iterator[Row]:
    """Yield the broker's row, even if the broker does not answer."""
    figures, config = read_figures(state.runtime), state.config
    is_known = state.error is None
    yield (
        state.snapshot_id,
        state.cluster,
        state.broker_name,
        state.broker_id,
        state.address,
        is_known,
        state.error,
        figures.version or None,
        _integer(config.get("fileReservedTime"), _INT_MAX),
        config.get("deleteWhen"),
        _integer(config.get("diskMaxUsedSpaceRatio"), _INT_MAX),
        {"true": True, "false": False}.get(config.get("cleanFileForciblyEnable", "")),
        figures.commit_log_disk_ratio,
        _integer(state.runtime.get("commitLogMinOffset")),
        _integer(state.runtime.get("commitLogMaxOffset")),
        micros(figures.earliest_message_ms),
        figures.incoming.tps if is_known else None,
        figures.outgoing.tps if is_known else None,
        micros(figures.started_ms),
        _skew_ms(state),
        micros(state.asked_ms),
    )


def _integer(text: str | None, high: int = _LONG_MAX) -> int | None:
    """Parse a number, and limit it to the range of its column."""
    try:
        return None if text is None else max(-high, min(int(text), high))
    except ValueError:
        return None


def _skew_ms(state: BrokerState) -> int | None:
    """Return the broker's clock minus ours; the broker's time is its boot time plus its uptime."""
    boot = _integer(state.runtime.get("bootTimestamp"))
    found = _RUNTIME.search(state.runtime.get("runtime", ""))
    if boot is None or found is None:
        return None
    days, hours, minutes, seconds = (int(it) for it in found.groups())
    uptime_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    skew_ms = boot + uptime_ms - state.asked_ms
    return skew_ms if abs(skew_ms) <= _TIME_MS_MAX else None


ROWS: Final[dict[str, Callable[[BrokerState], Iterator[Row]]]] = {
    "offsets": offset_rows,
    "progress": progress_rows,
    "groups": group_rows,
    "brokers": broker_rows,
}


def table(name: str, states: Iterable[BrokerState]) -> pa.Table:
    rows = [row for state in states for row in ROWS[name](state)]
    return table_of(TABLES[name], rows).sort_by(_ORDER[name])


_ORDER: Final[dict[str, list[tuple[str, str]]]] = {
    "offsets": [("topic", "ascending"), ("broker_name", "ascending"), ("queue_id", "ascending")],
    "progress": [(name, "ascending") for name in ("group", "topic", "broker_name", "queue_id")],
    "groups": [("group", "ascending"), ("broker_name", "ascending")],
    "brokers": [("cluster", "ascending"), ("broker_name", "ascending")],
}
