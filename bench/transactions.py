# SPDX-License-Identifier: Apache-2.0
"""Compare transactions with Java RocketMQ 4.9.4: pairs per second, and bytes written while open.

    .venv/bin/python bench/transactions.py --rounds 3 --open 100000

A pair is a half message and its commit; like Java's producer, the generator does not wait for an
answer to the commit. A sample ends when all commits have taken effect. CometMQ runs with its
txn-checker, whereas Java's broker checks transactions itself. To measure writes, `--open`
transactions remain open: the producer is asked about each of them several times and answers
"unknown", while the growth of the log is measured.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from macro.native import BenchError, build
from macro.process import prefer

from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import CometCluster
from cometmq.peers.java import JavaCluster
from cometmq.peers.processes import Child, wait_until
from cometmq.peers.wire import call
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat, ProducerData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock

GROUP: Final = "BENCH_GROUP"
TOPIC: Final = "BENCH_transactions"
JAVA_HEAP: Final = "2g"
BROKER: Final = {"flushDiskType": "ASYNC_FLUSH"}
RUNTIME_INFO: Final = 28
CREATE_TOPIC: Final = 17
GET_MAX_OFFSET: Final = 30
QUEUES: Final = 4
COMMITS_TIMEOUT_S: Final = 120.0
CHECKS: Final = {
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 1_000,
}
MAKERS: Final = ("comet", "java")
PAIRS_PER_S_TARGET: Final = 2.5
P99_TARGET: Final = 0.5
WRITES_TARGET: Final = 0.2
QUESTIONS_TIMEOUT_S: Final = 1_800.0


def cluster_of(maker: str, folder: Path, checks: Mapping[str, object]) -> Cluster:
    """Return the cluster of one implementation, with these settings for transaction checks."""
    if maker == "java":
        return JavaCluster(folder, BROKER, transaction_conf=checks, heap=JAVA_HEAP)
    own = {**checks, "questionsPerSecond": 1_000_000}
    return CometCluster(folder, BROKER, transaction_conf=own)


def transact(cluster: Cluster, *options: object, may_refuse: bool = False) -> dict[str, Any]:
    """Run the generator; raise BenchError for rejected requests unless `may_refuse` is set."""
    port = cluster.layout.brokers[0].port
    command = [str(build("transact")), "--port", str(port), "--topic", TOPIC, "--group", GROUP]
    done = subprocess.run(
        [*command, *map(str, options)], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        raise BenchError(f"transact: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    if report["errors"] and not may_refuse:
        raise BenchError(f"{report['errors']} requests were refused: codes {report['codes']}")
    return report


def create_topic(cluster: Cluster) -> None:
    fields = {
        "topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    answer = call(cluster.broker_addrs[0], CREATE_TOPIC, fields)
    if answer.code:
        raise BenchError(f"the topic is refused: {answer.remark}")


def measure_pairs(folder: Path, rounds: int, pairs: int, *, is_preferred: bool) -> None:
    """Measure pairs on both implementations alternately, on long-running servers."""
    rates: dict[str, list[float]] = {maker: [] for maker in MAKERS}
    slowest: dict[str, list[float]] = {maker: [] for maker in MAKERS}
    with ExitStack() as stack:
        clusters = {
            maker: stack.enter_context(cluster_of(maker, folder / maker, {})) for maker in MAKERS
        }
        for cluster in clusters.values():
            for child in _servers(cluster) if is_preferred else ():
                prefer(child.pid)
            create_topic(cluster)
            _pairs(cluster, pairs, may_refuse=True)
        for _ in range(rounds):
            for maker, cluster in clusters.items():
                os.sync()
                rate, p99 = _pairs(cluster, pairs)
                rates[maker].append(rate)
                slowest[maker].append(p99)
    say("pairs per second", _medians(rates), f"target >= {PAIRS_PER_S_TARGET}")
    say("p99 of a half message, us", _medians(slowest), f"target <= {P99_TARGET}")


def _pairs(cluster: Cluster, count: int, *, may_refuse: bool = False) -> tuple[float, float]:
    """Return the pairs committed per second, and the 99th percentile of half-message sends."""
    before = _length(cluster)
    start = time.monotonic()
    report = transact(cluster, "--count", count, may_refuse=may_refuse)
    stored = report["messages_in_all"]
    wait_until(lambda: _length(cluster) - before >= stored, COMMITS_TIMEOUT_S, "all commits")
    return count / (time.monotonic() - start), report["latency_us"]["p99"]


def _length(cluster: Cluster) -> int:
    fields = ({"topic": TOPIC, "queueId": str(queue_id)} for queue_id in range(QUEUES))
    answers = (call(cluster.broker_addrs[0], GET_MAX_OFFSET, each) for each in fields)
    return sum(int(answer.fields["offset"]) for answer in answers)


def _medians(samples: Mapping[str, list[float]]) -> dict[str, float]:
    return {maker: statistics.median(values) for maker, values in samples.items()}


def measure_writes(folder: Path, open_count: int, rounds: int) -> None:
    """Measure how much transaction checks write, one implementation after the other."""
    logs: dict[str, float] = {}
    disks: dict[str, float] = {}
    for maker in MAKERS:
        with cluster_of(maker, folder / f"{maker}-open", CHECKS) as cluster:
            create_topic(cluster)
            logs[maker], disks[maker] = asyncio.run(_asked(cluster, open_count, rounds))
    about = f"{open_count:,} open transactions, {rounds} questions each"
    say(f"log grows by, bytes ({about})", logs, f"target <= {WRITES_TARGET}")
    say("written to the disk by broker and txn-checker, bytes", disks, "")


async def _asked(cluster: Cluster, open_count: int, rounds: int) -> tuple[int, int]:
    """Return how much the log grew during the checks, and the total number of bytes written."""
    await asyncio.to_thread(transact, cluster, "--count", open_count, "--leave-open")
    count = 0

    def check(_: None, _call: Call[Any]) -> Reply:
        nonlocal count
        count += 1
        return OK

    client = RemotingClient(
        ClientSettings(),
        clock_ms=SystemClock().monotonic_ms,
        handlers={RequestCode.CHECK_TRANSACTION_STATE: check},
    )
    before = _log_end(cluster), _written(cluster)
    body = encode_json(Heartbeat(client_id="bench", producer_data_set=[ProducerData(GROUP)]))
    deadline = time.monotonic() + QUESTIONS_TIMEOUT_S
    try:
        while count < open_count * rounds:
            if time.monotonic() > deadline:
                raise BenchError(f"{count} questions in {QUESTIONS_TIMEOUT_S:.0f} s")
            await client.invoke(
                cluster.broker_addrs[0], RequestCode.HEART_BEAT, None, body, timeout_ms=30_000
            )
            await asyncio.sleep(0.2)
    finally:
        await client.close()
    return _log_end(cluster) - before[0], _written(cluster) - before[1]


def _log_end(cluster: Cluster) -> int:
    answer = call(cluster.broker_addrs[0], RUNTIME_INFO, {})
    return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])


def _servers(cluster: Cluster) -> list[Child]:
    checker = cluster.txn_checker if isinstance(cluster, CometCluster) else None
    return [*cluster.brokers.values(), *([checker] if checker else [])]


def _written(cluster: Cluster) -> int:
    """Return the bytes that the broker and the txn-checker have written to the disk."""
    total = 0
    for child in _servers(cluster):
        lines = Path(f"/proc/{child.pid}/io").read_text(encoding="utf-8").splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
    return total


def say(what: str, values: Mapping[str, float], target: str) -> None:
    """Print one line of the result."""
    ratio = values["comet"] / values["java"] if values["java"] else float("nan")
    print(
        f"{what}: CometMQ {values['comet']:,.0f}, Java {values['java']:,.0f}, "
        f"ratio {ratio:.3f}  {target}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="samples of pairs per server")
    parser.add_argument("--pairs", type=int, default=100_000, help="in a sample")
    parser.add_argument("--open", type=int, default=100_000, help="open transactions; 0: none")
    parser.add_argument("--questions", type=int, default=10, help="about each of them")
    parser.add_argument("--directory", type=Path, help="where the stores go")
    parser.add_argument("--priority", action="store_true", help="above other programs; needs root")
    arguments = parser.parse_args()
    if arguments.priority:
        prefer(os.getpid())  # the generators inherit the priority
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=arguments.directory) as name:
        folder = Path(name)
        if arguments.rounds:
            measure_pairs(
                folder, arguments.rounds, arguments.pairs, is_preferred=arguments.priority
            )
        if arguments.open:
            measure_writes(folder, arguments.open, arguments.questions)


if __name__ == "__main__":
    main()
