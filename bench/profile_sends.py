# SPDX-License-Identifier: Apache-2.0
"""Profile CometMQ's broker: processor time per message and function.

    make profile ARGS="--workload pull --tool calls"

`--tool sample` (default) samples at full speed: microseconds per message and function, then the
hottest lines. `--tool calls` traces with cProfile: exact call counts, inflated times.
"""

import argparse
import json
import os
import pstats
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from macro.native import BenchError
from macro.process import cpu_split
from macro.scenarios import prepare, run_once
from macro.servers import BROKER_CONF, Server
from macro.workloads import LOADS, Load

from cometmq.peers.cluster import Layout
from cometmq.peers.comet import CometCluster
from cometmq.peers.processes import PeerError

SAMPLER: Final = Path(__file__).resolve().parent / "macro" / "sampler.py"
MODULES: Final = 15
FUNCTIONS: Final = 30
LINES: Final = 25


class ProfiledCluster(CometCluster):
    """A CometMQ cluster whose broker runs under a profiler that writes `profile_path`."""

    def __init__(self, directory: Path, tool: str) -> None:
        layout = Layout.fresh(directory, broker_count=1)
        super().__init__(directory, BROKER_CONF, layout=layout)
        self.profile_path = directory / "profile"
        self.tool = tool

    def _broker_command(self, conf_path: Path) -> list[str]:
        if self.tool == "sample":
            prefix = [sys.executable, "-P", str(SAMPLER), str(self.profile_path)]
        else:
            prefix = [sys.executable, "-P", "-m", "cProfile", "-o", str(self.profile_path)]
        return [*prefix, *super()._broker_command(conf_path)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench/profile_sends.py", description="CometMQ's hot path"
    )
    parser.add_argument("--workload", choices=[load.name for load in LOADS], default="send-8x32")
    parser.add_argument("--tool", choices=["sample", "calls"], default="sample")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--serialization", choices=["json", "rocketmq"], default="json")
    return parser.parse_args()


def run(cluster: ProfiledCluster, load: Load, *, seconds: float, serialization: str) -> float:
    """Load the broker and print its rate; return its processor time in us per message."""
    server = Server("comet", cluster, serialization)
    prepare(load, server)
    if cluster.tool == "sample":
        os.kill(server.broker_pid, signal.SIGUSR1)  # drop the samples of the warm-up
    user_before, system_before = cpu_split(server.broker_pid)
    report = run_once(load, server, seconds=seconds, warmup=0)
    user, system = cpu_split(server.broker_pid)
    per_message: float = 1e6 / report["messages_in_all"]
    user_us, system_us = (user - user_before) * per_message, (system - system_before) * per_message
    print(f"{load.title}: {report['messages_per_s']:,.0f} messages/s under the profiler")
    print(f"processor time per message: {user_us:.2f} us program, {system_us:.2f} us kernel")
    return user_us + system_us


def print_samples(path: Path, us_per_message: float) -> None:
    """Print the modules, functions and lines with the most self time."""
    rows: list[tuple[str, str, int, int]] = json.loads(path.read_text(encoding="utf-8"))
    total = sum(count for *_, count in rows)
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
        print(f"\n{'us/message':>10} {'share':>6}  {title}")
        for name, count in counts.most_common(limit):
            share = count / total
            print(f"{us_per_message * share:>10.3f} {share:>6.1%}  {name}")


def _short(file: str) -> str:
    """Return a path starting at `cometmq/` or the package."""
    for mark in ("/src/", "/site-packages/", "/lib/python"):
        if mark in file:
            return file.rpartition(mark)[2]
    return file


def main() -> int:
    arguments = parse_arguments()
    load = next(load for load in LOADS if load.name == arguments.workload)
    with tempfile.TemporaryDirectory(prefix="cometmq-profile-") as name:
        try:
            with ProfiledCluster(Path(name), arguments.tool) as cluster:
                us_per_message = run(
                    cluster, load, seconds=arguments.seconds, serialization=arguments.serialization
                )
                cluster.stop()
        except (BenchError, PeerError) as exc:
            print(f"profile: {exc}", file=sys.stderr)
            return 1
        if arguments.tool == "sample":
            print_samples(cluster.profile_path, us_per_message)
        else:
            pstats.Stats(str(cluster.profile_path)).sort_stats("tottime").print_stats(FUNCTIONS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
