# SPDX-License-Identifier: Apache-2.0
"""Makes the files of a release as `make release` does, at a fixed time."""

import os
import subprocess
import sys
from pathlib import Path

import release as releasing
import wheels

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_790_000_000
PLATFORM = "manylinux-x86_64"
"""That of the native wheel in the release that the tests share."""


def make_release(out, *native):
    command: list[str | Path] = [
        sys.executable, ROOT / "deploy/release/release.py", "make", wheels.workspace_version(),
        "--changed",
    ]  # fmt: skip
    environment = {
        **os.environ,  # noqa: TID251  # proxies and indexes of this machine
        "SOURCE_DATE_EPOCH": str(EPOCH), "PYTHONPATH": str(ROOT / "deploy"),
    }  # fmt: skip
    done = subprocess.run(
        [*command, "--out", out, "--native", *native],
        env=environment, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def is_complete(out):
    """Return whether a folder has all files of a release: the digests are written last."""
    return (out / releasing.SUMS).exists()
