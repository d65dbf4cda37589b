# SPDX-License-Identifier: Apache-2.0
"""What `conftest.py` sets up for all tests."""

import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_program_of_a_block_that_fails_is_killed() -> None:
    with (
        pytest.raises(AssertionError, match="in the block"),
        subprocess.Popen(["sleep", "600"]) as process,
    ):
        raise AssertionError("in the block")
    assert process.returncode == -signal.SIGKILL


def test_the_program_of_other_blocks_ends_on_its_own() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        pass
    assert process.returncode == 0


def collected(*options: str) -> tuple[str, list[str]]:
    """Return the line about the order, and the tests."""
    files = ["tests/tidy/test_conftest.py", "tests/tidy/test_maps.py", "tests/tidy/test_names.py"]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *options, *files]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300
    )
    first, *tests = done.stdout.splitlines()
    return first, [it for it in tests if "::" in it]


def test_a_seed_that_is_shown_draws_the_order_of_files_and_tests() -> None:
    shown, tests = collected()
    again = shown.partition("--order-seed=")[2].split()[0]
    assert collected(f"--order-seed={again}")[1] == tests
    orders = {tuple(collected(f"--order-seed={seed}")[1]) for seed in range(3)}
    assert len(orders) == 3
    for order in orders:
        assert {*order} == {*tests}
        assert len([*groupby(it.partition("::")[0] for it in order)]) == 3, "files stay together"
