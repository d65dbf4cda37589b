# SPDX-License-Identifier: Apache-2.0
"""Tests of the native path are skipped if it is missing, so leaving it out must be deliberate."""

import os
import shutil
import subprocess
import sys
import tomllib
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
    """Put a cargo that cannot build first in PATH; return the packages that are uninstalled."""
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
    accel.cargo(accel.MEMBER, "test")  # would fail
    assert "not checked" in capsys.readouterr().out


def test_a_run_that_demands_the_native_path_fails_with_that_cargo(broken_cargo, monkeypatch):
    monkeypatch.setenv("ACCEL", "yes")
    with pytest.raises(SystemExit, match=r"cannot be built \(error: linker"):
        accel.install()
    with pytest.raises(subprocess.CalledProcessError):
        accel.cargo(accel.MEMBER, "test")
    assert broken_cargo == []


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Return the environment of `make run`, without uv; its attributes are those of `accel`."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}")
    monkeypatch.delenv("ACCEL", raising=False)
    monkeypatch.setattr(accel, "STAMP", tmp_path / ".accel")
    monkeypatch.setattr(accel, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(accel, "LOG", tmp_path / "cache/build.log")
    monkeypatch.setattr(accel, "ROOT", tmp_path)
    monkeypatch.setattr(accel, "find_spec", lambda _: None)
    monkeypatch.setattr(accel, "pip", lambda *words: pytest.fail(f"pip {words}"))
    return tmp_path


def with_cargo(folder, found):
    cargo = folder / "bin/cargo"
    cargo.write_text(f"#!/bin/sh\necho 'cargo {found} (abc 2025-01-01)'\n", encoding="utf-8")
    cargo.chmod(0o755)


def with_wheel(monkeypatch, found):
    monkeypatch.setattr(accel, "find_spec", lambda _: object())
    monkeypatch.setattr(accel, "version", lambda _: found)


def version_of_this_checkout():
    return tomllib.loads((accel.MEMBER / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("stamp", [None, accel.NO_CARGO, accel.NOT_BUILT])
def test_a_suite_runs_with_an_installed_wheel(environment, monkeypatch, stamp, capsys):
    if stamp is not None:
        accel.STAMP.write_text(stamp)
    with_wheel(monkeypatch, version_of_this_checkout())
    accel.install(is_to_run=True)
    assert capsys.readouterr().out == ""


def test_a_wheel_of_another_version_is_not_kept(environment, monkeypatch, capsys):
    removed: list[object] = []
    monkeypatch.setattr(accel, "pip", lambda *words: removed.append(words))
    with_wheel(monkeypatch, "0.0.1")
    accel.install(is_to_run=True)
    assert removed == [("uninstall", "cometmq-accel")]
    assert "no cargo here, so the message path runs on Python" in capsys.readouterr().out


def test_an_old_cargo_is_named_once(environment, capsys):
    with_cargo(environment, "1.86.0")
    accel.install(is_to_run=True)
    printed = capsys.readouterr().out
    assert printed == "accel: cargo 1.86.0 is older than 1.87, so the message path runs on Python\n"
    accel.install(is_to_run=True)
    assert capsys.readouterr().out == ""


def test_an_old_cargo_fails_a_run_that_demands_the_native_path(environment, monkeypatch):
    with_cargo(environment, "1.86.0")
    monkeypatch.setenv("ACCEL", "yes")
    with pytest.raises(SystemExit, match=r"cargo 1\.86\.0 is older than 1\.87: install Rust"):
        accel.install(is_to_run=True)


def test_a_new_cargo_builds_without_the_tools_of_developers(environment, monkeypatch):
    with_cargo(environment, "1.87.0-nightly")
    commands: list[list[str]] = []

    def run(command, **_):
        commands.append([str(word) for word in command])
        if "wheel" in command:
            (accel.CACHE / "wheels" / accel.sources()).mkdir(parents=True)
            (accel.CACHE / "wheels" / accel.sources() / "cometmq_accel-1.whl").touch()
        return subprocess.CompletedProcess(command, 0, "cargo 1.87.0-nightly", "")

    installed: list[str] = []
    monkeypatch.setattr(accel, "pip", lambda action, *_: installed.append(action))
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "executable", str(environment / "bin/python"))
    accel.install(is_to_run=True)
    assert commands[-1][1:4] == ["-m", "pip", "wheel"]
    assert installed == ["install"]
    assert accel.STAMP.read_text() == accel.sources()


def test_a_build_that_failed_is_not_repeated_at_each_start(environment, capsys):
    with_cargo(environment, "1.90.0")
    accel.STAMP.write_text(accel.NOT_BUILT)
    accel.install(is_to_run=True)
    assert capsys.readouterr().out == (
        "accel: the native message path could not be built, so the message path runs on Python:"
        " see cache/build.log; make setup tries again\n"
    )


def test_make_run_builds_the_native_path_unless_told_not_to():
    def commands(*words: str) -> str:
        return subprocess.run(
            ["make", "--dry-run", "--assume-old=.venv/.runtime", *words],
            cwd=SCRIPT.parents[1], capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    for target in ("run", "demo"):
        assert "deploy/accel.py install --to-run" in commands(target)
        assert "deploy/accel.py" not in commands(target, "ACCEL=no")
