# SPDX-License-Identifier: Apache-2.0
"""Starts the operator and the nodes as processes, and reads what programs cost."""

import os
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cometmq.peers.broker.facts import parse_metrics
from cometmq.peers.e2e.metrics import WRITES
from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import Child

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_REQUESTS: Final = "cometmq_operator_api_requests_total"


class Operator:
    """An operator for all namespaces, with the settings of its chart."""

    def __init__(self, cluster: Path, folder: Path) -> None:
        self._port = free_port()
        settings = {
            "COMETMQ_OPERATOR_ADMIN_HTTP_PORT": str(self._port),
            "COMETMQ_OPERATOR_DEFAULT_IMAGE": "cometmq:test",
            "MALLOC_ARENA_MAX": "1",  # as its image sets it
        }
        command = [sys.executable, "-m", "cometmq.peers.scale.operator", str(cluster)]
        self.child = Child("operator", command, log_path=folder / "operator.log", env=settings)

    def metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://{HOST}:{self._port}/metrics", timeout=30) as answer:
            return parse_metrics(answer.read().decode())

    def requests(self) -> dict[str, int]:
        """Return the requests so far by method; watches and records are not counted."""
        found: dict[str, int] = {}
        for name, count in self.metrics().items():
            family, _, labels = name.partition(":")
            if family == _REQUESTS:
                method = labels.partition(":")[0]
                found[method] = found.get(method, 0) + int(count)
        return found

    def writes(self) -> int:
        return sum(count for method, count in self.requests().items() if method in WRITES)


@contextmanager
def running(child: Child) -> Iterator[Child]:
    """Kill a program on leaving: what it would save is not needed."""
    try:
        yield child
    finally:
        child.kill()


def node(name: str, cluster: Path, folder: Path, pods: Sequence[str]) -> Child:
    command = [sys.executable, "-m", "cometmq.peers.scale.node", str(cluster), str(folder / name)]
    return Child(name, [*command, *pods], log_path=folder / f"{name}.log")


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """Return the resident memory of a process in MB (not MiB); `VmHWM` is its peak."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(value) * 1024 / 1e6


def processor_s(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the processor time used by processes so far, by name."""
    found = {}
    for name, pid in pids.items():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        found[name] = sum(map(int, fields[11:13])) / _TICKS_PER_S
    return found


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return the growth of each figure that has grown."""
    all_grown = {name: value - before.get(name, 0) for name, value in after.items()}
    return {name: value for name, value in sorted(all_grown.items()) if value > 0}
