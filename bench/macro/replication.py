# SPDX-License-Identifier: Apache-2.0
"""Measures pairs of a master and a slave: sends that wait for both copies, and a slave's catch-up.

The sends also run on a single CometMQ broker, alternating with the pairs: the share of its rate
that a pair reaches shows the cost of the second copy.
"""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

from macro.copying import copy
from macro.native import BenchError, Report
from macro.pairs import PAIRS, Pair, PairServer, await_equal_logs, log_end
from macro.process import anonymous_bytes
from macro.scenarios import OWN, Plan, Sample, checked, in_turn, measure, prepare, warm_up
from macro.servers import Server, running
from macro.setups import Setup
from macro.workloads import CATCH_UP, Load

from cometmq.peers.errors import PeerError
from cometmq.peers.processes import wait_until

POLL_S: Final = 0.02
POLL_MAX_S: Final = 0.2
"""Interval at which a slave's log end and memory are read, which takes time that senders need; it
decreases to POLL_S towards the end of the copy.
"""
CATCH_UP_TIMEOUT_S: Final = 1800.0
FOLLOW_TIMEOUT_S: Final = 120.0
SENDERS_RATE: Final = 1_000
SENDERS: Final = {
    "connections": 8, "in_flight": 4, "body_bytes": 1024, "topic": "BENCH_senders",
}  # fmt: skip
"""A load far below the maximum: it shows how long sends wait while a slave catches up."""
RECORD_BYTES: Final = 1_250  # of a message with a body of 1 KiB, about
FILL: Final = {"body_bytes": 1024, "topic": "BENCH_fill", "connections": 8, "in_flight": 32}
FILL_COUNT: Final = 200_000


class Entry(NamedTuple):
    """A pair, and the single broker that shows the cost of the second copy (None for Java)."""

    pair: PairServer
    single: Server | None


def run_replicated(plan: Plan, setup: Setup, loads: Sequence[Load]) -> None:
    """Run sends that wait for both copies on pairs of one configuration, in the order A B B A."""
    with _entries(plan, setup) as entries:
        for load in loads:
            for entry in entries:
                for server in entry:
                    if server is not None:
                        prepare(load, server)
                        measure(plan, load, server, seconds=plan.warmup_s / 5)
            for number in range(plan.rounds):
                for entry in in_turn(entries, number):
                    plan.add(load.name, entry.pair.name, _sample(plan, load, entry))


@contextmanager
def _entries(plan: Plan, setup: Setup) -> Iterator[list[Entry]]:
    entries = []
    with ExitStack() as stack:
        for name in plan.servers:
            directory = plan.directory / f"replicated{setup.suffix}" / name
            prepared = PAIRS[name](directory, True)
            prepared.apply(setup)
            pair = stack.enter_context(prepared)
            server = PairServer(name, pair, plan.serialization)
            warm_up(plan, server)
            single = None
            if name in OWN:
                single = stack.enter_context(
                    running(name, directory / "single", plan.serialization, setup=setup)
                )
                warm_up(plan, single)
            entries.append(Entry(server, single))
        yield entries


def _sample(plan: Plan, load: Load, entry: Entry) -> Sample:
    sample = measure(plan, load, entry.pair, seconds=plan.seconds)
    sample["slave_anonymous_bytes"] = anonymous_bytes(entry.pair.pair.slave_pid)
    if entry.single is not None:
        single = measure(plan, load, entry.single, seconds=plan.seconds)
        sample["share_of_single"] = sample["messages_per_s"] / single["messages_per_s"]
    return sample


def run_catch_up(plan: Plan) -> None:
    """Measure how a slave copies a large part of the log while messages are being sent.

    The slave has followed the master before, because RocketMQ's master sends only its last file to
    an empty slave. Each sample uses new stores.
    """
    for number in range(plan.rounds):
        for name in in_turn(plan.servers, number):
            directory = plan.directory / "catch-up" / f"{name}-{number}"
            with PAIRS[name](directory, False) as pair:
                plan.add(CATCH_UP.name, name, _catch_up(plan, name, pair))
            shutil.rmtree(directory)


