# SPDX-License-Identifier: Apache-2.0
"""Runs the workloads: servers in alternation, one sample per round and server.

A sample maps metric names to numbers. Rate workloads share two long-running servers, each warmed
up before it is counted (the Java compiler needs it); the others start fresh processes.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from macro.native import BenchError, Floor, Report, loadgen
from macro.process import anonymous_bytes, disk_bytes, prefer
from macro.servers import Server, running, start_seconds
from macro.workloads import MESSAGES_MANY, MILLION, START, Load

QUEUES: Final = 4
BURST: Final = {"connections": 8, "in_flight": 32, "queues": QUEUES}
ROUND_WARMUP_S: Final = 1.0
FLOOR_SECONDS: Final = 1.5
FLOOR_SHAPES: Final = ((1, 1), (64, 1), (8, 32))

Sample: TypeAlias = dict[str, float]
Samples: TypeAlias = dict[str, dict[str, list[Sample]]]  # workload -> server -> rounds


@dataclass(frozen=True)
class Plan:
    """How much to measure, of what, where."""

    directory: Path
    servers: Sequence[str]
    rounds: int
    seconds: float
    warmup_s: float
    serialization: str
    is_preferred: bool  # above other programs
    say: Callable[[str], None]
    samples: Samples = field(default_factory=dict)

    def add(self, workload: str, server: str, sample: Sample) -> None:
        """Keep one sample and show it."""
        self.samples.setdefault(workload, {}).setdefault(server, []).append(sample)
        facts = "  ".join(f"{name} {value:,.4g}" for name, value in sample.items())
        self.say(f"  {workload:<10} {server:<6} {facts}")


def run_floor(plan: Plan) -> Sample:
    """Messages per second of the generator against a server that does nothing."""
    result: Sample = {}
    with Floor() as floor:
        for connections, in_flight in FLOOR_SHAPES:
            report = loadgen(
                "send", floor.port, connections=connections, in_flight=in_flight,
                serialization=plan.serialization, seconds=FLOOR_SECONDS, warmup=0.5,
            )  # fmt: skip
            result[f"{connections}x{in_flight}"] = report["messages_per_s"]
    return result


def run_loads(plan: Plan, loads: Sequence[Load]) -> None:
    """Rate workloads on servers that stay up, A B A B."""
    if not loads:
        return
    with ExitStack() as stack:
        servers = [
            stack.enter_context(running(name, plan.directory / name, plan.serialization))
            for name in plan.servers
        ]
        for server in servers:
            if plan.is_preferred:
                prefer(server.broker_pid)
            plan.say(f"  warming up {server.name} for {plan.warmup_s:.0f} s")
            server.load("send", topic="BENCH_WARMUP", seconds=plan.warmup_s, **BURST)
        for load in loads:
            _run_load(plan, load, servers)


def _run_load(plan: Plan, load: Load, servers: Sequence[Server]) -> None:
    """Prepare every server, then alternate them."""
    for server in servers:
        if load.preload:
            options = {"topic": load.topic, "body_bytes": load.body_bytes}
            _checked(server.load("send", count=load.preload, **options, **BURST))
        _measure(load, server, seconds=plan.warmup_s / 5)
    for _ in range(plan.rounds):
        for server in servers:
            plan.add(load.name, server.name, _measure(load, server, seconds=plan.seconds))


def _measure(load: Load, server: Server, *, seconds: float) -> Sample:
    """One run of the generator as a sample."""
    report = _checked(
        server.load(
            load.mode, topic=load.topic, connections=load.connections, in_flight=load.in_flight,
            queues=QUEUES, body_bytes=load.body_bytes, seconds=seconds, warmup=ROUND_WARMUP_S,
        )
    )  # fmt: skip
    latency = report["latency_us"]
    return {
        "messages_per_s": report["messages_per_s"],
        "p50_us": latency["p50"],
        "p99_us": latency["p99"],
        "p999_us": latency["p999"],
        "cpu_seconds_per_million": report["cpu_seconds_per_million"],
        "others_cpus": report["others_cpus"],
    }


def _checked(report: Report) -> Report:
    """A benchmark of refusals would be worthless."""
    if report["errors"]:
        raise BenchError(f"{report['errors']} requests were refused: codes {report['codes']}")
    return report


def run_million(plan: Plan) -> None:
    """Memory and disk after a million messages, then kill -9 and recovery; fresh each time.

    A second recovery of the same store would start from a younger checkpoint and flatter.
    """
    for number in range(plan.rounds):
        for name in plan.servers:
            directory = plan.directory / "million" / f"{name}-{number}"
            with running(name, directory, plan.serialization) as server:
                plan.add(MILLION.name, name, _million(server))
            shutil.rmtree(directory)


def _million(server: Server) -> Sample:
    """One sample on an empty store."""
    topic = "BENCH_million"
    _checked(server.load("send", topic=topic, count=MESSAGES_MANY, **BURST))
    return {
        "anonymous_bytes": anonymous_bytes(server.broker_pid),
        "disk_bytes": disk_bytes(server.cluster.store_dir),
        "recovery_s": server.restart_after_kill(topic=topic),
    }


def run_start(plan: Plan) -> None:
    """Start-up on an empty store, A B A B."""
    for number in range(plan.rounds):
        for name in plan.servers:
            directory = plan.directory / "start" / f"{name}-{number}"
            directory.mkdir(parents=True)
            sample = {"start_s": start_seconds(name, directory, plan.serialization)}
            plan.add(START.name, name, sample)
            shutil.rmtree(directory)
