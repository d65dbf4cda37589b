# SPDX-License-Identifier: Apache-2.0
"""Another commit of CometMQ, installed beside this one, whose servers run alternately with ours."""

import subprocess
from typing import Final

from macro.native import BenchError

from cometmq.peers.paths import ROOT

PARENT: Final = "parent"
FOLDER: Final = ROOT / ".cache" / "parent"
PARENT_PROGRAM: Final = FOLDER / ".venv" / "bin" / "cometmq"
SETUP_TIMEOUT_S: Final = 900.0


def prepare_parent(revision: str) -> None:
    """Check out a commit into `.cache/parent` and install it with its native path.

    Raises BenchError if there is no such commit, or if it cannot be installed.
    """
    found = ["rev-parse", "--verify", "--quiet", revision + "^{commit}"]
    commit = _run(["git", "-C", str(ROOT), *found], f"no commit {revision}").strip()
    if not FOLDER.exists():
        _run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(FOLDER)], "git clone")
    _run(["git", "-C", str(FOLDER), "fetch", "--quiet", str(ROOT), commit], "git fetch")
    _run(["git", "-C", str(FOLDER), "checkout", "--quiet", "--detach", commit], "git checkout")
    _run(
        ["env", "-u", "MAKEFLAGS", "make", "-C", str(FOLDER), "setup", "ACCEL=yes"],
        f"make setup of {revision}",
    )


def _run(command: list[str], step: str) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=SETUP_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        raise BenchError(f"{step}\n{(done.stderr or done.stdout).strip()[-2000:]}".strip())
    return done.stdout
