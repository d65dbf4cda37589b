# SPDX-License-Identifier: Apache-2.0
"""Measure what transaction checks write, on CometMQ and on Java RocketMQ 4.9.4.

    .venv/bin/python bench/transaction_checks.py --open 100000

`--open` transactions remain open: the producer is asked about each of them several times and
answers "unknown", while the growth of the log is measured. CometMQ runs with its txn-checker,
whereas Java's broker checks transactions itself. `make bench ARGS="--only transactions"` measures
the rate of transactions that are committed at once.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from macro.native import BenchError, transact
from macro.servers import GROUP, Server, running

from cometmq.peers.wire import call
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import Heartbeat, ProducerData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock

TOPIC: Final = "BENCH_transactions"
QUEUES: Final = 4
RUNTIME_INFO: Final = 28
CHECKS: Final = {
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 1_000,
}
CHECKS_OF: Final[Mapping[str, Mapping[str, object]]] = {
    "comet": {**CHECKS, "questionsPerSecond": 1_000_000},
    "java": CHECKS,
}
WRITES_TARGET: Final = 0.2
QUESTIONS_TIMEOUT_S: Final = 1_800.0


def measure_writes(folder: Path, open_count: int, rounds: int) -> None:
    """Measure how much transaction checks write, one implementation after the other."""
    logs: dict[str, int] = {}
    disks: dict[str, int] = {}
    for name, checks in CHECKS_OF.items():
        with running(name, folder / name, "json", checks) as server:
            server.create_topic(TOPIC, queues=QUEUES)
            logs[name], disks[name] = asyncio.run(_asked(server, open_count, rounds))
    about = f"{open_count:,} open transactions, {rounds} questions each"
    say(f"log grows by, bytes ({about})", logs, f"target <= {WRITES_TARGET}")
    say("written to the disk by broker and txn-checker, bytes", disks, "")


async def _asked(server: Server, open_count: int, rounds: int) -> tuple[int, int]:
    """Return how much the log grew during the checks, and the total number of bytes written."""
    options = {"topic": TOPIC, "count": open_count, "leave_open": True}
    report = await asyncio.to_thread(transact, server.port, **options)
    if report["errors"]:
        raise BenchError(f"{report['errors']} requests were refused: codes {report['codes']}")
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
    address = server.cluster.broker_addrs[0]
    before = _log_end(address), _written(server)
    body = encode_json(Heartbeat(client_id="bench", producer_data_set=[ProducerData(GROUP)]))
    deadline = time.monotonic() + QUESTIONS_TIMEOUT_S
    try:
        while count < open_count * rounds:
            if time.monotonic() > deadline:
                raise BenchError(f"{count} questions in {QUESTIONS_TIMEOUT_S:.0f} s")
            await client.invoke(address, RequestCode.HEART_BEAT, None, body, timeout_ms=30_000)
            await asyncio.sleep(0.2)
    finally:
        await client.close()
    return _log_end(address) - before[0], _written(server) - before[1]


def _log_end(address: str) -> int:
    answer = call(address, RUNTIME_INFO, {})
    return int(json.loads(answer.body)["table"]["commitLogMaxOffset"])


def _written(server: Server) -> int:
    """Return the bytes that the broker and the txn-checker have written to the disk."""
    total = 0
    for pid in server.pids:
        lines = Path(f"/proc/{pid}/io").read_text(encoding="utf-8").splitlines()
        total += next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
    return total


def say(what: str, values: Mapping[str, int], target: str) -> None:
    """Print one line of the result."""
    ratio = values["comet"] / values["java"] if values["java"] else float("nan")
    print(
        f"{what}: CometMQ {values['comet']:,}, Java {values['java']:,}, ratio {ratio:.3f}  {target}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--open", type=int, default=100_000, help="open transactions")
    parser.add_argument("--questions", type=int, default=10, help="about each of them")
    parser.add_argument("--directory", type=Path, help="where the stores go")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=arguments.directory) as name:
        measure_writes(Path(name), arguments.open, arguments.questions)


if __name__ == "__main__":
    main()
