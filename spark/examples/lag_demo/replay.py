# SPDX-License-Identifier: Apache-2.0
"""Generates a day of snapshots of the demo's groups, one per minute, without a broker.

The groups behave as in the live demo, but over hours, as in production: the report shows curves of
a whole day. All figures are computed from the minute, so every run yields the same day; only the
date differs.
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from cometmq.remoting.bodies.connections import Connection, ConsumerConnections
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.stats import QueueTimeSpan, TopicOffset
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig
from cometmq.spark.collect.snapshot import Snapshot, hour_of, write
from cometmq.spark.lag.history.snapshots import History
from cometmq.spark.lag.history.upkeep import write_hour
from cometmq.spark.tables.columns import TABLES
from cometmq.spark.tables.rows import BrokerState, Pair, TimeSpan, table
from lag_demo.groups import ORDER_QUEUES, ORDERS
from lag_demo.old_messages import HOURS_KEPT, QUEUES, TOPIC

MINUTES: Final = 24 * 60
_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_ORDERS_A_MINUTE: Final = 600
"""Messages per queue; 40 per second in total."""
_SLOW_A_MINUTE: Final = 375
_INVOICES_A_MINUTE: Final = 60
"""Rate at which invoices are stored; they are read at half this rate."""
_INVOICES_BEFORE_MS: Final = 58 * _HOUR_MS
"""How long before the day the first invoice was stored."""
_INVOICES_MINUTES: Final = 34 * 60
_SLOW_FROM, _STOPPED_FROM, _STUCK_FROM, _BACK_FROM = 600, 900, 1200, MINUTES - 5
_PROGRESS: Final = 6
"""Hours between progress messages."""

OffsetAt = Callable[[int, int], int]
"""Maps (queue, minute) to the committed offset."""


def _arrived(minute: int) -> int:
    return 1_000_000 + _ORDERS_A_MINUTE * minute


def _keeps_up(_: int, minute: int) -> int:
    return _arrived(minute)


def _falls_behind(_: int, minute: int) -> int:
    return _arrived(minute) - max(0, minute - _SLOW_FROM) * (_ORDERS_A_MINUTE - _SLOW_A_MINUTE)


def _stops(_: int, minute: int) -> int:
    return _arrived(min(minute, _STOPPED_FROM))


def _hangs(queue: int, minute: int) -> int:
    return _arrived(min(minute, _STUCK_FROM) if queue == 2 else minute)


def _is_set_back(_: int, minute: int) -> int:
    if minute < _BACK_FROM:
        return _arrived(minute)
    return _arrived(_BACK_FROM - 400) + _SLOW_A_MINUTE * (minute - _BACK_FROM)


def _reads_old_ones(_: int, minute: int) -> int:
    return _INVOICES_A_MINUTE // 2 * minute


class _Scene(msgspec.Struct, frozen=True):
    """The behaviour of one group during the day."""

    offset: OffsetAt | None = None
    """None if members keep their own offsets."""
    topic: str = ORDERS
    until: int = MINUTES
    """Minute at which its members disconnect."""


SCENES: Final = {
    "billing": _Scene(_keeps_up),
    "warehouse": _Scene(_falls_behind),
    "newsletter": _Scene(_stops, until=_STOPPED_FROM),
    "search-index": _Scene(_hangs),
    "audit": _Scene(_is_set_back),
    "price-boards": _Scene(),
    "tax-archive": _Scene(_reads_old_ones, TOPIC),
}


def write_day(history: Path, now: datetime, say: Callable[[str], None]) -> None:
    """Write the day that ends now: past hours in compacted form, the current hour as snapshots."""
    last_id = int(now.timestamp()) // 60
    hours: dict[datetime, list[BrokerState]] = {}
    for minute in range(MINUTES):
        state = state_at(last_id, minute)
        hours.setdefault(hour_of(state.snapshot_id), []).append(state)
    *past, newest = hours
    for number, hour in enumerate(past, 1):
        ids = [it.snapshot_id for it in hours[hour]]
        tables = {name: table(name, hours[hour]) for name in TABLES}
        write_hour(History(history), hour, ids, tables)
        if number % _PROGRESS == 0:
            say(f"  hour {number} of 24")
    for state in hours[newest]:
        write(history, Snapshot(state.snapshot_id, [state]))


def state_at(last_id: int, minute: int) -> BrokerState:
    """Simulate the broker's answers at a minute of the day that ends with snapshot `last_id`."""
    snapshot_id = last_id - MINUTES + 1 + minute
    now_ms = snapshot_id * _MINUTE_MS
    offsets = {
        (scene.topic, group): {
            queue: scene.offset(queue, minute) for queue in range(_queues(scene.topic))
        }
        for group, scene in SCENES.items()
        if scene.offset is not None
    }
    state = BrokerState(
        snapshot_id=snapshot_id,
        cluster="DemoCluster",
        broker_name="broker-a",
        broker_id=0,
        address="192.0.2.1:10911",
        asked_ms=now_ms,
        runtime={"brokerVersionDesc": "V4_9_4", "commitLogDiskRatio": "0.61"},
        config={
            "fileReservedTime": str(HOURS_KEPT),
            "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
            "diskMaxUsedSpaceRatio": "75",
        },
        topics={name: TopicConfig(topic_name=name) for name in (ORDERS, TOPIC)},
        groups={name: SubscriptionGroupConfig(group_name=name) for name in SCENES},
        offsets_ms=now_ms,
        offsets=offsets,
        stats_ms={ORDERS: now_ms, TOPIC: now_ms},
        stats={ORDERS: _orders(now_ms, minute), TOPIC: _invoices(now_ms, minute)},
        connections={
            group: _members(group, scene) for group, scene in SCENES.items() if minute < scene.until
        },
    )
    state.spans = {pair: _spans(state, pair, minute) for pair in offsets}
    return state


