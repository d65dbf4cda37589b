# SPDX-License-Identifier: Apache-2.0
"""What one round of questions found at one broker, before it becomes rows."""

import msgspec

from cometmq.remoting.bodies.connections import ConsumerConnections
from cometmq.remoting.bodies.stats import QueueTimeSpan, TopicOffset
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, TopicConfig

Pair = tuple[str, str]
"""Topic and group."""


class TimeSpan(msgspec.Struct, frozen=True, gc=False):
    """How old the messages of a queue are, and when that was asked."""

    asked_ms: int
    span: QueueTimeSpan


class Sample(msgspec.Struct, frozen=True, gc=False):
    """How many unread messages of a group were tried, and how many of them it wants."""

    tried: int
    matched: int


class BrokerState(msgspec.Struct, kw_only=True):
    """One broker at one moment; moments are milliseconds of the collector's clock."""

    snapshot_id: int
    cluster: str
    broker_name: str
    broker_id: int
    address: str
    asked_ms: int
    error: str | None = None
    """Why the broker could not be asked; then everything below is empty."""
    runtime: dict[str, str] = {}
    config: dict[str, str] = {}
    topics: dict[str, TopicConfig] = {}
    groups: dict[str, SubscriptionGroupConfig] = {}
    offsets_ms: int = 0
    """When the consumers' offsets were read: before the queues' ends, so that none is behind."""
    offsets: dict[Pair, dict[int, int]] = {}
    stats_ms: dict[str, int] = {}
    stats: dict[str, dict[int, TopicOffset]] = {}
    """Begin and end by topic and queue."""
    connections: dict[str, ConsumerConnections] = {}
    """Groups with members."""
    spans: dict[Pair, dict[int, TimeSpan]] = {}
    consumed_ms: dict[Pair, dict[int, int]] = {}
    """When the last consumed messages were stored, where the broker tells no more."""
    consume_tps: dict[str, float] = {}
    samples: dict[Pair, Sample] = {}
    """Of groups that want only some messages."""

    def emptied(self, error: str) -> "BrokerState":
        """Return the same broker as one that could not be asked."""
        return BrokerState(
            snapshot_id=self.snapshot_id,
            cluster=self.cluster,
            broker_name=self.broker_name,
            broker_id=self.broker_id,
            address=self.address,
            asked_ms=self.asked_ms,
            error=error,
        )
