# SPDX-License-Identifier: Apache-2.0
"""Two brokers on one host beside one, of CometMQ and of Apache RocketMQ.

Each broker has a generator of its own, as in `bench/run.py`; all of them run at the same time. On
a small host, generators and brokers share the cores, so the table also shows the processor time
that each of them took.
"""

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from macro.native import loadgen_command
from macro.process import cpu_seconds
from macro.servers import BROKER_CONF, CREATE_TOPIC, JAVA_HEAP

from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import CometCluster
from cometmq.peers.java import JavaCluster
from cometmq.peers.wire import call

MAKERS: Final[Mapping[str, Callable[[Path, int], Cluster]]] = {
    "CometMQ": lambda folder, count: CometCluster(folder, BROKER_CONF, broker_count=count),
    "Java": lambda folder, count: JavaCluster(
        folder, BROKER_CONF, broker_count=count, heap=JAVA_HEAP
    ),
}
TOPIC: Final = "BENCH_MANY"
QUEUES: Final = 4
LOADS: Final = {
    "send 8 x 32": ("send", {"connections": 8, "in_flight": 32}),
    "send 64 x 1": ("send", {"connections": 64, "in_flight": 1}),
    "pull": ("pull", {"connections": 4}),
}


def create_topic(address: str) -> None:
    """Create the topic of the benchmark at a broker."""
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    answer = call(address, CREATE_TOPIC, fields)
    if answer.code != 0:
        raise SystemExit(f"{address}: {answer.remark}")


def load(cluster: Cluster, name: str, *, seconds: float, warmup: float) -> dict[str, float]:
    """Run the generators of all brokers at once; return the sum of their rates and the cores that
    brokers and generators took.
    """
    mode, shape = LOADS[name]
    options = {**shape, "topic": TOPIC, "seconds": seconds, "warmup": warmup}
    pids = [child.pid for child in cluster.brokers.values()]
    before, started = sum(map(cpu_seconds, pids)), time.monotonic()
    running = [
        subprocess.Popen(
            loadgen_command(mode, place.port, **options), stdout=subprocess.PIPE, text=True
        )
        for place in cluster.layout.brokers
    ]
    reports = [json.loads(one.communicate()[0].splitlines()[-1]) for one in running]
    elapsed = time.monotonic() - started
    return {
        "messages_per_s": sum(one["messages_per_s"] for one in reports),
        "broker_cores": (sum(map(cpu_seconds, pids)) - before) / elapsed,
        "p99_us": max(one["latency_us"]["p99"] for one in reports),
    }


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Two brokers on one host beside one.")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--warmup", type=float, default=2)
    parser.add_argument("--brokers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--server", choices=MAKERS, nargs="*", default=list(MAKERS))
    return parser.parse_args()


def main() -> None:
    """Run all workloads on each number of brokers, and print a table."""
    options = parsed()
    print("| server | brokers | workload | messages [/s] | cores of the brokers | p99 [us] |")
    print("|---|---|---|---|---|---|")
    for server in options.server:
        for count in options.brokers:
            with (
                tempfile.TemporaryDirectory(prefix="many-") as folder,
                MAKERS[server](Path(folder), count) as cluster,
            ):
                for address in cluster.broker_addrs:
                    create_topic(address)
                for name in LOADS:
                    found = load(cluster, name, seconds=options.seconds, warmup=options.warmup)
                    print(
                        f"| {server} | {count} | {name} | {found['messages_per_s']:,.0f}"
                        f" | {found['broker_cores']:.2f} | {found['p99_us']:,.0f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
