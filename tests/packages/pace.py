# SPDX-License-Identifier: Apache-2.0
"""Processor times of programs, with limits that allow for slow and busy machines."""

import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cometmq.peers.errors import PeerError
from cometmq.peers.ports import HOST
from cometmq.peers.wire import call

TIMEOUT_S = 180
RUNTIME_INFO = 28
IMPORTS = (
    "asyncio, ssl, email.message, http.client, unittest.mock, xml.dom.minidom, ctypes, decimal,"
    " concurrent.futures.process, logging.config, argparse, doctest"
)
IMPORTS_S = 0.1
"""The processor time of these imports on the machine for which the limits were set."""


def children_s() -> float:
    """Return the processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def slowness() -> float:
    """Return how much slower than that machine this one is now; at least 1."""
    before = children_s()
    subprocess.run([sys.executable, "-c", f"import {IMPORTS}"], check=True, timeout=TIMEOUT_S)
    return max(1.0, (children_s() - before) / IMPORTS_S)


def first_answer_s(command: Sequence[str], port: int, env: Mapping[str, str]) -> float:
    """Start a broker, and kill it after its first answer; return its processor time until then."""
    log = subprocess.DEVNULL
    with subprocess.Popen(command, env=env, stdin=log, stdout=log, stderr=log) as process:
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise PeerError(f"no answer of {' '.join(command)}")
                time.sleep(0.001)
            tasks = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
            return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
        finally:
            process.kill()


def _answers(port: int) -> bool:
    try:
        return call(f"{HOST}:{port}", RUNTIME_INFO, timeout_s=TIMEOUT_S).code == 0
    except OSError:
        return False
