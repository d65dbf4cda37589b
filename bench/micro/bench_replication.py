# SPDX-License-Identifier: Apache-2.0
"""Time how long a new follower takes to catch up over loopback, compared with a plain copy.

Master and followers are child processes. A follower writes the log, builds its queues and its
index, and acknowledges; both run a broker's background jobs. Followers with native dispatch and
with dispatch in Python run alternately. The plain copy sends the same files with sendfile and
writes the received bytes; a copy to a different machine cannot be faster. `bench_replication.py
ROUNDS` sets the number of rounds; on a busy machine, compare the processor times.
"""

import asyncio
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import uvloop

from cometmq.broker.native import IS_BUILT
from cometmq.broker.storing.store_driver import TICK_INTERVAL_MS
from cometmq.store import OsDisk
from cometmq.testing.broker.member_nodes import MemberNode
from cometmq.testing.store.builders import make_message

CASES = ((1024, 1 << 30), (128, 256 << 20))
"""Pairs of body size and log size, in bytes."""

BATCH_COUNT = 500
CHUNK_BYTES = 1 << 20
ROUNDS = 3
MIB = 1 << 20


class CaughtUp(NamedTuple):
    """The cost of catching up: wall time, processor time, and peak anonymous memory."""

    elapsed_s: float
    used_s: float
    memory_bytes: int
    masters_used_s: float = 0.0


def settings_of(folder: str) -> dict[str, Any]:
    """Return the settings of a store in this folder, with files of the default sizes."""
    return {
        "store_path_root_dir": folder,
        "mapped_file_size_commit_log": 1 << 30,
        "mapped_file_size_consume_queue": 6_000_000,
        "max_hash_slot_num": 5_000_000,
        "max_index_num": 20_000_000,
        "max_ha_transfer_byte_in_second": 0,
    }


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


@asynccontextmanager
async def running(folder: str, ordinal: int, *, is_native: bool) -> AsyncIterator[MemberNode]:
    """Run a member of the group, with the background jobs of its store."""
    changes = settings_of(folder) | {"native_lane_enable": is_native}
    async with MemberNode(Path(folder), ordinal, OsDisk(), **changes) as node:

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
    """Fill a log, replicate it, and report the processor time whenever a follower has caught up."""
    async with running(folder, 0, is_native=True) as node:
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
        while await asyncio.to_thread(pipe.recv):
            used, before = time.process_time(), used
            pipe.send(used - before)


def run_master(folder: str, body_bytes: int, log_bytes: int, pipe: Connection) -> None:
    """Run `master` as the entry point of its process."""
    uvloop.run(master(folder, body_bytes, log_bytes, pipe))


async def follower(folder: str, address: str, end: int, *, is_native: bool) -> CaughtUp:
    """Measure the resources that a new follower uses until it has confirmed the whole log."""
    async with running(folder, 1, is_native=is_native) as node:
        start, used, memory_bytes = time.perf_counter(), time.process_time(), 0
        node.store.write_state.role_writable = False
        node.member_follower.follow(1, 0, lambda: address)
        async with asyncio.timeout(600):
            while node.store.commit_log.confirm_offset < end:
                await asyncio.sleep(0.01)
                memory_bytes = max(memory_bytes, anonymous_bytes())
        done = CaughtUp(time.perf_counter() - start, time.process_time() - used, memory_bytes)
        await node.member_follower.stop()
        return done


def run_follower(address: str, end: int, is_native: bool, pipe: Connection) -> None:
    """Run `follower` as the entry point of its process."""
    with tempfile.TemporaryDirectory() as folder:
        pipe.send(uvloop.run(follower(folder, address, end, is_native=is_native)))


def catch_up(address: str, end: int, pipe: Connection, *, is_native: bool) -> CaughtUp:
    """Run a new follower in a separate process; `pipe` is connected to the master."""
    ours, theirs = multiprocessing.Pipe()
    arguments = (address, end, is_native, theirs)
    child = multiprocessing.get_context("spawn").Process(target=run_follower, args=arguments)
    child.start()
    done: CaughtUp = ours.recv()
    child.join()
    pipe.send(True)
    return done._replace(masters_used_s=pipe.recv())


def copy(source: Path, size: int, target: Path) -> float:
    """Copy the first `size` bytes of a file over loopback; return the seconds taken."""
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
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    ways = (False, True) if IS_BUILT else (False,)
    for body_bytes, log_bytes in CASES:
        with tempfile.TemporaryDirectory() as folder:
            pipe, theirs = multiprocessing.Pipe()
            child = multiprocessing.Process(
                target=run_master, args=(folder, body_bytes, log_bytes, theirs)
            )
            child.start()
            address, end, count = pipe.recv()
            log = Path(folder) / "commitlog" / "0".zfill(20)
            size = min(end, log.stat().st_size)
            runs: dict[bool, list[CaughtUp]] = {way: [] for way in ways}
            copies = []
            for _ in range(rounds):
                for way in ways:
                    runs[way].append(catch_up(address, end, pipe, is_native=way))
                copies.append(copy(log, size, Path(folder) / "copy") * end / size)
            pipe.send(False)
            child.join()
        print(f"bodies of {body_bytes} B, {end / MIB:.0f} MiB, {count} messages:", end=" ")
        print(f"copy {end / MIB / median(copies):.0f} MiB/s")
        for way in ways:
            print_runs("native" if way else "Python", runs[way], end / MIB, copies)
        if len(ways) > 1:
            pairs = zip(runs[True], runs[False], strict=True)
            ratios = sorted(native.used_s / python.used_s for native, python in pairs)
            print("  processor time, native to Python:", *(f"{ratio:.2f}" for ratio in ratios))


def print_runs(name: str, runs: list[CaughtUp], mib: float, copies: list[float]) -> None:
    rate = median(mib / run.elapsed_s for run in runs)
    share = median(copied / run.elapsed_s for run, copied in zip(runs, copies, strict=True))
    print(
        f"  {name}: {rate:6.1f} MiB/s, {share:4.0%} of the copy,"
        f" {median(run.used_s for run in runs):5.2f} s of processor (master"
        f" {median(run.masters_used_s for run in runs):4.2f} s),"
        f" {max(run.memory_bytes for run in runs) / 1e6:3.0f} MB of anonymous memory"
    )


if __name__ == "__main__":
    main()
