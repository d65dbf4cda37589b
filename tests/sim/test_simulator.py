# SPDX-License-Identifier: Apache-2.0
"""A seed reproduces its run, and the simulator detects the removal of any rule of the protocol.

Each run has a separate process, because it leaves coroutines behind that never end.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.sim import mutations

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1_500  # for a loaded machine; an idle one takes seconds


def simulate(*arguments: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.sim.run", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={"PYTHONHASHSEED": str(hash_seed)},
    )  # fmt: skip


@pytest.mark.parametrize("seed", [3, 11])
def test_a_seed_repeats_its_run(seed):
    first = simulate("--seed", str(seed), hash_seed=1)
    second = simulate("--seed", str(seed), hash_seed=2)
    assert first.stdout == second.stdout
    assert first.stdout.count("\n") > 50
    assert first.returncode == 0, first.stdout


@pytest.mark.parametrize("rule", mutations.ALL)
def test_a_dropped_rule_is_noticed(rule):
    seeds = mutations.ALL[rule].seeds
    run = simulate("--seeds", str(seeds), "--mutation", rule, "--quiet", "--jobs", "1")
    assert run.returncode == 1, run.stdout + run.stderr
    assert " failed: " in run.stdout
    assert "to repeat it: " in run.stdout
