# SPDX-License-Identifier: Apache-2.0
"""Child processes always end, and a failed start shows its output."""

import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.peers.errors import PeerError
from cometmq.peers.processes import Child, wait_until

IGNORES_SIGTERM = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
signal.pause()
"""


def _python(program: str, log_path: Path) -> Child:
    return Child("test", [sys.executable, "-c", program], log_path=log_path)


def test_an_early_exit_ends_the_wait_and_shows_the_output(tmp_path: Path) -> None:
    child = _python("print('no such port'); raise SystemExit(7)", tmp_path / "log")

    with pytest.raises(PeerError, match=r"exited with 7 before(.|\n)*no such port"):
        child.wait_for_log("ready", 60)


def test_a_deaf_program_is_killed(tmp_path: Path) -> None:
    """SIGTERM is sent first, then SIGKILL after the timeout."""
    child = _python(IGNORES_SIGTERM, tmp_path / "log")
    child.wait_for_log("deaf", 60)

    assert child.stop(0.1) == -9


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path;"
        "from cometmq.peers.processes import Child, wait_until;"
        "child = Child('sleeper', ['sleep', '60'], log_path=Path(sys.argv[1]));"
        "name = Path(f'/proc/{child.pid}/comm');"
        "wait_until(lambda: name.read_text() == 'sleep\\n', 10, 'it sleeps');"
        "print(child.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    parent = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "log"],
        capture_output=True,
        text=True,
        check=False,
    )

    def is_over() -> bool:
        stat = Path(f"/proc/{int(parent.stdout)}/stat")
        return not stat.exists() or ") Z " in stat.read_text(encoding="ascii")

    wait_until(is_over, 60, "the child ended")
    assert parent.returncode == -9
