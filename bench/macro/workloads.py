# SPDX-License-Identifier: Apache-2.0
"""The workloads and their targets, which define the rows of the performance table."""

from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from macro.setups import PLAIN, Setup

Metric: TypeAlias = Literal[
    "messages_per_s",
    "pairs_per_s",
    "delivered_per_s",
    "p50_us",
    "p99_us",
    "p999_us",
    "p9999_us",
    "cpu_seconds_per_million",
    "anonymous_bytes",
    "idle_cpus",
    "disk_bytes",
    "start_s",
    "recovery_s",
    "share_of_single",
    "share_of_plain",
    "share_of_syncs",
    "device_syncs_per_s",
    "native_share",
    "slave_anonymous_bytes",
    "catch_up_bytes_per_s",
    "share_of_copy",
    "p99_growth",
    "p99_growth_of_copy",
]

MORE_IS_BETTER: Final = frozenset(
    {
        "messages_per_s", "pairs_per_s", "delivered_per_s", "share_of_single",
        "share_of_plain", "share_of_syncs", "device_syncs_per_s", "native_share",
        "catch_up_bytes_per_s", "share_of_copy",
    }
)  # fmt: skip
MEGABYTE: Final = 1_000_000
SLAVE_BYTES_MAX: Final = 90 * MEGABYTE
MESSAGES_MANY: Final = 1_000_000
MESSAGES_DELAYED: Final = 100_000
TRANSACTION_PAIRS: Final = 100_000


@dataclass(frozen=True)
class Target:
    """A bound on CometMQ's value (if `of_java` is false) or on its ratio to Java's value."""

    metric: Metric
    bound: float
    of_java: bool = True

    def is_met(self, *, comet: float, java: float | None) -> bool | None:
        """Return whether the target is met; None if it is a ratio and Java's value is missing."""
        if not self.of_java:
            value = comet
        elif java is None or java == 0:
            return None
        else:
            value = comet / java
        return value >= self.bound if self.metric in MORE_IS_BETTER else value <= self.bound


@dataclass(frozen=True)
class Load:
    """A rate workload: the generator runs once per round and server."""

    name: str
    title: str
    mode: Literal["send", "pull", "orderly"]
    connections: int
    in_flight: int
    body_bytes: int
    targets: tuple[Target, ...]
    preload: int = 0  # messages to send first, into the same topic
    queues: int = 4  # per topic
    topics: int = 1
    groups: int = 1
    properties: str = ""  # of the messages; each # is replaced by a digit that changes
    expression: str = ""  # SQL that the consumers' heartbeat asks for
    setup: Setup = PLAIN
    plain: str = ""  # the workload that differs only in its configuration, which is the default

    @property
    def topic(self) -> str:
        """The workload's topic, or the prefix of its topics if there are several."""
        return "BENCH_" + self.name.replace("-", "_")

    @property
    def topic_names(self) -> list[str]:
        """Return the topics of the workload, named as the generator names them."""
        if self.topics == 1:
            return [self.topic]
        return [f"{self.topic}_{number:04d}" for number in range(self.topics)]

    @property
    def places(self) -> dict[str, object]:
        """Return the generator's options for topics, queues, groups and message content."""
        return {
            "topic": self.topic,
            "topics": self.topics,
            "queues": self.queues,
            "groups": self.groups,
            "body_bytes": self.body_bytes,
            "properties": self.properties,
        }


@dataclass(frozen=True)
class Scenario:
    """A workload that takes more than one run of the generator; its code is in `scenarios.py`."""

    name: str
    title: str
    targets: tuple[Target, ...]


PLAIN_LOADS: Final = (
    Load(
        "pull", "pull 32 per request, 4 queues, hot", "pull",
        connections=4, in_flight=1, body_bytes=128, preload=400_000,
        targets=(Target("messages_per_s", 2.0),),
    ),
    Load(
        "send-64x1", "send 128 B, 64 connections x 1 in flight", "send",
        connections=64, in_flight=1, body_bytes=128,
        targets=(Target("messages_per_s", 2.2), Target("p99_us", 0.35)),
    ),
    Load(
        "send-8x32", "send 128 B, 8 connections x 32 in flight", "send",
        connections=8, in_flight=32, body_bytes=128,
        targets=(Target("messages_per_s", 5.0), Target("p99_us", 0.15)),
    ),
    Load(
        "send-1k", "send 1 KiB, 8 connections x 32 in flight", "send",
        connections=8, in_flight=32, body_bytes=1024,
        targets=(Target("messages_per_s", 3.5), Target("p99_us", 0.25)),
    ),
    Load(
        "send-1x1", "send 128 B, 1 connection x 1 in flight", "send",
        connections=1, in_flight=1, body_bytes=128,
        targets=(Target("p50_us", 0.75),),
    ),
    Load(
        "pull-sql", "pull with an SQL filter that half of the messages pass, 4 queues", "pull",
        connections=4, in_flight=1, body_bytes=128, preload=200_000,
        properties="region=eu,level=#", expression="region = 'eu' AND level BETWEEN 0 AND 4",
        targets=(Target("messages_per_s", 1.5),),
    ),
    Load(
        "orderly", "orderly consumption: 16 consumers, a queue each, lock and pull in turn",
        "orderly", connections=16, in_flight=1, body_bytes=128, preload=200_000, queues=16,
        targets=(Target("messages_per_s", 1.3),),
    ),
    Load(
        "topics-1000", "send 128 B to 1,000 topics x 4 queues, 8 connections x 32 in flight",
        "send", connections=8, in_flight=32, body_bytes=128, topics=1_000,
        targets=(Target("messages_per_s", 4.0),),
    ),
    Load(
        "groups-64", "pull 32 per request, 64 groups on one topic, 4 queues each", "pull",
        connections=256, in_flight=1, body_bytes=128, preload=200_000, groups=64,
        targets=(Target("messages_per_s", 2.0),),
    ),
)  # fmt: skip

