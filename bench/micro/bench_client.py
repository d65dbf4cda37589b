# SPDX-License-Identifier: Apache-2.0
"""Time the client: concurrent sends on one connection, and delivery to a listener.

An in-memory broker runs in a separate process, so the printed CPU time is the client's alone. The
message rate also depends on other work on the machine.
"""

import argparse
import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

import uvloop

from cometmq.client import ConsumeFrom, Message, MessageExt, Producer, PushConsumer, PushOptions
from cometmq.client.testing import MemoryCluster

BODY = bytes(128)


async def serve(pipe: Connection) -> None:
    """Run an in-memory broker until the parent asks it to stop."""
    async with MemoryCluster() as cluster:
        cluster.create_topic("T")
        pipe.send(cluster.namesrv)
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)


def run_server(pipe: Connection) -> None:
    """Run `serve` as the entry point of the server process."""
    uvloop.run(serve(pipe))


def report(name: str, count: int, wall_s: float, cpu_s: float) -> None:
    """Print the rate and the CPU time per message in one line."""
    print(f"{name:32s}{count / wall_s:10.0f} /s{cpu_s / count * 1e6:8.1f} us CPU each")


async def time_sends(producer: Producer, in_flight: int, count: int) -> None:
    """Send `count` messages, with up to `in_flight` sends pending at a time."""
    message = Message("T", BODY)

    async def work() -> None:
        for _ in range(count // in_flight):
            await producer.send(message)

    wall_s, cpu_s = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    report(f"send 128 B, {in_flight} in flight", count, wall_s, cpu_s)


async def time_listener(namesrv: str, batch_count_max: int, count: int) -> None:
    """Consume `count` messages that were stored beforehand."""
    seen = 0
    done = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> None:
        nonlocal seen
        seen += len(messages)
        if seen >= count:
            done.set()

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, batch_count_max=batch_count_max)
    group = f"group-{batch_count_max}"
    consumer = PushConsumer(group, namesrv, listener=listener, options=options)
    consumer.subscribe("T")
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    async with consumer:
        await done.wait()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    report(f"listen, {batch_count_max} per call", count, wall_s, cpu_s)


async def measure(namesrv: str, count: int) -> None:
    async with Producer("bench", namesrv) as producer:
        for in_flight in (1, 32, 1000):
            await time_sends(producer, in_flight, count // 10 if in_flight == 1 else count)
    for batch_count_max in (1, 32):
        await time_listener(namesrv, batch_count_max, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30_000)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipe, far_end = context.Pipe()
    server = context.Process(target=run_server, args=(far_end,))
    server.start()
    try:
        uvloop.run(measure(pipe.recv(), arguments.count))
    finally:
        pipe.send("stop")
        server.join(timeout=10)


if __name__ == "__main__":
    main()
