# SPDX-License-Identifier: Apache-2.0
"""The collector: takes a snapshot at each interval until it is stopped."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.client.clock import wall_ms
from cometmq.remoting.errors import CometError
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.collect.exposition import CollectorStats
from cometmq.spark.collect.snapshot import (
    MINUTE_MS,
    Snapshot,
    is_taken,
    snapshot_id_of,
    take,
    write,
)

Say = Callable[[str], None]

INTERVAL_MIN_S: Final = MINUTE_MS // 1000
"""Snapshots are identified by their minute, so there cannot be more than one per minute."""


async def collect_once(root: Path, settings: CollectSettings, say: Say) -> Snapshot | None:
    """Take and write this minute's snapshot; return None if another collector has written it."""
    number = snapshot_id_of(wall_ms())
    if is_taken(root, number):
        say(f"snapshot {number} already exists")
        return None
    snapshot = await take(settings, number)
    counts = await asyncio.to_thread(write, root, snapshot)
    for name, reason in snapshot.failures.items():
        say(f"{name} is skipped: {reason}")
    rows = ", ".join(f"{count} {name}" for name, count in counts.items())
    say(f"snapshot {number}: {rows or 'already written by another collector'}")
    return snapshot


async def collect_forever(
    root: Path,
    settings: CollectSettings,
    interval_s: int,
    say: Say,
    stop: asyncio.Event,
    stats: CollectorStats,
) -> None:
    """Take a snapshot at each multiple of the interval; failures are reported and skipped."""
    while not stop.is_set():
        try:
            if (snapshot := await collect_once(root, settings, say)) is not None:
                stats.snapshot_count += 1
                stats.newest_s = snapshot.snapshot_id * MINUTE_MS // 1000
            stats.fault = None
        except (CometError, OSError) as error:
            say(f"snapshot failed: {error}")
            stats.failed_count += 1
            stats.fault = str(error)
        now_ms, step_ms = wall_ms(), interval_s * 1000
        try:
            async with asyncio.timeout((step_ms - now_ms % step_ms) / 1000):
                await stop.wait()
        except TimeoutError:
            continue


async def collect_until_signal(
    root: Path, settings: CollectSettings, interval_s: int, say: Say, stats: CollectorStats
) -> None:
    """Collect until SIGTERM or SIGINT; a snapshot in progress is completed first."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await collect_forever(root, settings, interval_s, say, stop, stats)
