# SPDX-License-Identifier: Apache-2.0
"""Runs a well-behaved client in its own process, which measures its latency."""

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from cometmq.peers.broker.client import Client

TOPIC: Final = "good"
BODY: Final = b"g" * 128
CONNECTION_COUNT: Final = 8
PAUSE_S: Final = 0.02
WARM_UP_S: Final = 0.5
SAMPLES_MIN: Final = CONNECTION_COUNT
ANSWER_S: Final = 60.0


class Times(NamedTuple):
    """Latencies of sends in milliseconds."""

    sample_count: int
    p50: float
    p99: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Times":
        ordered = sorted(samples)
        return cls(len(ordered), ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100])

    def __str__(self) -> str:
        return f"p50 {self.p50:.2f} ms, p99 {self.p99:.2f} ms of {self.sample_count}"


class Probe:
    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    async def measure(self, seconds: float) -> list[float]:
        """Send for `seconds`, one message at a time per connection; return the latencies in ms."""
        self._pipe.send(seconds)
        samples: list[float] = await asyncio.to_thread(self._receive, seconds)
        assert len(samples) >= SAMPLES_MIN, f"only {len(samples)} sends in {seconds} s"
        return samples

    def _receive(self, seconds: float) -> list[float]:
        assert self._pipe.poll(seconds + ANSWER_S), "the probe gets no answers"
        samples: list[float] = self._pipe.recv()
        return samples


@contextmanager
def probing(address: str) -> Iterator[Probe]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(address, theirs), daemon=True)
    process.start()
    try:
        yield Probe(ours)
    finally:
        process.kill()
        process.join()


def _run(address: str, pipe: "Connection[list[float], float]") -> None:
    asyncio.run(_serve(address, pipe))


async def _serve(address: str, pipe: "Connection[list[float], float]") -> None:
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(Client(address)) for _ in range(CONNECTION_COUNT)
        ]
        while True:
            seconds = await asyncio.to_thread(pipe.recv)
            await _measure(clients, WARM_UP_S)
            pipe.send(await _measure(clients, seconds))


async def _measure(clients: Sequence[Client], seconds: float) -> list[float]:
    samples: list[float] = []
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(_send(client, seconds, samples))
    return samples


async def _send(client: Client, seconds: float, samples: list[float]) -> None:
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        await client.send(TOPIC, 0, BODY)
        samples.append((time.perf_counter() - begin) * 1000)
        await asyncio.sleep(PAUSE_S)
