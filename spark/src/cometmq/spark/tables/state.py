# SPDX-License-Identifier: Apache-2.0
"""The answers of one broker in one snapshot, before they become rows."""

import msgspec

from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.stats import QueueTimeSpan, TopicOffset
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig

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
