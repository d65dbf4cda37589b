# SPDX-License-Identifier: Apache-2.0
"""Time how long a new follower takes to catch up over loopback, compared with a plain copy.

The master is a child process. The follower writes the log, builds its queues and its index, and
acknowledges; both run a broker's background jobs. The plain copy sends the same files with sendfile
and writes the received bytes, which is the fastest possible copy to another machine.
"""

import asyncio
import contextlib
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cometmq.broker.store_driver import TICK_INTERVAL_MS
from cometmq.broker.testing.group_members import GroupNode
from cometmq.broker.testing.replicas import until
from cometmq.store import OsDisk
from cometmq.store.testing.builders import make_message

CASES = ((1024, 1 << 30), (128, 256 << 20))
"""Pairs of body size and log size, in bytes."""

BATCH_COUNT = 500
CHUNK_BYTES = 1 << 20


def settings_of(folder: str) -> dict[str, Any]:
    """Return the settings of a store in this folder, with the usual file sizes."""
    return {
        "store_path_root_dir": folder,
        "mapped_file_size_commit_log": 1 << 30,
        "mapped_file_size_consume_queue": 6_000_000,
        "max_hash_slot_num": 5_000_000,
        "max_index_num": 20_000_000,
        "max_ha_transfer_byte_in_second": 0,
    }


@asynccontextmanager
async def running(folder: str, ordinal: int) -> AsyncIterator[GroupNode]:
    """Run a member of the group, with the background jobs of its store."""
    async with GroupNode(Path(folder), ordinal, OsDisk(), **settings_of(folder)) as node:

        async def tick() -> None:
            while True:
                await asyncio.sleep(TICK_INTERVAL_MS / 1000)
                node.clock.advance(TICK_INTERVAL_MS)
                node.rig.clock.advance(TICK_INTERVAL_MS)
                node.driver.tick()
                node.server.tick()

        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(tick())
            yield node
            ticking.cancel()
        node.store.close()


async def master(folder: str, body_bytes: int, log_bytes: int, pipe: Connection) -> None:
    """Fill a log, replicate it until the follower is level, and report the processor time."""
    async with running(folder, 0) as node:
        await node.lead(1)
        number = 0
        while node.end < log_bytes:
            for _ in range(BATCH_COUNT):
                node.put(
                    make_message(
                        f"T{number % 10}",
                        number % 4,
                        os.urandom(body_bytes),
                        unique_key=f"U{number}",
                    )
                )
                number += 1
            await asyncio.sleep(0)
        await node.driver.settle()
        pipe.send((node.address, node.end, number))
        used = time.process_time()
        await asyncio.to_thread(pipe.recv)
        pipe.send(time.process_time() - used)


def run_master(folder: str, body_bytes: int, log_bytes: int, pipe: Connection) -> None:
    """Run `master` as the entry point of its process."""
    asyncio.run(master(folder, body_bytes, log_bytes, pipe))


async def follower(folder: str, address: str, end: int) -> tuple[float, float]:
    """Return the wall and CPU seconds that a new follower takes to confirm the whole log."""
    async with running(folder, 1) as node:
        start, used = time.perf_counter(), time.process_time()
        node.store.role_writable = False
        node.group_follower.follow(1, 0, lambda: address)
        async with asyncio.timeout(600):
            while node.store.confirm_offset < end:
                with contextlib.suppress(TimeoutError):
                    await until(lambda: node.store.confirm_offset >= end)
        elapsed = time.perf_counter() - start, time.process_time() - used
        await node.group_follower.stop()
        return elapsed


def copy(source: Path, size: int, target: Path) -> float:
    """Copy the first `size` bytes of a file over loopback; return the seconds that this takes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = multiprocessing.Process(
            target=send_file, args=(source, size, listener.getsockname()[1])
        )
        sender.start()
        connection, _ = listener.accept()
        start = time.perf_counter()
        buffer = memoryview(bytearray(CHUNK_BYTES))
        with connection, target.open("wb", buffering=0) as file:
            while count := connection.recv_into(buffer):
                file.write(buffer[:count])
        elapsed = time.perf_counter() - start
        sender.join()
    return elapsed


def send_file(source: Path, size: int, port: int) -> None:
    """Send the first `size` bytes of a file to a port on loopback."""
    with socket.create_connection(("127.0.0.1", port)) as connection, source.open("rb") as file:
        connection.sendfile(file, count=size)


def main() -> None:
    """Print one line per case."""
    for body_bytes, log_bytes in CASES:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            pipe, theirs = multiprocessing.Pipe()
            child = multiprocessing.Process(
                target=run_master, args=(first, body_bytes, log_bytes, theirs)
            )
            child.start()
            address, end, count = pipe.recv()
            elapsed, used = asyncio.run(follower(second, address, end))
            pipe.send(None)
            masters_used = pipe.recv()
            child.join()
            log = Path(first) / "commitlog" / "0".zfill(20)
            size = min(end, log.stat().st_size)
            copied = copy(log, size, Path(second) / "copy") * end / size
            mib = end / (1 << 20)
            print(
                f"bodies of {body_bytes:4} B, {mib:5.0f} MiB: {mib / elapsed:6.1f} MiB/s,"
                f" {count / elapsed:8,.0f} messages/s, {used:5.2f} s of processor (master"
                f" {masters_used:4.2f} s); copy {mib / copied:6.1f} MiB/s: {copied / elapsed:4.0%}"
            )


if __name__ == "__main__":
    main()