def _queues(topic: str) -> int:
    return ORDER_QUEUES if topic == ORDERS else QUEUES


def _orders(now_ms: int, minute: int) -> dict[int, TopicOffset]:
    return {
        queue: TopicOffset(last_update_timestamp=now_ms, max_offset=_arrived(minute))
        for queue in range(ORDER_QUEUES)
    }


def _invoices(now_ms: int, minute: int) -> dict[int, TopicOffset]:
    """Build the ends of the old topic; expired messages are deleted in whole hours."""
    end = _INVOICES_MINUTES * _INVOICES_A_MINUTE
    stored_ms = now_ms - minute * _MINUTE_MS - _INVOICES_BEFORE_MS + _INVOICES_MINUTES * _MINUTE_MS
    due_minutes = minute + (_INVOICES_BEFORE_MS - HOURS_KEPT * _HOUR_MS) // _MINUTE_MS
    deleted = max(0, due_minutes // 60 * 60) * _INVOICES_A_MINUTE
    return {queue: TopicOffset(stored_ms, end, min(deleted, end)) for queue in range(QUEUES)}


def _members(group: str, scene: _Scene) -> ConsumerConnections:
    return ConsumerConnections(
        connection_set=[Connection(client_id=f"192.0.2.7@{group}")],
        message_model="BROADCASTING" if scene.offset is None else "CLUSTERING",
        subscription_table={scene.topic: SubscriptionData(topic=scene.topic, sub_string="*")},
    )


def _spans(state: BrokerState, pair: Pair, minute: int) -> dict[int, TimeSpan]:
    """Build the message ages that a broker reports for queues with unread messages."""
    topic, _ = pair
    now_ms = state.offsets_ms
    return {
        queue: TimeSpan(
            now_ms,
            QueueTimeSpan(
                consume_time_stamp=_stored_ms(topic, offset - 1, now_ms, minute),
                delay_time=now_ms - _stored_ms(topic, offset, now_ms, minute),
            ),
        )
        for queue, offset in state.offsets[pair].items()
        if offset < state.stats[topic][queue].max_offset
    }


def _stored_ms(topic: str, offset: int, now_ms: int, minute: int) -> int:
    begin_ms = now_ms - minute * _MINUTE_MS
    if topic == ORDERS:
        return begin_ms + (offset - _arrived(0)) * _MINUTE_MS // _ORDERS_A_MINUTE
    return begin_ms - _INVOICES_BEFORE_MS + offset * _MINUTE_MS // _INVOICES_A_MINUTE
