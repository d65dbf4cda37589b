# SPDX-License-Identifier: Apache-2.0
"""What `conftest.py` sets up for all tests."""

import signal
import subprocess

import pytest


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