PLAIN_REPLICATED: Final = (
    Load(
        "replicated-64x1", "two copies: send 128 B, 64 connections x 1 in flight", "send",
        connections=64, in_flight=1, body_bytes=128,
        targets=(
            Target("messages_per_s", 1.5), Target("p99_us", 0.35),
            Target("slave_anonymous_bytes", SLAVE_BYTES_MAX, of_java=False),
        ),
    ),
    Load(
        "replicated-8x32", "two copies: send 128 B, 8 connections x 32 in flight", "send",
        connections=8, in_flight=32, body_bytes=128,
        targets=(
            Target("messages_per_s", 1.5), Target("p99_us", 0.35),
            Target("slave_anonymous_bytes", SLAVE_BYTES_MAX, of_java=False),
        ),
    ),
)  # fmt: skip
"""Sends that wait for both copies; `macro/replication.py` runs them."""


def secured(name: str, setup: Setup, *targets: Target) -> Load:
    """Return a plain workload in another configuration, named after both."""
    load = next(load for load in (*PLAIN_LOADS, *PLAIN_REPLICATED) if load.name == name)
    title = f"{setup.title}: {load.title}"
    return replace(
        load, name=name + setup.suffix, title=title, setup=setup, plain=name, targets=targets
    )


ACCOUNTS: Final = Setup(accounts=True)
SYNC_FLUSH: Final = Setup(sync_flush=True)
TLS: Final = Setup(tls=True)
ACCOUNTS_TLS: Final = Setup(accounts=True, tls=True)
_OF_PLAIN: Final = Target("share_of_plain", 0.8, of_java=False)

LOADS: Final = (
    *PLAIN_LOADS,
    secured("pull", ACCOUNTS, Target("messages_per_s", 2.0), _OF_PLAIN),
    secured("send-8x32", ACCOUNTS, Target("messages_per_s", 4.0), _OF_PLAIN),
    secured("send-1x1", SYNC_FLUSH, Target("share_of_syncs", 0.8, of_java=False)),
    secured("send-64x1", SYNC_FLUSH, Target("messages_per_s", 3.0)),
    secured("send-8x32", SYNC_FLUSH, Target("messages_per_s", 5.0)),
    secured("pull", TLS, Target("messages_per_s", 2.0)),
    secured("send-64x1", TLS, Target("messages_per_s", 3.0)),
    secured("send-8x32", TLS, Target("messages_per_s", 3.0)),
    secured("pull", ACCOUNTS_TLS, Target("messages_per_s", 2.0)),
    secured("send-8x32", ACCOUNTS_TLS, Target("messages_per_s", 3.0)),
)
"""Sends and pulls on a single broker; `macro/scenarios.py` runs them."""

REPLICATED: Final = (
    *PLAIN_REPLICATED,
    secured("replicated-64x1", SYNC_FLUSH, Target("messages_per_s", 1.5)),
    secured("replicated-8x32", SYNC_FLUSH, Target("messages_per_s", 1.5)),
)

CATCH_UP: Final = Scenario(
    "catch-up",
    "two copies: the slave catches up while 1,000 messages/s are sent",
    targets=(
        Target("share_of_copy", 0.6, of_java=False),
        Target("p99_growth", 2.0, of_java=False),
        Target("slave_anonymous_bytes", SLAVE_BYTES_MAX, of_java=False),
    ),
)
DELAY: Final = Scenario(
    "delay",
    "100,000 messages delayed by 1 s, 8 connections x 32 in flight",
    targets=(Target("messages_per_s", 1.0), Target("delivered_per_s", 2.0)),
)
TRANSACTIONS: Final = Scenario(
    "transactions",
    "100,000 transactions: a half message and its commit, 8 connections x 8 in flight",
    targets=(Target("pairs_per_s", 2.5), Target("p99_us", 0.5)),
)
MIXED: Final = Scenario(
    "mixed",
    "accounts, TLS, 10,000 messages/s: 10 topics, tags, 5 % retries, 5 % delayed, a slow group",
    targets=(Target("native_share", 0.95, of_java=False),),
)
MILLION: Final = Scenario(
    "million",
    "1 M messages of 128 B: memory, idle time, disk, recovery after kill -9",
    targets=(
        Target("anonymous_bytes", 1 / 20),
        Target("anonymous_bytes", 90 * MEGABYTE, of_java=False),
        Target("idle_cpus", 0.005, of_java=False),
        Target("recovery_s", 1.0),
    ),
)
START: Final = Scenario(
    "start",
    "start on an empty store to the first accepted message",
    targets=(Target("start_s", 0.25), Target("start_s", 0.3, of_java=False)),
)

WORKLOADS: Final[tuple[Load | Scenario, ...]] = (
    *LOADS, *REPLICATED, MIXED, CATCH_UP, DELAY, TRANSACTIONS, MILLION, START
)  # fmt: skip
