# SPDX-License-Identifier: Apache-2.0
"""Tests of the native path are skipped if it is missing, so leaving it out must be deliberate."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "deploy/accel.py"


def test_the_native_path_is_installed_where_it_can_be_built():
    """Fail rather than skip; `ACCEL=no` permits a missing module, and `ACCEL=yes` requires it."""
    choice = os.getenv("ACCEL")
    is_wanted = choice == "yes" or (choice != "no" and shutil.which("cargo") is not None)
    assert not is_wanted or find_spec("cometmq.accel") is not None, (
        "cometmq-accel is not installed: run `make setup` with cargo in PATH, or set ACCEL=no"
    )


@pytest.mark.parametrize("command", ["lint", "test"])
def test_only_a_run_that_demands_the_native_path_fails_without_cargo(command):
    def without_cargo(**environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, SCRIPT, command],
            env={"PATH": "", **environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert without_cargo().returncode == 0
    demanded = without_cargo(ACCEL="yes")
    assert demanded.returncode == 1
    assert "there is no cargo in PATH" in demanded.stderr
