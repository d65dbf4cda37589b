# SPDX-License-Identifier: Apache-2.0
"""Run the workloads on the servers alternately; take one sample per round and server.

A sample maps metric names to numbers. Rate workloads share two long-running servers, which are
warmed up first, mainly for Java's JIT compiler. The other workloads start new processes.
"""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from macro.device import syncs_per_s
from macro.native import BenchError, Floor, Report, loadgen
from macro.parent import PARENT
from macro.process import anonymous_bytes, cpu_seconds, disk_bytes, drop_cached_pages, prefer
from macro.rivals import RIVALS, running_rival
from macro.servers import Checks, Contestant, Server, running, start_seconds
from macro.setups import PLAIN, Setup
from macro.watched import WATCHED, running_watched
from macro.workloads import (
    DELAY,
    LOADS,
    MESSAGES_DELAYED,
    MESSAGES_MANY,
    MILLION,
    REPLICATED,
    START,
    TRANSACTION_PAIRS,
    TRANSACTIONS,
    Load,
    Scenario,
)

from cometmq.peers.processes import wait_until

T = TypeVar("T")

QUEUES: Final = 4
BURST: Final = {"connections": 8, "in_flight": 32}
DELAY_LEVEL: Final = 1
DELAY_S: Final = 1.0
IDLE_S: Final = 10.0
VISIBLE_TIMEOUT_S: Final = 300.0
ROUND_WARMUP_S: Final = 1.0
SAMPLE_ATTEMPTS: Final = 3
FLOOR_SECONDS: Final = 1.5
FLOOR_SHAPES: Final = (
    ("send 1x1", "send", 1, 1), ("send 64x1", "send", 64, 1), ("send 8x32", "send", 8, 32),
    ("pull 4x1", "pull", 4, 1), ("pull 256x1", "pull", 256, 1),
)  # fmt: skip
"""Name, mode, connections and requests in flight: the shapes of the send and pull workloads."""

OWN: Final = frozenset({"comet", "python", PARENT, WATCHED})
"""The servers that are CometMQ."""

Sample: TypeAlias = dict[str, float]
Samples: TypeAlias = dict[str, dict[str, list[Sample]]]  # workload -> server -> rounds


@dataclass(frozen=True)
class Plan:
    """The size and location of a run."""

    directory: Path
    servers: Sequence[str]
    rivals: Sequence[str]  # servers that get the send workloads, too
    rounds: int
    seconds: float
    warmup_s: float
    serialization: str
    catch_up_bytes: int  # how much of the log a slave copies
    is_preferred: bool  # run server and generator above other programs
    say: Callable[[str], None]
    samples: Samples = field(default_factory=dict)

    def add(self, workload: str, server: str, sample: Sample) -> None:
        """Record one sample and print it."""
        self.samples.setdefault(workload, {}).setdefault(server, []).append(sample)
        facts = "  ".join(f"{name} {value:,.4g}" for name, value in sample.items())
        self.say(f"  {workload:<10} {server:<6} {facts}")


def in_turn(items: Sequence[T], round_number: int) -> Sequence[T]:
    """Return the items in the order of a round, A B or B A.

    The first of a round finds another state of the caches and of the processor's clock.
    """
    return items[:: -1 if round_number % 2 else 1]


def run_floor(plan: Plan) -> Sample:
    """Measure the generator's messages per second against a server that does no work."""
    result: Sample = {}
    with Floor() as floor:
        for name, mode, connections, in_flight in FLOOR_SHAPES:
            report = loadgen(
                mode, floor.port, connections=connections, in_flight=in_flight,
                serialization=plan.serialization, seconds=FLOOR_SECONDS, warmup=0.5,
            )  # fmt: skip
            result[name] = report["messages_per_s"]
    return result


def run_loads(plan: Plan, setup: Setup, loads: Sequence[Load]) -> None:
    """Run rate workloads of one configuration on long-running servers, in the order A B B A."""
    names = [*plan.servers]
    if setup == PLAIN and any(load.mode == "send" for load in loads):
        names += plan.rivals
    with warm_servers(plan, "loads" + setup.suffix, names, setup=setup) as servers:
        for load in loads:
            fit = [each for each in servers if load.mode == "send" or each.name not in RIVALS]
            _run_load(plan, load, fit)


