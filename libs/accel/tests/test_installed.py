# SPDX-License-Identifier: Apache-2.0
"""Tests of the native path are skipped if it is missing, so leaving it out must be deliberate."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import accel
import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "deploy/accel.py"


def test_the_native_path_is_installed_where_it_can_be_built():
    """Fail rather than skip; `ACCEL=no` permits a missing module, and `ACCEL=yes` requires it."""
    choice = os.getenv("ACCEL")
    can_build = shutil.which("cargo") is not None and accel.is_buildable()
    is_wanted = choice == "yes" or (choice != "no" and can_build)
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


BROKEN_CARGO = """#!/bin/sh
case "$*" in *--version*) echo "cargo 1.90.0"; exit ;; esac
echo "error: linker cc not found" >&2
exit 101
"""


@pytest.fixture
def broken_cargo(tmp_path, monkeypatch):
    """Let a cargo that cannot build be the first in PATH; return the uninstalled packages."""
    cargo = tmp_path / "bin/cargo"
    cargo.parent.mkdir()
    cargo.write_text(BROKEN_CARGO, encoding="utf-8")
    cargo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{cargo.parent}:{os.getenv('PATH')}")
    monkeypatch.setattr(accel, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(accel, "LOG", tmp_path / "cache/build.log")
    monkeypatch.setattr(accel, "ROOT", tmp_path)
    monkeypatch.setattr(accel, "STAMP", tmp_path / ".accel")
    removed: list[str] = []
    monkeypatch.setattr(accel, "pip", lambda action, *what: removed.append(f"{action} {what[0]}"))
    monkeypatch.setattr(accel, "find_spec", lambda _: object())
    return removed


def test_a_cargo_that_cannot_build_leaves_the_path_to_python(broken_cargo, monkeypatch, capsys):
    monkeypatch.delenv("ACCEL", raising=False)
    accel.install()
    printed = capsys.readouterr().out
    assert "cannot be built (error: linker" in printed
    assert "runs on Python: see cache/build.log" in printed
    assert broken_cargo == ["uninstall cometmq-accel"]  # an older one would not fit the sources
    assert not accel.is_buildable()
    accel.cargo("test")  # would fail
    assert "not checked" in capsys.readouterr().out


def test_a_run_that_demands_the_native_path_fails_with_that_cargo(broken_cargo, monkeypatch):
    monkeypatch.setenv("ACCEL", "yes")
    with pytest.raises(SystemExit, match=r"cannot be built \(error: linker"):
        accel.install()
    with pytest.raises(subprocess.CalledProcessError):
        accel.cargo("test")
    assert broken_cargo == []
