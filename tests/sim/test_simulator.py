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


WITHOUT_FILES = """
import gc
import sys
from tests.sim.run import Runs, prepare, run_seed

def refuse(event, arguments):
    is_write = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    assert not is_write and event not in ("os.mkdir", "os.remove"), (event, arguments)

prepare()
sys.addaudithook(refuse)
for seed in range(100):
    world = run_seed(seed, Runs())
    assert not world.violation, world.violation
    if any("tail.cut" in line for line in world.history()):
        print("cut a tail in seed", seed)
        break
    del world
    gc.collect()
"""
"""Runs seeds until a broker cuts off the end of its log, the rarest write of all."""


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


def test_runs_on_several_cores_are_the_same_runs():
    alone = simulate("--seeds", "0:20", "--digest", "--jobs", "1", hash_seed=1)
    shared = simulate("--seeds", "0:20", "--digest", "--jobs", "2", hash_seed=2)
    others = simulate("--seeds", "1:21", "--digest", "--jobs", "1", hash_seed=1)
    first, second, third = (one.stdout.splitlines()[-1] for one in (alone, shared, others))
    assert first.startswith("digest of all runs: ")
    assert first == second != third


def test_a_run_that_ends_early_says_how_to_continue():
    run = simulate("--seeds", "5:500", "--seconds", "0.001", "--jobs", "1")
    assert "10 seeds in " in run.stdout
    assert run.stdout.endswith("to continue: .venv/bin/python -m tests.sim.run --seeds 15:500\n")


def test_a_run_writes_no_files():
    """Runs at the same time would otherwise affect one another."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_FILES], cwd=ROOT, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    assert run.stdout.startswith("cut a tail in seed ")


@pytest.mark.parametrize("rule", mutations.ALL)
def test_a_dropped_rule_is_noticed(rule):
    seeds = mutations.ALL[rule].seeds
    run = simulate("--seeds", str(seeds), "--mutation", rule, "--quiet", "--jobs", "1")
    assert run.returncode == 1, run.stdout + run.stderr
    assert " failed: " in run.stdout
    assert "to repeat it: " in run.stdout
