# SPDX-License-Identifier: Apache-2.0
"""Reads the memory, processor time and metrics of one broker."""

import asyncio
import os
import re
import urllib.request
from pathlib import Path
from typing import Final

from cometmq.peers.broker.child import BrokerChild
from cometmq.peers.ports import HOST

FILES: Final = {
    "mappedFileSizeCommitLog": str(256 << 20),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "500000",
    "maxIndexNum": "2000000",
}
"""Small files, so that a store fits on the disk of a test machine."""

_LINE: Final = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_FIXED: Final = ("cluster", "broker", "server")


class Facts:
    def __init__(self, broker: BrokerChild) -> None:
        self._broker = broker

    def memory_mib(self, field: str = "VmRSS") -> float:
        """Return the resident memory; `VmHWM` is its peak."""
        lines = Path(f"/proc/{self._broker.pid}/status").read_text().splitlines()
        (value,) = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
        return int(value) / 1024

    def processor_s(self) -> float:
        """Return the processor time used so far; it does not depend on other load."""
        fields = Path(f"/proc/{self._broker.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def starved_ms(self) -> float:
        """Return how long the main thread could have run so far, while other programs did."""
        fields = Path(f"/proc/{self._broker.pid}/schedstat").read_text().split()
        return int(fields[1]) / 1_000_000

    async def metrics(self) -> dict[str, float]:
        """Return all samples by name; labels common to all samples are dropped."""
        url = f"http://{HOST}:{self._broker.http_port}/metrics"
        return parse_metrics(await asyncio.to_thread(_get, url))


class LagWindow:
    """The lag of the event loop between two readings of its histogram."""

    def __init__(self, before: dict[str, float], after: dict[str, float]) -> None:
        name = "cometmq_loop_lag_seconds_bucket"
        self._counts = {
            float(key.removeprefix(f"{name}:")): count - before.get(key, 0)
            for key, count in after.items()
            if key.startswith(name)
        }

    def quantile_ms(self, share: float) -> float:
        total = max(self._counts.values(), default=0)
        for bound, count in sorted(self._counts.items()):
            if count >= total * share:
                return bound * 1000
        return float("inf")


def parse_metrics(text: str) -> dict[str, float]:
    """Return each sample as `NAME:LABEL_VALUE...`, without the labels that all samples share."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        own = [v for key, v in _LABEL.findall(labels or "") if key not in _FIXED]
        found[":".join([name, *own])] = float(value)
    return found


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text
