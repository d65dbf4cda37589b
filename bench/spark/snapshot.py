# SPDX-License-Identifier: Apache-2.0
"""Time a snapshot of many groups, and measure the broker's loop lag during it."""

import asyncio
import json
import os
import re
import statistics
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from cometmq.client import Message, Producer
from cometmq.peers.comet import CometCluster
from cometmq.peers.ports import free_port
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.offsets import ConsumerOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.topic_config import (
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
)
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.collect.snapshot import take, write

GROUPS, TOPICS, QUEUES = 10_000, 1_000, 8
UNREAD_TOPICS = 200
"""Number of topics with unread messages: for these, the snapshot queries message ages."""
ROUNDS = 3
IDLE_S = 10.0
"""How long to measure an idle broker's loop lag, which other processes cause."""
SECONDS_MAX, LOOP_LAG_MAX_S = 10.0, 0.020
_BUCKET = re.compile(r'^cometmq_loop_lag_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)


def prepare(config: Path) -> None:
    """Write the tables that the broker loads when it starts."""
    config.mkdir(parents=True)
    topics = {
        name: TopicConfig(topic_name=name, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        for name in (f"topic-{number:04d}" for number in range(TOPICS))
    }
    groups = {
        name: SubscriptionGroupConfig(group_name=name)
        for name in (f"group-{number:05d}" for number in range(GROUPS))
    }
    offsets = {
        f"topic-{number % TOPICS:04d}@group-{number:05d}": dict.fromkeys(range(QUEUES), 0)
        for number in range(GROUPS)
    }
    for name, table in (
        ("topics", TopicConfigTable(topic_config_table=topics)),
        ("subscriptionGroup", SubscriptionGroupTable(subscription_group_table=groups)),
        ("consumerOffset", ConsumerOffsetTable(offset_table=offsets)),
    ):
        (config / f"{name}.json").write_bytes(encode_json(table))


async def send(namesrv: str, broker: str) -> None:
    """Send one unread message to each queue of some topics."""
    async with Producer("bench", namesrv) as producer:
        for number in range(UNREAD_TOPICS):
            topic = f"topic-{number:04d}"
            for queue_id in range(QUEUES):
                await producer.send(
                    Message(topic, b"x"), queue=MessageQueue(topic, broker, queue_id)
                )


def lags(port: int) -> dict[float, float]:
    """Return the broker's histogram of loop lags: counts by upper bound in seconds."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        text = reply.read().decode()
    return {float(bound): float(count) for bound, count in _BUCKET.findall(text)}


def quantile(before: dict[float, float], after: dict[float, float], part: float) -> float:
    """Return a quantile of the lags between two readings, interpolated within a bucket."""
    low = below = 0.0
    total = max(after.values()) - max(before.values())
    for bound in sorted(after):
        count = after[bound] - before[bound]
        if count >= part * total:
            return low + (bound - low) * (part * total - below) / max(count - below, 1e-9)
        low, below = bound, count
    return low


def main() -> None:
    """Print the median of all rounds as JSON."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-") as name:
        folder = Path(name)
        cluster = CometCluster(folder / "cluster", {"adminHttpPort": port})
        prepare(cluster.store_dir / "config")
        with cluster:
            asyncio.run(send(cluster.namesrv_addr, cluster.broker_names[0]))
            begun = lags(port)
            time.sleep(IDLE_S)
            before, seconds, rows = lags(port), [], {}
            for number in range(ROUNDS):
                begin = time.perf_counter()
                snapshot = asyncio.run(take(CollectSettings(namesrv=cluster.namesrv_addr), number))
                rows = write(folder / "history", snapshot)
                seconds.append(time.perf_counter() - begin)
            late, idle = quantile(before, lags(port), 0.99), quantile(begun, before, 0.99)
    result = {
        "rows": rows,
        "seconds": round(statistics.median(seconds), 2),
        "all": [round(it, 2) for it in seconds],
        "loop_lag_p99_ms": round(late * 1000, 1),
        "loop_lag_p99_ms_idle": round(idle * 1000, 1),
        "load_average": os.getloadavg()[0],
        "reached": statistics.median(seconds) <= SECONDS_MAX and late <= LOOP_LAG_MAX_S,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
