# SPDX-License-Identifier: Apache-2.0
"""Profile CometMQ's broker: processor time per message and function.

    make profile ARGS="--workload pull --tool calls"

`--tool sample` (default) samples at full speed: microseconds per message and function, then the
hottest lines. `--tool calls` traces with cProfile: exact call counts, inflated times. `--tool perf`
divides the time between system calls, the interpreter and native code. In a workload with two
copies, the master is profiled first, then the slave.
"""

import argparse
import json
import os
import pstats
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from macro import perf
from macro.native import BenchError
from macro.pairs import CometPair, PairServer
from macro.process import cpu_split
from macro.scenarios import prepare, run_once
from macro.servers import BROKER_CONF, Server
from macro.workloads import LOADS, REPLICATED, Load

from cometmq.peers.cluster import Layout
from cometmq.peers.comet import CometCluster
from cometmq.peers.errors import PeerError

SAMPLER: Final = Path(__file__).resolve().parent / "macro" / "sampler.py"
CHOICES: Final = {load.name: load for load in (*LOADS, *REPLICATED)}
MODULES: Final = 15
FUNCTIONS: Final = 30
LINES: Final = 25
PARTS: Final = 25


class ProfiledCluster(CometCluster):
    """A CometMQ cluster whose broker runs under a profiler that writes `profile_path`."""

    def __init__(self, directory: Path, tool: str) -> None:
        layout = Layout.fresh(directory, broker_count=1)
        super().__init__(directory, BROKER_CONF, layout=layout)
        self.profile_path = directory / "profile"
        self.tool = tool

    def _broker_command(self, conf_path: Path) -> list[str]:
        return [*profiler(self.tool, self.profile_path), *super()._broker_command(conf_path)]


def profiler(tool: str, path: Path) -> list[str]:
    """Return the beginning of the command that runs a program of Python under a profiler."""
    if tool == "perf":  # attaches to the process
        return [sys.executable, "-P"]
    if tool == "sample":
        return [sys.executable, "-P", str(SAMPLER), str(path)]
    return [sys.executable, "-P", "-m", "cProfile", "-o", str(path)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/profile_sends.py", description="CometMQ's hot path"
    )
    parser.add_argument("--workload", choices=[*CHOICES], default="send-8x32")
    parser.add_argument("--tool", choices=["sample", "calls", "perf"], default="sample")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--serialization", choices=["json", "rocketmq"], default="json")
    return parser.parse_args()


def run(
    server: Server, load: Load, arguments: argparse.Namespace, paths: Sequence[Path]
) -> list[float]:
    """Load the server and print its rate; return each broker's processor time in us per message.

    The samples of `perf` are recorded into `paths`.
    """
    prepare(load, server)
    pids = server.pids
    if arguments.tool == "sample":
        for pid in pids:
            os.kill(pid, signal.SIGUSR1)  # drop the samples of the warm-up
    before = [cpu_split(pid) for pid in pids]
    with perf.recording(pids, paths) if arguments.tool == "perf" else nullcontext():
        report = run_once(load, server, seconds=arguments.seconds, warmup=0)
    after = [cpu_split(pid) for pid in pids]
    per_message: float = 1e6 / report["messages_in_all"]
    print(f"{load.title}: {report['messages_per_s']:,.0f} messages/s under the profiler")
    used = []
    for (user_before, system_before), (user, system) in zip(before, after, strict=True):
        user_us = (user - user_before) * per_message
        system_us = (system - system_before) * per_message
        print(f"processor time per message: {user_us:.2f} us program, {system_us:.2f} us kernel")
        used.append(user_us + system_us)
    return used


def profile_broker(directory: Path, load: Load, arguments: argparse.Namespace) -> None:
    """Profile a single broker."""
    prepared = ProfiledCluster(directory, arguments.tool)
    load.setup.apply(prepared)
    with prepared as cluster:
        server = Server("comet", cluster, arguments.serialization, load.setup)
        (used_us,) = run(server, load, arguments, [cluster.profile_path])
        cluster.stop()
    print_profile(cluster.profile_path, used_us, arguments.tool)


def profile_pair(directory: Path, load: Load, arguments: argparse.Namespace) -> None:
    """Profile both brokers of a group with two copies."""
    paths = [directory / f"profile-{number}" for number in (0, 1)]
    prefixes = [profiler(arguments.tool, path) for path in paths]
    prepared = CometPair(directory / "pair", is_sync=True, prefixes=prefixes)
    prepared.apply(load.setup)
    with prepared as pair:
        paths = [paths[int(one.directory.name)] for one in (pair.master, pair.slave)]
        used = run(PairServer("comet", pair, arguments.serialization), load, arguments, paths)
        pair.stop()
    for role, path, used_us in zip(("master", "slave"), paths, used, strict=True):
        print(f"\n{role}")
        print_profile(path, used_us, arguments.tool)


def print_profile(path: Path, used_us: float, tool: str) -> None:
    if tool == "sample":
        print_samples(path, used_us)
    elif tool == "perf":
        print_table("part", perf.read_samples(path), used_us, PARTS)
    else:
        pstats.Stats(str(path)).sort_stats("tottime").print_stats(FUNCTIONS)


def print_samples(path: Path, us_per_message: float) -> None:
    """Print the modules, functions and lines with the most self time."""
    rows: list[tuple[str, str, int, int]] = json.loads(path.read_text(encoding="utf-8"))
    modules: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for file, function, line, count in rows:
        modules[_short(file)] += count
        functions[f"{_short(file)} {function}"] += count
        lines[f"{_short(file)}:{line} {function}"] += count
    tables = (
        ("module", modules, MODULES),
        ("function", functions, FUNCTIONS),
        ("line", lines, LINES),
    )
    for title, counts, limit in tables:
        print_table(title, counts, us_per_message, limit)


def print_table(title: str, counts: Counter[str], us_per_message: float, limit: int) -> None:
    """Print the largest shares of the samples."""
    total = counts.total()
    print(f"\n{'us/message':>10} {'share':>6}  {title}")
    for name, count in counts.most_common(limit):
        share = count / total
        print(f"{us_per_message * share:>10.3f} {share:>6.1%}  {name}")


def _short(file: str) -> str:
    """Return a path relative to its source or library folder."""
    for mark in ("/src/", "/site-packages/", "/lib/python"):
        if mark in file:
            return file.rpartition(mark)[2]
    return file


def main() -> int:
    arguments = parse_arguments()
    load = CHOICES[arguments.workload]
    profile = profile_pair if load in REPLICATED else profile_broker
    with tempfile.TemporaryDirectory(prefix="cometmq-profile-") as name:
        try:
            profile(Path(name), load, arguments)
        except (BenchError, PeerError) as exc:
            print(f"profile: {exc}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
