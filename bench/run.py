# SPDX-License-Identifier: Apache-2.0
"""Compare CometMQ and Java RocketMQ 4.9.4, which run alternately on this machine.

The send workloads also run on Redis and NATS JetStream.

    make bench ARGS="--only send-64x1 --rounds 5"

The program prints a table of ratios and writes bench/out/result.json and result.png. Absolute
numbers depend on the machine and its other load, so compare only the ratios of one run.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import page
import report
from macro.mixed import run_mixed
from macro.native import BenchError
from macro.parent import PARENT, prepare_parent
from macro.process import prefer
from macro.replication import run_catch_up, run_replicated
from macro.rivals import RIVALS
from macro.scenarios import (
    Plan,
    add_shares,
    run_delay,
    run_floor,
    run_loads,
    run_million,
    run_start,
    run_transactions,
)
from macro.watched import WATCHED
from macro.workloads import (
    CATCH_UP,
    DELAY,
    LOADS,
    MILLION,
    MIXED,
    REPLICATED,
    START,
    TRANSACTIONS,
    WORKLOADS,
)

from cometmq.peers.errors import PeerError

SERVERS: Final = {
    "all": ["comet", "java"], "both": ["comet", "java"], "ways": ["comet", "python"],
    "console": ["comet", WATCHED], "parent": ["comet", PARENT],
}  # fmt: skip

OWN_PAIRS: Final = ("ways", "console", "parent")
"""The servers that are CometMQ twice."""

SCENARIOS: Final[dict[str, Callable[[Plan], None]]] = {
    MIXED.name: run_mixed,
    CATCH_UP.name: run_catch_up,
    DELAY.name: run_delay,
    TRANSACTIONS.name: run_transactions,
    MILLION.name: run_million,
    START.name: run_start,
}


QUICK: Final = {"rounds": 1, "seconds": 3.0, "warmup": 5.0, "catch_up_gib": 1.0}
"""The options of `--quick`, which divides the time of a whole run by about three."""

PAIRED: Final = {"rounds": 15, "seconds": 3.0}
"""The options of `--server console` and `parent`: many short rounds, compared in pairs."""


def parse_arguments() -> argparse.Namespace:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(prog="bench/run.py", description="CometMQ beside RocketMQ")
    add = parser.add_argument
    add("--only", action="append", choices=names, help="workload; repeatable")
    add("--quick", action="store_true", help="1 round of 3 s after 5 s, and 1 GiB to catch up")
    add("--rounds", type=int, default=3, help="samples per server (default 3)")
    add("--seconds", type=float, default=5.0, help="counted time of a sample (default 5)")
    add("--warmup", type=float, default=15.0, help="seconds of load before all (default 15)")
    add("--catch-up-gib", type=float, default=2.0, help="log that a slave copies (default 2)")
    add("--serialization", choices=["json", "rocketmq"], default="json", help="header form")
    add(
        "--server", choices=[*SERVERS, "comet", "java"], default="all",
        help="all: beside Java, and sends beside Redis and NATS; both: beside Java; "
        "ways: beside itself without the native message path; "
        "console: beside itself with a console and ten open pages (only loads and starts); "
        "parent: beside another commit",
    )  # fmt: skip
    add("--parent", default="HEAD~1", help="commit of --server parent (default HEAD~1)")
    add("--directory", type=Path, help="where the stores go (default: temporary)")
    add("--priority", action="store_true", help="run above other programs; needs root")
    add("--check", action="store_true", help="exit 1 on a missed target or a worse ratio")
    add("--save-baseline", action="store_true", help="take over into bench/baseline.json")
    add("--publish", action="store_true", help="the same, and into the documents")
    known = parser.parse_known_args()[0]
    if known.server in ("console", "parent"):
        parser.set_defaults(**PAIRED)
    if known.quick:
        parser.set_defaults(**QUICK)
    arguments = parser.parse_args()
    if arguments.server == "console" and not arguments.only:
        arguments.only = ["send-8x32", "pull", "start"]
    if arguments.server in OWN_PAIRS and (arguments.save_baseline or arguments.publish):
        parser.error("this compares CometMQ with itself: only its ratios to Java are kept")
    return arguments


def measure(arguments: argparse.Namespace, directory: Path) -> tuple[report.Result, list[str]]:
    """Run the selected workloads; return the result and the failed steps."""
    plan = Plan(
        directory=directory,
        servers=SERVERS.get(arguments.server, [arguments.server]),
        rivals=list(RIVALS) if arguments.server == "all" else [],
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        warmup_s=arguments.warmup,
        serialization=arguments.serialization,
        catch_up_bytes=int(arguments.catch_up_gib * (1 << 30)),
        is_preferred=arguments.priority,
        say=lambda line: print(line, flush=True),
    )
    chosen = set(arguments.only or [workload.name for workload in WORKLOADS])
    floor = run_floor(plan)
    failures = []
    for name, step in steps_of(plan, chosen).items():
        started_s = time.monotonic()
        failures += _failures(step)
        plan.say(f"  {name} took {time.monotonic() - started_s:.0f} s")
        for stores in directory.iterdir():  # RocketMQ deletes messages once a disk is 75 % full
            shutil.rmtree(stores)
    add_shares(plan.samples)
    options = {"rounds": plan.rounds, "seconds": plan.seconds, "serialization": plan.serialization}
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")
    result = report.make_result(plan.samples, floor, options=options, measured_at=measured_at)
    return result, failures


def steps_of(plan: Plan, chosen: Collection[str]) -> dict[str, Callable[[], None]]:
    """Return the steps of a run, by their names: the loads of each configuration, the others."""
    kinds = (("loads", run_loads, LOADS), ("pairs", run_replicated, REPLICATED))
    steps: dict[str, Callable[[], None]] = {}
    for kind, run, table in kinds:
        loads = [load for load in table if load.name in chosen]
        for setup in dict.fromkeys(load.setup for load in loads):
            those = [load for load in loads if load.setup == setup]
            steps[kind + setup.suffix] = partial(run, plan, setup, those)
    return steps | {name: partial(run, plan) for name, run in SCENARIOS.items() if name in chosen}


def _failures(step: Callable[[], None]) -> list[str]:
    """Run a step and return its failure, if any, so that the results of other steps are kept."""
    try:
        step()
    except (BenchError, PeerError) as exc:
        print(f"  failed: {exc}", file=sys.stderr, flush=True)
        return [str(exc).partition("\n")[0]]
    return []


def publish(result: report.Result, failed: list[str], arguments: argparse.Namespace) -> int:
    """Print and store a result, check it against targets and baseline; return the exit status."""
    baseline = report.load(report.BASELINE)
    report.write(result)
    print(report.table(result, baseline))
    print(f"written: {report.OUT / 'result.json'} and result.png")
    failures = [*failed]
    if arguments.server not in OWN_PAIRS:
        failures += report.missed(result)
    if baseline is not None and arguments.server not in OWN_PAIRS:
        failures += [f"worse than before: {r}" for r in report.regressions(result, baseline)]
    for failure in failures:
        print(failure)
    if arguments.save_baseline or arguments.publish:
        whole = report.write_baseline(result)
        if arguments.publish:
            page.publish_table(whole)
    return 1 if failed or (arguments.check and failures) else 0


def main() -> int:
    arguments = parse_arguments()
    # With this variable, the servers would compile their modules at each start.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # noqa: TID251
    if arguments.server == PARENT:
        try:
            prepare_parent(arguments.parent)
        except BenchError as exc:
            print(f"bench: {exc}", file=sys.stderr)
            return 1
    if arguments.priority:
        prefer(os.getpid())  # the generators inherit the priority
    with tempfile.TemporaryDirectory(prefix="cometmq-bench-", dir=arguments.directory) as name:
        try:
            result, failed = measure(arguments, Path(name))
        except BenchError as exc:
            print(f"bench: {exc}", file=sys.stderr)
            return 1
    return publish(result, failed, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
