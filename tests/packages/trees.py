# SPDX-License-Identifier: Apache-2.0
"""Copies of the repository in which tests run `make`."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARKER = ".venv/.runtime"
RUNTIME_BYTES_MAX = 40_000_000
"""The most that `make run` may install, as README.md says."""


def make(tree, *words):
    done = subprocess.run(
        ["make", *words], cwd=tree, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_of_repository(folder):
    """Copy what `make run` needs into a folder."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if re.match(
            r"(Makefile|requirements.*|LICENSE|libs/.*|operator/.*|services/.*|tests/(peers|support)/pyproject.toml)$",
            name,
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_symlink():
                (folder / name).symlink_to((ROOT / name).readlink())
            elif (ROOT / name).exists():
                (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder
