# SPDX-License-Identifier: Apache-2.0
"""Measures deliveries to a good consumer beside peers that ask for large answers.

All peers have the same address, so only the costs of their requests tell them apart.
"""

import asyncio
import time
from pathlib import Path
from typing import Final

from tests.load.nuisances import (
    BIG_TOPIC,
    LIST_COUNT,
    LONG_TOPIC,
    disturbing,
    list_entries,
    stall,
)
from tests.load.probe import TOPIC, Times
from tests.load.reporting import Findings, say

from cometmq.peers.broker.child import BrokerChild
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.facts import FILES, Facts

LISTERS: Final = 300
GREEDY: Final = 50
BIG_COUNT: Final = 40
BIG_BODY: Final = b"b" * (1 << 20)
SENDS_AT_ONCE: Final = 500
PAUSE_S: Final = 0.01
P99_MS_MAX: Final = 100.0
LIST_MIB_MAX: Final = 64.0
"""Memory that all lists under way may take."""


class DeliveriesRun:
    """One run, natively and in Python, whose windows last `seconds` each."""

    def __init__(self, folder: Path, *, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds

    async def run(self) -> Findings:
        findings = Findings()
        for path, is_native in (("native", "true"), ("Python", "false")):
            (folder := self._folder / path).mkdir()
            broker = BrokerChild(folder, **FILES, nativeLaneEnable=is_native)
            await _Beside(path, broker, self._seconds, findings).run()
        return findings


class _Beside:
    def __init__(self, path: str, broker: BrokerChild, seconds: float, findings: Findings) -> None:
        self._path = path
        self._broker = broker
        self._facts = Facts(broker)
        self._seconds = seconds
        self._findings = findings

    async def run(self) -> None:
        with self._broker:
            await self._broker.start()
            await self._fill()
            await self._window("alone")
            before_mib = self._facts.memory_mib()
            with disturbing(list_entries, self._broker.address, LISTERS):
                await self._window(f"beside {LISTERS} that ask for lists")
            mib = self._facts.memory_mib("VmHWM") - before_mib
            say(f"deliveries: {self._path}: memory for lists: {mib:.0f} MiB, bound {LIST_MIB_MAX}")
            if mib > LIST_MIB_MAX:
                self._findings.add(f"deliveries: {self._path}: lists took {mib:.0f} MiB")
            with disturbing(stall, self._broker.address, GREEDY):
                await self._window(f"beside {GREEDY} that never read")

    async def _fill(self) -> None:
        async with Client(self._broker.address) as client:
            for topic in (BIG_TOPIC, LONG_TOPIC, TOPIC):
                await client.create_topic(topic, 1)
            for _ in range(BIG_COUNT):
                await client.send(BIG_TOPIC, 0, BIG_BODY)
            for _ in range(LIST_COUNT // SENDS_AT_ONCE):
                async with asyncio.TaskGroup() as group:
                    for _ in range(SENDS_AT_ONCE):
                        group.create_task(client.send(LONG_TOPIC, 0, b"entry"))

    async def _window(self, name: str) -> None:
        times = Times.of(await self._deliver())
        say(f"deliveries: {self._path}: {name}: {times}")
        if times.p99 > P99_MS_MAX:
            self._findings.add(f"deliveries: {self._path}: {name} p99 is {times.p99:.0f} ms")

    async def _deliver(self) -> list[float]:
        """Send messages to a waiting consumer; return the times until it has them, in ms, without
        the time in which other programs had the processor that the broker needed.
        """
        samples: list[float] = []
        address, end_s = self._broker.address, time.perf_counter() + self._seconds
        async with Client(address) as producer, Client(address) as consumer:
            offset = (await producer.send(TOPIC, 0, b"first")).queue_offset + 1
            while time.perf_counter() < end_s:
                async with asyncio.TaskGroup() as group:
                    group.create_task(consumer.pull(TOPIC, 0, offset, wait_ms=60_000))
                    await asyncio.sleep(PAUSE_S)
                    begin_s, starved_ms = time.perf_counter(), self._facts.starved_ms()
                    offset = (await producer.send(TOPIC, 0, b"good")).queue_offset + 1
                elapsed_ms = (time.perf_counter() - begin_s) * 1000
                samples.append(elapsed_ms - (self._facts.starved_ms() - starved_ms))
        return samples
