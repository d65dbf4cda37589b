# SPDX-License-Identifier: Apache-2.0
"""Every micro benchmark of one process still runs: each does its work once or twice."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

MICRO: Final = Path(__file__).parents[1] / "micro"
NATIVE: Final = {"bench_lane", "bench_pull_lane"}
SHORT: Final = """
import importlib, sys
import timing
timing.ROUNDS = timing.CALLS = 1
name, sys.argv = sys.argv[1], sys.argv[1:]
benchmark = importlib.import_module(name)
most = dict(ROUNDS=1, TURNS=1, MESSAGE_COUNT=400, MESSAGES=8000)
for constant, value in most.items():
    if hasattr(benchmark, constant):
        setattr(benchmark, constant, min(value, getattr(benchmark, constant)))
benchmark.BUDGET_MS = benchmark.BUDGET_US = 1e9  # one round on a busy machine does not judge
benchmark.BUDGETS_MS = dict.fromkeys(("native", "Python"), 1e9)
benchmark.main()
"""
OPTIONS: Final = {"bench_scrape": ["--topics", "2"]}
WITH_PROCESSES: Final = {
    "bench_client",
    "bench_replication",
    "bench_transport",
    "bench_txn_checker",
}


def names() -> list[str]:
    is_native = importlib.util.find_spec("cometmq.accel") is not None
    left_out = WITH_PROCESSES if is_native else WITH_PROCESSES | NATIVE
    return sorted({path.stem for path in MICRO.glob("bench_*.py")} - left_out)


@pytest.mark.parametrize("name", names())
def test_a_micro_benchmark_runs(name: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SHORT, name, *OPTIONS.get(name, [])],
        cwd=MICRO, env={"TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
