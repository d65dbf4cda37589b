# SPDX-License-Identifier: Apache-2.0
"""Sends mutated streams to the ports that do not speak RocketMQ's remoting protocol, and asks one
request at a time to find those that a server answers slowest.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from random import Random
from typing import Final

from tests.fuzz.cost import Cost, Worst
from tests.fuzz.hostile import Hostile, Shot
from tests.fuzz.mutate import mutated
from tests.fuzz.streams import corpus

from cometmq.peers.paths import GOLDEN
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header

ANSWER_S: Final = 10.0
HEALTH_S_MAX: Final = 5.0
"""A busy machine delays health checks, too."""
SHARE: Final = 100  # one hostile stream for so many frames
ATTEMPTS: Final = 3


async def bombard(ports: Mapping[str, str], http: str, *, streams: int, seed: str) -> list[str]:
    """Send mutated inputs of each kind of port to its address; return the faults.

    `ports` maps the folders of the corpus to addresses. A health check beside it must be answered.
    """
    random, inputs, problems = Random(seed), corpus(), []
    for number in range(streams):
        kind = list(ports)[number % len(ports)]
        await _send(ports[kind], mutated(random, inputs[kind]), random)
        if number % 10 == 0:
            began_s = time.monotonic()
            status = await _health(http)
            if status != 200 or time.monotonic() - began_s > HEALTH_S_MAX:
                problems.append(f"/healthz answers {status} after {kind} input {seed}:{number}")
    return problems


async def _send(address: str, data: bytes, random: Random) -> None:
    host, _, port = address.rpartition(":")
    with suppress(OSError):  # the server may refuse or close the connection
        reader, writer = await asyncio.open_connection(host, int(port))
        cut = random.randint(0, len(data))
        for part in (data[:cut], data[cut:]):
            writer.write(part)
            await writer.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await reader.read()
        writer.transport.abort()


async def _health(address: str) -> int:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
    except (OSError, TimeoutError):
        return 0
    writer.close()
    return int(answer.split(b" ")[1])


async def slowest(address: str, codes: list[int], *, count: int, seed: str) -> Worst:
    """Send requests one at a time, and measure each until its answer; the best of some attempts."""
    hostile, worst = Hostile(GOLDEN, Random(seed), codes), Worst()
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    frames = FrameReader()
    for shot in hostile.shots(count)[:-1]:
        if shot.opaque is None:
            continue
        elapsed_s = await _measured(reader, writer, frames, shot)
        for _ in range(ATTEMPTS - 1):
            if Cost.of("", elapsed_s, len(shot.data)).us_per_byte > 10:
                elapsed_s = min(elapsed_s, await _measured(reader, writer, frames, shot))
        worst.note(Cost.of(f"code {shot.code}", elapsed_s, len(shot.data)))
    writer.close()
    return worst


async def _measured(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: FrameReader, shot: Shot
) -> float:
    began_s = time.perf_counter()
    writer.write(shot.data)
    async with asyncio.timeout(ANSWER_S):
        while True:
            data = await reader.read(1 << 20)
            if not data:
                raise ConnectionError(f"no answer to a request of code {shot.code}")
            for serialization, head, _ in frames.feed(data):
                answer = decode_header(serialization, head)
                if answer.is_reply and answer.opaque == shot.opaque:
                    return time.perf_counter() - began_s
