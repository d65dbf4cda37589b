# SPDX-License-Identifier: Apache-2.0
"""`make test` first prints what a run involves, and Ctrl-C ends it even if the running test handles
the interrupt.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.peers.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]

DEAF = {
    "a test whose cancellation is handled": """
import asyncio, pytest
@pytest.mark.first
async def test_first(ready):
    ready()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        pass
""",
    "a test that handles KeyboardInterrupt": """
import time, pytest
@pytest.mark.first
def test_first(ready):
    try:
        ready()
        time.sleep(60)
    except KeyboardInterrupt:
        pass
""",
    "a test that runs after a program of its own": """
import asyncio, pytest, signal, time
async def serve():
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, print)
@pytest.fixture(scope="module")
def program():
    asyncio.run(serve())
@pytest.mark.first
def test_first(program, ready):
    ready()
    try:
        asyncio.run(asyncio.sleep(60))
    finally:
        time.sleep(0)
""",
}


@pytest.mark.parametrize("title", DEAF)
def test_ctrl_c_ends_the_run(title, tmp_path):
    ready, second = tmp_path / "ready", tmp_path / "second"
    (tmp_path / "test_deaf.py").write_text(
        f"import pathlib, pytest\n{DEAF[title]}\n"
        f"@pytest.fixture\ndef ready(): return pathlib.Path({str(ready)!r}).touch\n"
        f"def test_second(): pathlib.Path({str(second)!r}).touch()\n",
        encoding="utf-8",
    )
    configuration: list[str | Path] = [
        "-c",
        ROOT / "pyproject.toml",
        "--rootdir",
        ROOT,
        "-p",
        "conftest",
    ]
    command: list[str | Path] = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        [*command, *configuration, tmp_path / "test_deaf.py"],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as running:  # fmt: skip
        wait_until(ready.exists, 60, "the first test")
        os.killpg(running.pid, signal.SIGINT)
        printed, _ = running.communicate(timeout=30)
    assert running.returncode == pytest.ExitCode.INTERRUPTED, printed
    assert not second.exists()


def test_make_test_says_first_what_it_takes():
    done = subprocess.run(
        ["make", "--dry-run", "--assume-old=setup", "test"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = " ".join(line for line in done.stdout.splitlines() if line.startswith("echo "))
    for said in ("more than 15,000 tests", "WORKERS=n", "temporary files only", "Ctrl-C ends them"):
        assert said in words
    assert done.stdout.index("Ctrl-C ends them") < done.stdout.index("/pytest")