@contextmanager
def warm_servers(
    plan: Plan, name: str, names: Sequence[str], checks: Checks = None, setup: Setup = PLAIN
) -> Iterator[list[Contestant]]:
    """Start servers and warm them up with sends; stop them on leaving the context."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_running(plan, each, plan.directory / name / each, checks, setup))
            for each in names
        ]
        for server in servers:
            warm_up(plan, server)
        yield servers


def _running(
    plan: Plan, name: str, directory: Path, checks: Checks, setup: Setup
) -> AbstractContextManager[Contestant]:
    if name in RIVALS:
        return running_rival(name, directory)
    if name == WATCHED:
        return running_watched(directory, plan.serialization, setup)
    return running(name, directory, plan.serialization, checks, setup)


def warm_up(plan: Plan, server: Contestant) -> None:
    """Send for a while, mainly for Java's JIT compiler."""
    if plan.is_preferred:
        for pid in server.pids:
            prefer(pid)
    plan.say(f"  warming up {server.name} for {plan.warmup_s:.0f} s")
    server.load("send", topic="BENCH_WARMUP", seconds=plan.warmup_s, **BURST)


def _run_load(plan: Plan, load: Load, servers: Sequence[Contestant]) -> None:
    for server in servers:
        if isinstance(server, Server):
            prepare(load, server)
        measure(plan, load, server, seconds=plan.warmup_s / 5)
    for number in range(plan.rounds):
        of_device = syncs_per_s(plan.directory) if load.setup.sync_flush else None
        for server in in_turn(servers, number):
            sample = measure(plan, load, server, seconds=plan.seconds)
            plan.add(load.name, server.name, sample | beside_device(load, sample, of_device))


def beside_device(load: Load, sample: Sample, of_device: float | None) -> Sample:
    """Return the syncs per second that the disk allows, measured in the same round, and which part
    of them a lone sender gets.
    """
    if of_device is None:
        return {}
    lone = load.connections * load.in_flight == 1
    share = {"share_of_syncs": sample["messages_per_s"] / of_device}
    return {"device_syncs_per_s": of_device, **(share if lone else {})}


def prepare(load: Load, server: Server) -> None:
    """Create the workload's topics, and fill them if the workload reads messages."""
    for topic in load.topic_names:
        server.create_topic(topic, queues=load.queues)
    if not load.preload:
        return
    server.fill(load.preload, **load.places, **BURST)
    _await_length(server, load.topic, queues=load.queues, count=load.preload)


def measure(
    plan: Plan, load: Load, server: Contestant, *, seconds: float, attempts: int = SAMPLE_ATTEMPTS
) -> Sample:
    """Take one sample; before sends, drop what earlier samples left in the page cache.

    Repeat a sample in which the server refused requests: RocketMQ refuses a few when its disk
    stalls. Raise BenchError if it refuses some in every attempt.
    """
    if load.mode == "send":
        drop_cached_pages(plan.directory)
    report = run_once(load, server, seconds=seconds, warmup=ROUND_WARMUP_S)
    if report["errors"] and attempts > 1:
        plan.say(f"  repeated, because {server.name} refused requests: codes {report['codes']}")
        return measure(plan, load, server, seconds=seconds, attempts=attempts - 1)
    return rates(checked(server.name, report))


def run_once(load: Load, server: Contestant, *, seconds: float, warmup: float) -> Report:
    options = {"connections": load.connections, "in_flight": load.in_flight, **load.places}
    with ExitStack() as stack:
        if load.expression:
            assert isinstance(server, Server)
            stack.enter_context(server.subscribed(load.topic, load.expression))
            options["registered"] = True
        return server.load(load.mode, seconds=seconds, warmup=warmup, **options)


def rates(report: Report) -> Sample:
    """Return the metrics of a generator's report."""
    latency = report["latency_us"]
    return {
        "messages_per_s": report["messages_per_s"],
        "p50_us": latency["p50"],
        "p99_us": latency["p99"],
        "p999_us": latency["p999"],
        "p9999_us": latency["p9999"],
        "cpu_seconds_per_million": report["cpu_seconds_per_million"],
        "others_cpus": report["others_cpus"],
    }


def checked(name: str, report: Report) -> Report:
    """Return a report; raise an error if the server refused requests."""
    if report["errors"]:
        refused = f"{name} refused {report['errors']} requests"
        raise BenchError(f"{refused}: codes {report['codes']}")
    return report


def add_shares(samples: Samples) -> None:
    """Add which part of the plain rate each configuration of CometMQ reaches, round by round."""
    for load in (*LOADS, *REPLICATED):
        for server in OWN:
            plain = samples.get(load.plain, {}).get(server, ())
            own = samples.get(load.name, {}).get(server, ())
            for sample, beside in zip(own, plain, strict=False):
                sample["share_of_plain"] = sample["messages_per_s"] / beside["messages_per_s"]