def _catch_up(plan: Plan, name: str, pair: Pair) -> Sample:
    server = PairServer(name, pair, plan.serialization)
    await_equal_logs(pair, CATCH_UP_TIMEOUT_S)
    pair.stop_slave()
    start = log_end(pair.master)
    while (missing := start + plan.catch_up_bytes - log_end(pair.master)) > 0:
        server.fill(min(FILL_COUNT, 1 + missing // RECORD_BYTES), **FILL)
    server.settle()
    os.sync()  # neither copy must wait for the log to be written back
    size = log_end(pair.master)
    before = server.load("send", rate=SENDERS_RATE, seconds=plan.seconds, warmup=1.0, **SENDERS)
    checked(name, before)
    before_us = before["latency_us"]["p99"]
    with server.sending(rate=SENDERS_RATE, **SENDERS) as senders:
        copying_s = _plain_copy(pair, size)
        beside_copy = checked(name, senders.report())
    server.settle()
    os.sync()
    caught_up = _follow(server, start, log_end(pair.master))
    p99_us = caught_up.senders["latency_us"]["p99"]
    return {
        "catch_up_bytes_per_s": caught_up.bytes_per_s,
        "share_of_copy": caught_up.bytes_per_s / (size / copying_s),
        "slave_anonymous_bytes": caught_up.slave_bytes,
        "p99_us": p99_us,
        "p99_growth": p99_us / before_us,
        "p99_growth_of_copy": beside_copy["latency_us"]["p99"] / before_us,
        "others_cpus": before["others_cpus"],
    }


def _plain_copy(pair: Pair, size: int) -> float:
    """Copy the master's log to the disk of the slave; return the seconds taken."""
    files = sorted((pair.master.store_dir / "commitlog").iterdir())
    logs = [path for path in files if path.name.isdigit()]
    target = pair.directory / "copy"
    elapsed_s = copy(logs, size, target)
    target.unlink()
    return elapsed_s


class CaughtUp(NamedTuple):
    """The copy rate, the slave's peak memory, and the senders' report for that time."""

    bytes_per_s: float
    slave_bytes: int
    senders: Report


def _follow(server: PairServer, start: int, end: int) -> CaughtUp:
    """Start the slave and wait until its log reaches `end`.

    Timing starts when the slave has received the first bytes, so its startup is not included.
    """
    pair = server.pair
    pair.start_slave()
    try:
        wait_until(lambda: log_end(pair.slave) > start, FOLLOW_TIMEOUT_S, "the slave to follow")
    except PeerError as exc:
        ends = f"the logs end at {log_end(pair.master)} and {log_end(pair.slave)}"
        raise BenchError(f"{server.name}: {exc}; {ends}\n{pair.logs()}") from exc
    with server.sending(rate=SENDERS_RATE, **SENDERS) as senders:
        began_s, first = time.monotonic(), log_end(pair.slave)
        if first >= end:
            raise BenchError("the log is too small to time its copy: raise --catch-up-gib")
        reached, memory_bytes = first, 0
        while reached < end and time.monotonic() < began_s + CATCH_UP_TIMEOUT_S:
            left_s = (end - reached) * (time.monotonic() - began_s) / max(1, reached - first)
            time.sleep(min(POLL_MAX_S, max(POLL_S, left_s / 2)))
            reached = log_end(pair.slave)
            memory_bytes = max(memory_bytes, anonymous_bytes(pair.slave_pid))
        elapsed_s = time.monotonic() - began_s
        report = checked(server.name, senders.report())
    if reached < end:
        raise BenchError(f"{server.name}: the slave has not caught up in {elapsed_s:.0f} s")
    return CaughtUp((reached - first) / elapsed_s, memory_bytes, report)
