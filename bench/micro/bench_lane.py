# SPDX-License-Identifier: Apache-2.0
"""Compare sends on the native path with the same sends through the handlers, and with accounts.

Brokers without sockets or files receive the same chunks in turn, one of them signed. The figure is
the processor time per message, from the request's bytes to the answer's, in the best tenth of the
rounds.
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import uvloop

from cometmq.broker.native import IS_BUILT
from cometmq.remoting import RawCommand, Serialization
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.signature import SessionCredentials, Signer
from cometmq.runtime.acl.accounts import Account, Accounts
from cometmq.testing.broker.scripted import ScriptedBroker
from cometmq.testing.remoting.frames import encode_frame

TOPIC: Final = "Bench"
QUEUES: Final = 4
ROUNDS: Final = 60
TURNS: Final = 8
CREDENTIALS: Final = SessionCredentials("benchKey1", "benchSecret1")
SIGNER: Final = Signer(CREDENTIALS.secret_key)
ACCOUNT: Final = AclAccount(
    CREDENTIALS.access_key, secret_key=CREDENTIALS.secret_key, default_topic_perm="PUB|SUB"
)
ACCOUNTS: Final = Accounts([Account(ACCOUNT)], version=DataVersion(), versions={})


class Shape(NamedTuple):
    """A load: connections x requests in flight, body size, number of topics."""

    connections: int
    in_flight: int
    size: int
    topics: int = 1


SHAPES: Final = (
    Shape(8, 32, 128), Shape(64, 1, 128), Shape(8, 32, 1024), Shape(8, 32, 128, topics=1_000),
)  # fmt: skip


def send(
    number: int, shape: Shape, body: bytes, serialization: Serialization, *, signs: bool
) -> bytes:
    """Return a send as the Java client encodes it; sends go to the topics in turn."""
    topic, queue_id = number % shape.topics, number // shape.topics % QUEUES
    ext = {
        "a": "bench", "b": f"{TOPIC}{topic}", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": str(1_700_000_000_000 + number), "h": "0",
        "i": f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    if signs:
        SIGNER.add_to(ext, body, CREDENTIALS)
    command = RawCommand(code=310, opaque=number, ext=ext, body=body, serialization=serialization)
    return encode_frame(command)


def chunks(shape: Shape, serialization: Serialization, *, signs: bool) -> Iterator[list[bytes]]:
    """Yield, for each loop iteration, the chunks that the connections send."""
    body, number = b"x" * shape.size, 0
    while True:
        turn = []
        for _ in range(shape.connections):
            numbers = range(number, number + shape.in_flight)
            sends = (send(one, shape, body, serialization, signs=signs) for one in numbers)
            turn.append(b"".join(sends))
            number += shape.in_flight
        yield turn


async def one_round(broker: ScriptedBroker, turns: list[list[bytes]]) -> float:
    """Serve one round of chunks; return the nanoseconds per loop iteration."""
    start = time.thread_time_ns()
    for turn in turns:
        for (peer, _), data in zip(broker.connections, turn, strict=True):
            peer.data_received(data)
        await asyncio.sleep(0)
    spent = time.thread_time_ns() - start
    await broker.settle()
    for _, wire in broker.connections:
        wire.sent.clear()
    return spent / len(turns)


async def measure(shape: Shape, serialization: Serialization, root: str) -> None:
    """Measure all paths with one shape and serialization; print one line."""
    brokers = []
    for is_native, accounts in ((True, None), (True, ACCOUNTS), (False, None)):
        broker = ScriptedBroker(
            accounts=accounts, storePathRootDir=root, brokerIP1="10.0.0.1",
            nativeLaneEnable=str(is_native).lower(), mappedFileSizeCommitLog=str(64 << 20),
        )  # fmt: skip
        for number in range(shape.topics):
            broker.broker.tables.topics.create(f"{TOPIC}{number}", queue_nums=QUEUES)
        for _ in range(shape.connections):
            broker.connect()
        brokers.append(broker)
    sources = [chunks(shape, serialization, signs=signs) for signs in (False, True, False)]
    times: tuple[list[float], ...] = ([], [], [])
    gc.collect()
    gc.freeze()
    for _ in range(ROUNDS):
        for broker, source, taken in zip(brokers, sources, times, strict=True):
            taken.append(await one_round(broker, [next(source) for _ in range(TURNS)]))
    messages = shape.connections * shape.in_flight
    native, secured, python = (sorted(taken)[len(taken) // 10] / messages for taken in times)
    connections, in_flight, size, topics = shape
    name = f"{connections} x {in_flight}, {size} bytes, topics: {topics}, {serialization.name}"
    print(
        f"{name:46s}{native:8.0f} ns native{python:8.0f} ns on Python{python / native:6.1f}x"
        f"{secured:8.0f} ns native with accounts"
    )


def main() -> None:
    if not IS_BUILT:
        print("cometmq-accel is not installed: make setup builds it where cargo is there")
        return
    for serialization in Serialization:
        for shape in SHAPES:
            with tempfile.TemporaryDirectory() as root:
                uvloop.run(measure(shape, serialization, root))


if __name__ == "__main__":
    main()
