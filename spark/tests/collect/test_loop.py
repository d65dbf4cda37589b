# SPDX-License-Identifier: Apache-2.0
"""The collector's loop survives failed rounds, skips minutes taken by others, and stops."""

import asyncio
from pathlib import Path

import pytest

from cometmq.client.clock import wall_ms
from cometmq.spark.collect import loop
from cometmq.spark.collect.broker import CollectSettings
from cometmq.spark.collect.exposition import CollectorStats
from cometmq.spark.collect.loop import collect_forever, collect_once
from cometmq.spark.collect.snapshot import Snapshot, is_taken, snapshot_id_of, snapshot_path, write
from cometmq.spark.tables.rows import BrokerState

NOBODY = CollectSettings(namesrv="127.0.0.1:1")


def _snapshot(number: int) -> Snapshot:
    state = BrokerState(
        snapshot_id=number, cluster="c", broker_name="b", broker_id=0, address="a",
        asked_ms=number * 60_000, error="no answer",
    )  # fmt: skip
    return Snapshot(number, [state])


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def test_failed_round_is_reported_and_the_loop_continues(tmp_path: Path) -> None:
    stop, said = asyncio.Event(), []

    def say(text: str) -> None:
        said.append(text)
        stop.set()

    stats = CollectorStats()
    async with asyncio.timeout(30):
        await collect_forever(tmp_path, NOBODY, 60, say, stop, stats)
    assert len(said) == 1
    assert said[0].startswith("snapshot failed: ")
    assert "127.0.0.1:1" in said[0]
    assert _files(tmp_path) == []
    assert (stats.snapshot_count, stats.failed_count, stats.newest_s) == (0, 1, 0)
    assert f"snapshot failed: {stats.fault}" == said[0]


async def test_stopped_collector_takes_no_snapshot(tmp_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    await collect_forever(tmp_path, NOBODY, 60, pytest.fail, stop, CollectorStats())
    assert _files(tmp_path) == []


async def test_a_success_clears_the_fault_and_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = snapshot_id_of(wall_ms())
    stop, stats = asyncio.Event(), CollectorStats()
    stats.fault = "no answer"

    async def take(*_: object) -> Snapshot:
        return _snapshot(number)

    monkeypatch.setattr(loop, "take", take)
    async with asyncio.timeout(30):
        await collect_forever(tmp_path, NOBODY, 60, lambda _: stop.set(), stop, stats)
    assert (stats.snapshot_count, stats.failed_count, stats.fault) == (1, 0, None)
    assert stats.newest_s == number * 60


async def test_minute_of_another_collector_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = snapshot_id_of(wall_ms())
    monkeypatch.setattr(loop, "wall_ms", lambda: number * 60_000)
    write(tmp_path, _snapshot(number))
    said: list[str] = []

    assert await collect_once(tmp_path, NOBODY, said.append) is None  # no broker is queried

    assert said == [f"snapshot {number} already exists"]


def test_incomplete_snapshot_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, _snapshot(7))
    snapshot_path(tmp_path, "progress", 7).unlink()  # as if killed before the last file was written
    assert not is_taken(tmp_path, 7)

    assert write(tmp_path, _snapshot(7)) == {"offsets": 0, "groups": 0, "brokers": 1, "progress": 0}
    assert is_taken(tmp_path, 7)


def test_failing_disk_leaves_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_table: object, path: Path, **_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", fail)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, _snapshot(8))
    assert _files(tmp_path) == []
