# SPDX-License-Identifier: Apache-2.0
"""Compare pulls on the native path with the same pulls through the handlers.

Two brokers without sockets receive the same pulls alternately. The figure is the processor time per
pull of 32 messages, from the request's bytes to the answer's, in the best tenth of the rounds. The
files are in memory, so a read is cheaper than a system call.
"""

import asyncio
import gc
import tempfile
import time
from typing import Final, NamedTuple

import uvloop

from cometmq.broker.native import IS_BUILT
from cometmq.remoting import RawCommand, Serialization
from cometmq.testing.broker.scripted import ScriptedBroker
from cometmq.testing.remoting.frames import encode_frame

TOPIC: Final = "Bench"
QUEUES: Final = 4
MESSAGES: Final = 40_000
ROUNDS: Final = 60
PULLS: Final = 64
COUNT: Final = 32


class Shape(NamedTuple):
    """The parameters of the consumers' pulls."""

    name: str
    flags: int = 4
    expression: str = "*"
    kind: str = "TAG"
    groups: int = 1


SHAPES: Final = (
    Shape("all"),
    Shape("all, with commits", flags=5),
    Shape("half by tag", expression="even"),
    Shape("half by SQL", expression="region = 'eu' AND level BETWEEN 0 AND 4", kind="SQL92"),
    Shape("64 groups", groups=64),
)


def send(number: int) -> bytes:
    """Return a send as the Java client encodes it."""
    tag = ("even", "odd")[number // QUEUES % 2]
    ext = {
        "a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(number % QUEUES), "f": "0",
        "g": str(1_700_000_000_000 + number), "h": "0",
        "i": f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01{tag}\x02region\x01eu"
             f"\x02level\x01{number // QUEUES % 10}",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return encode_frame(RawCommand(code=310, opaque=number, ext=ext, body=b"x" * 128))


def pulls(shape: Shape, serialization: Serialization, start: int) -> list[bytes]:
    """Return the pulls of one round, which read the queues in turn."""
    frames = []
    for number in range(start, start + PULLS):
        offset = number // QUEUES // shape.groups * COUNT % (MESSAGES // QUEUES - 1_000)
        ext = {
            "consumerGroup": f"g{number // QUEUES % shape.groups}", "topic": TOPIC,
            "queueId": str(number % QUEUES), "queueOffset": str(offset), "maxMsgNums": str(COUNT),
            "sysFlag": str(shape.flags), "commitOffset": str(offset),
            "suspendTimeoutMillis": "15000", "subscription": shape.expression, "subVersion": "0",
            "expressionType": shape.kind,
        }  # fmt: skip
        command = RawCommand(code=11, opaque=number, ext=ext, serialization=serialization)
        frames.append(encode_frame(command))
    return frames


async def filled(root: str, *, is_native: bool) -> ScriptedBroker:
    """Return a broker whose queues are full."""
    broker = ScriptedBroker(
        storePathRootDir=root, brokerIP1="10.0.0.1", nativeLaneEnable=str(is_native).lower(),
        mappedFileSizeCommitLog=str(64 << 20), enablePropertyFilter="true",
    )  # fmt: skip
    broker.broker.tables.topics.create(TOPIC, queue_nums=QUEUES)
    peer, wire = broker.connect()
    wire.write = _discard  # type: ignore[method-assign, assignment]  # keeping 9 KB costs more than a pull
    for start in range(0, MESSAGES, 50):
        peer.data_received(b"".join(map(send, range(start, start + 50))))
        await broker.settle()
    return broker


def _discard(_data: bytes) -> None:
    """Discard the output that a socket would send."""


async def one_round(broker: ScriptedBroker, frames: list[bytes]) -> float:
    """Serve the pulls of one round; return the nanoseconds per pull."""
    peer, _ = broker.connections[0]
    start = time.thread_time_ns()
    for data in frames:
        peer.data_received(data)
    await asyncio.sleep(0)
    spent = time.thread_time_ns() - start
    await broker.settle()
    return spent / len(frames)


async def measure(root: str) -> None:
    """Print one line for each shape and serialization."""
    brokers = [await filled(root, is_native=is_native) for is_native in (True, False)]
    gc.collect()
    gc.freeze()
    for serialization in Serialization:
        for shape in SHAPES:
            times: tuple[list[float], list[float]] = ([], [])
            for number in range(ROUNDS):
                frames = pulls(shape, serialization, number * PULLS)
                for broker, taken in zip(brokers, times, strict=True):
                    taken.append(await one_round(broker, frames))
            native, python = (sorted(taken)[len(taken) // 10] for taken in times)
            name = f"{shape.name}, {serialization.name}"
            print(f"{name:28s}{native:8.0f} ns native{python:8.0f} ns on Python"
                  f"{python / native:6.1f}x")  # fmt: skip


def main() -> None:
    if not IS_BUILT:
        print("cometmq-accel is not installed: make setup builds it where cargo is there")
        return
    with tempfile.TemporaryDirectory() as root:
        uvloop.run(measure(root))


if __name__ == "__main__":
    main()
