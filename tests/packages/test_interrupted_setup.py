# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C during an installation leaves nothing that a later `make` would take for complete."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from tests.packages.trees import MARKER, copy_of_repository, make

from cometmq.peers.processes import wait_until

PACKAGES = ".venv/lib/python*/site-packages"


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    return copy_of_repository(tmp_path_factory.mktemp("interrupted"))


@pytest.fixture
def tree(copy):
    """Return a copy of the repository without an environment."""
    shutil.rmtree(copy / ".venv", ignore_errors=True)
    return copy


def interrupt(tree, pattern):
    """Press Ctrl-C as soon as the installation has made a file; return what was printed."""
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    command = ["make", MARKER]
    with subprocess.Popen(
        command, cwd=tree, stdout=pipe, stderr=both, text=True, start_new_session=True
    ) as running:
        wait_until(lambda: any(tree.glob(pattern)), 120, pattern)
        assert running.poll() is None
        os.killpg(running.pid, signal.SIGINT)
        out, _ = running.communicate(timeout=60)
    assert running.returncode != 0
    return out


def assert_runs(tree):
    command = [tree / ".venv/bin/cometmq", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("cometmq "), done.stderr
    assert not (tree / ".venv/.unfinished").exists()


def test_an_interrupted_environment_is_made_again(tree):
    printed = interrupt(tree, f"{PACKAGES}/pip/_internal")
    assert "Traceback" not in printed, printed
    assert not (tree / MARKER).exists()
    assert "Replacing .venv" in make(tree, MARKER)
    assert_runs(tree)


def test_half_copied_packages_are_installed_again(tree):
    """Pip considers a package installed if it finds the package's METADATA."""
    interrupt(tree, f"{PACKAGES}/msgspec-*.dist-info/METADATA")
    (package,) = tree.glob(f"{PACKAGES}/msgspec")
    shutil.rmtree(package)
    assert "Replacing .venv" in make(tree, MARKER)
    assert_runs(tree)


def test_an_environment_without_pip_is_replaced(tree):
    command = [sys.executable, "-m", "venv", "--without-pip", ".venv"]
    subprocess.run(command, cwd=tree, check=True)
    assert "Replacing .venv" in make(tree, MARKER)
    assert_runs(tree)


@pytest.mark.parametrize("marker", [MARKER, ".venv/.ready"])
def test_an_interrupted_update_repeats_each_installation(tree, marker):
    """A package left half installed by an update of one set may belong to the other set."""
    (tree / ".venv").mkdir()
    (tree / marker).touch()

    def is_complete():
        command = ["make", "--question", marker]
        return subprocess.run(command, cwd=tree, check=False).returncode == 0

    assert is_complete()
    unfinished = tree / ".venv/.unfinished"
    unfinished.touch()
    later = (tree / marker).stat().st_mtime + 1
    os.utime(unfinished, (later, later))
    assert not is_complete()
