# SPDX-License-Identifier: Apache-2.0
"""Runs processes that send hostile frames over many connections and count the answers."""

import asyncio
import hashlib
from collections import Counter
from random import Random
from typing import Final, NamedTuple

from tests.fuzz.hostile import Hostile, Shot

from cometmq.peers.paths import FUZZ_FAILURES, GOLDEN
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header

FRAMES_PER_CONNECTION: Final = 120
CONNECTIONS_AT_ONCE: Final = 6
ANSWER_TIMEOUT_S: Final = 60.0


class Tally(NamedTuple):
    frames: int
    answers: int
    connections: int
    cut_off: list[str]
    codes: dict[int, int]
    unanswered: dict[int, int]


class _Attack(asyncio.Protocol):
    """One connection, which reads until every expected answer has arrived."""

    def __init__(self, expected: dict[int, int]) -> None:
        self.expected = expected
        self.answers: Counter[int] = Counter()
        self.done = asyncio.Event()
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.is_cut_off = False
        self._reader = FrameReader()

    def data_received(self, data: bytes) -> None:
        for serialization, head, _ in self._reader.feed(data):
            answer = decode_header(serialization, head)
            if answer.is_reply:
                self.answers[answer.code] += 1
                self.expected.pop(answer.opaque, None)
        if not self.expected:
            self.done.set()

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_cut_off = bool(self.expected)
        self.can_write.set()
        self.done.set()


def attack(address: str, codes: list[int], frames: int, seed: str) -> Tally:
    """Send frames to a server that serves these codes; the entry point of a process."""
    return asyncio.run(_attack(address, Hostile(GOLDEN, Random(seed), codes), frames, seed))


async def _attack(address: str, hostile: Hostile, frames: int, seed: str) -> Tally:
    count = -(-frames // FRAMES_PER_CONNECTION)
    left = iter(range(count))
    tallies: list[Tally] = []

    async def worker(number: int) -> None:
        random = Random(f"{seed}:{number}")
        for _ in left:
            tally = await _one(address, hostile.shots(FRAMES_PER_CONNECTION), random)
            tallies.append(tally)

    async with asyncio.TaskGroup() as group:
        for number in range(CONNECTIONS_AT_ONCE):
            group.create_task(worker(number))
    return total(tallies)


async def _one(address: str, shots: list[Shot], random: Random) -> Tally:
    """Send one connection's frames; the last, which may end it, only after the other answers."""
    host, _, port = address.rpartition(":")
    expected = {shot.opaque: shot.code for shot in shots if shot.opaque is not None}
    loop = asyncio.get_running_loop()
    transport, attack = await loop.create_connection(lambda: _Attack(expected), host, int(port))
    *whole, last = shots
    data = b"".join(shot.data for shot in whole)
    cursor = 0
    while cursor < len(data) and not transport.is_closing():
        size = random.choice((1, 100, 4_000, 60_000))
        transport.write(data[cursor : cursor + size])
        cursor += size
        await attack.can_write.wait()
    unanswered: Counter[int] = Counter()
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await attack.done.wait()
    except TimeoutError:
        unanswered.update(attack.expected.values())
    codes: Counter[int] = Counter(attack.answers)
    cut_off = [_save(shots, attack.expected)] if attack.is_cut_off else []
    if not transport.is_closing():
        transport.write(last.data)
    if random.random() < 0.5:
        transport.close()
    else:
        transport.abort()
    return Tally(len(shots), codes.total(), 1, cut_off, dict(codes), dict(unanswered))


def total(tallies: list[Tally]) -> Tally:
    codes: Counter[int] = Counter()
    unanswered: Counter[int] = Counter()
    for tally in tallies:
        codes.update(tally.codes)
        unanswered.update(tally.unanswered)
    return Tally(
        frames=sum(tally.frames for tally in tallies),
        answers=sum(tally.answers for tally in tallies),
        connections=sum(tally.connections for tally in tallies),
        cut_off=[path for tally in tallies for path in tally.cut_off],
        codes=dict(codes),
        unanswered=dict(unanswered),
    )


def _save(shots: list[Shot], unanswered: dict[int, int]) -> str:
    """Save the frames of a connection that ended early, probably at the first unanswered one."""
    FUZZ_FAILURES.mkdir(parents=True, exist_ok=True)
    data = b"".join(shot.data for shot in shots)
    path = FUZZ_FAILURES / f"connection-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    first = min(unanswered)
    return f"{path}: no answer to request {first} of code {unanswered[first]}"


class Nuisance:
    """Slow readers, half-open connections and floods."""

    def __init__(self, address: str, random: Random) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._random = random
        self._hostile = Hostile(GOLDEN, random)
        self._sockets: list[asyncio.StreamWriter] = []

    async def forever(self) -> None:
        async with asyncio.TaskGroup() as group:
            for behave in (self._never_read, self._half_frame, self._silent, self._never_read):
                for _ in range(4):
                    group.create_task(self._again(behave))

    async def _again(self, behave: object) -> None:
        assert callable(behave)
        while True:
            writer = None
            try:
                reader, writer = await asyncio.open_connection(self._host, self._port, limit=1024)
                await behave(reader, writer)
            except (OSError, RemoteProtocolError, TimeoutError):
                await asyncio.sleep(0.05)
            finally:
                if writer is not None:
                    writer.transport.abort()

    async def _never_read(
        self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Send requests without ever reading an answer."""
        async with asyncio.timeout(20):
            while not writer.is_closing():
                for shot in self._hostile.shots(50)[:-1]:
                    writer.write(shot.data)
                await writer.drain()
                await asyncio.sleep(0.2)

    async def _half_frame(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((12 << 20).to_bytes(4, "big") + (200).to_bytes(4, "big"))
        async with asyncio.timeout(10):
            while not writer.is_closing():
                writer.write(self._random.randbytes(20_000))
                await writer.drain()
                await asyncio.sleep(0.5)

    async def _silent(self, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(self._random.uniform(0.1, 5)):
            await reader.read()


def be_a_nuisance(address: str, seed: str) -> None:
    """Run a nuisance until the process is killed; the entry point of its process."""
    asyncio.run(Nuisance(address, Random(seed)).forever())
