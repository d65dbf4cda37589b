# SPDX-License-Identifier: Apache-2.0
"""Floods a broker with valid and mutated requests on a few connections; each one is answered in
time.
"""

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tests.fuzz.hostile import Hostile, Shot
from tests.load.reporting import Findings, say

from cometmq.broker.handlers import HANDLERS
from cometmq.peers.broker.child import BrokerChild
from cometmq.peers.broker.facts import FILES
from cometmq.peers.paths import GOLDEN
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header

CONNECTIONS: Final = 6
BATCH: Final = 120
"""Requests that a connection sends at once; it sends the next ones when all are answered."""
ANSWER_S_MAX: Final = 5.0
GIVE_UP_S: Final = 60.0
SETTINGS: Final = {
    **FILES,
    "longPollingEnable": "false",  # a held pull is meant to wait
    "shortPollingTimeMills": "50",
}


class Wait(NamedTuple):
    """How long a request of one code waited for its answer; waits compare by time."""

    elapsed_s: float
    code: int


class Line(asyncio.Protocol):
    """One connection, which notes how long each request waits."""

    def __init__(self) -> None:
        self.waits: list[Wait] = []
        self.pending: dict[int, Wait] = {}
        self.is_cut_off = False
        self._frames = FrameReader()
        self._answered = asyncio.Event()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    async def ask(self, shots: list[Shot]) -> None:
        """Send requests at once, and wait until each is answered or hopeless."""
        assert self._transport is not None
        now_s = time.monotonic()
        self.pending = {shot.opaque: Wait(now_s, shot.code) for shot in shots if shot.opaque}
        self._answered.clear()
        self._transport.write(b"".join(shot.data for shot in shots))
        try:
            async with asyncio.timeout(GIVE_UP_S):
                await self._answered.wait()
        except TimeoutError:
            self.waits += [Wait(GIVE_UP_S, code) for _, code in self.pending.values()]

    def data_received(self, data: bytes) -> None:
        now_s = time.monotonic()
        for serialization, head, _ in self._frames.feed(data):
            answer = decode_header(serialization, head)
            asked = self.pending.pop(answer.opaque, None) if answer.is_reply else None
            if asked is not None:
                self.waits.append(Wait(now_s - asked.elapsed_s, asked.code))
        if not self.pending:
            self._answered.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut_off = bool(self.pending)
        self._answered.set()

    def close(self) -> None:
        assert self._transport is not None
        self._transport.abort()


class FloodRun:
    def __init__(self, folder: Path, *, requests: int, seed: int) -> None:
        self._broker = BrokerChild(folder, **SETTINGS)
        self._requests = requests
        self._seed = seed
        self._findings = Findings()

    async def run(self) -> Findings:
        """Send the requests; each one without an answer in time is a finding."""
        with ExitStack() as stack:
            stack.callback(self._broker.kill)
            await self._broker.start()
            began_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._flood(number)) for number in range(CONNECTIONS)]
            waits = sorted(wait for task in tasks for wait in task.result())
            elapsed_s = time.monotonic() - began_s
            late = Counter(code for wait_s, code in waits if wait_s > ANSWER_S_MAX)
            say(
                f"flood: {len(waits)} answers, {len(waits) / elapsed_s:.0f} a second; the slowest"
                f" took {waits[-1].elapsed_s:.2f} s (code {waits[-1].code})"
            )
            for code, count in late.items():
                self._findings.add(
                    f"flood: {count} requests of code {code} got no answer within {ANSWER_S_MAX} s"
                )
        return self._findings

    async def _flood(self, number: int) -> list[Wait]:
        host, _, port = self._broker.address.rpartition(":")
        loop = asyncio.get_running_loop()
        hostile = Hostile(GOLDEN, Random(f"{self._seed}:{number}"), list(HANDLERS))
        _, line = await loop.create_connection(Line, host, int(port))
        for _ in range(-(-self._requests // (CONNECTIONS * BATCH))):
            await line.ask(hostile.shots(BATCH + 1)[:-1])  # the last one may end the connection
            if line.is_cut_off:
                codes = Counter(code for _, code in line.pending.values())
                self._findings.add(f"flood: a connection ended; it waited for answers to {codes}")
                break
        line.close()
        return line.waits