def run_delay(plan: Plan) -> None:
    """Measure the rates at which delayed messages are accepted and delivered."""
    _run_on_new_topics(plan, DELAY, _delay)


def run_transactions(plan: Plan) -> None:
    """Measure how many half messages and commits take effect per second.

    CometMQ runs with its txn-checker; RocketMQ's broker checks transactions itself.
    """
    _run_on_new_topics(plan, TRANSACTIONS, _transactions, checks={})


def _run_on_new_topics(
    plan: Plan,
    scenario: Scenario,
    take: Callable[[Server, str], Sample],
    checks: Checks = None,
) -> None:
    """Call `take` with each server and a new topic; the first round is a warm-up."""
    with warm_servers(plan, scenario.name, plan.servers, checks) as servers:
        for number in range(plan.rounds + 1):
            for server in in_turn(servers, number):
                assert isinstance(server, Server)
                drop_cached_pages(plan.directory)
                sample = take(server, f"BENCH_{scenario.name}_{number}")
                if number:
                    plan.add(scenario.name, server.name, sample)


def _delay(server: Server, topic: str) -> Sample:
    options = {"properties": f"DELAY={DELAY_LEVEL}", "queues": QUEUES, **BURST}
    report = _until_visible(server, "send", topic, count=MESSAGES_DELAYED, **options)
    delivering_s = report["elapsed_s"] - DELAY_S
    return {**rates(report), "delivered_per_s": MESSAGES_DELAYED / delivering_s}


def _transactions(server: Server, topic: str) -> Sample:
    server.create_topic(topic, queues=QUEUES)
    report = _until_visible(server, "transact", topic, count=TRANSACTION_PAIRS)
    sample = rates(report)
    del sample["messages_per_s"]  # the rate of half messages alone
    return {"pairs_per_s": TRANSACTION_PAIRS / report["elapsed_s"], **sample}


def _until_visible(server: Server, mode: str, topic: str, **options: object) -> Report:
    """Run the generator, measured until consumers can read all of its messages."""

    def run() -> Report:
        report = server.generate(mode, {"topic": topic, **options})
        _await_length(server, topic, queues=QUEUES, count=report["messages_in_all"])
        return report

    return checked(server.name, server.measured(run))


def _await_length(server: Server, topic: str, *, queues: int, count: int) -> None:
    """Wait until consumers can read `count` messages from the topic's queues."""
    wait_until(
        lambda: server.length(topic, queues=queues) >= count,
        VISIBLE_TIMEOUT_S,
        f"{server.name}: {count} messages of {topic} to be read",
    )


def run_million(plan: Plan) -> None:
    """Measure memory, idle time and disk usage after a million messages, then recovery.

    Each round uses a new store: a second recovery would start from a later checkpoint and look
    faster.
    """
    for number in range(plan.rounds):
        for name in in_turn(plan.servers, number):
            directory = plan.directory / "million" / f"{name}-{number}"
            with running(name, directory, plan.serialization) as server:
                plan.add(MILLION.name, name, _million(server))
            shutil.rmtree(directory)


def _million(server: Server) -> Sample:
    topic = "BENCH_million"
    report = server.load("send", topic=topic, count=MESSAGES_MANY, queues=QUEUES, **BURST)
    checked(server.name, report)
    return {
        "anonymous_bytes": anonymous_bytes(server.broker_pid),
        "idle_cpus": _idle_cpus(server),
        "disk_bytes": disk_bytes(server.cluster.store_dir),
        "recovery_s": server.restart_after_kill(topic=topic),
    }


def _idle_cpus(server: Server) -> float:
    """Return how many CPUs the broker uses while no client is connected."""
    before, started_s = cpu_seconds(server.broker_pid), time.monotonic()
    time.sleep(IDLE_S)
    return (cpu_seconds(server.broker_pid) - before) / (time.monotonic() - started_s)


def run_start(plan: Plan) -> None:
    """Measure startup on an empty store, in the order A B B A.

    Each server is first started once without being measured, so that the program is in memory and
    Python has compiled all modules.
    """
    for number in range(-1, plan.rounds):
        for name in in_turn(plan.servers, number):
            directory = plan.directory / "start" / f"{name}-{number}"
            directory.mkdir(parents=True)
            sample = {"start_s": start_seconds(name, directory, plan.serialization)}
            if number >= 0:
                plan.add(START.name, name, sample)
            shutil.rmtree(directory)
