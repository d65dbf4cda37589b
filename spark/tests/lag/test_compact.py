# SPDX-License-Identifier: Apache-2.0
"""Compaction is deterministic and writes one file per table and hour; vacuum and verify work."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from cometmq.spark.collect.snapshot import RAW, WRITE_ORDER, hour_folder, snapshot_path
from cometmq.spark.lag.history.aggregates import AGG10, AGG60, KEY, hour_file
from cometmq.spark.lag.history.snapshots import HOUR, History, HistoryError, snapshot_id_in
from cometmq.spark.lag.history.upkeep import Retention, compact, hash_of, vacuum, verify
from cometmq.testing.remoting.hostile_json import hostile

from .random_histories import batch, moment
from .slopes import merged_slope

END = moment("2028-02-29T02:59")
MINUTES = 175
HOURS = [datetime(2028, 2, 29, hour, tzinfo=UTC) for hour in range(3)]
"""The snapshots of the first hour begin five minutes late."""


@pytest.fixture(scope="module")
def uncompacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uncompacted")
    batch(folder, seed=5, end=END, minutes=MINUTES, first=0, count=3)
    return folder


@pytest.fixture(scope="module")
def compacted(uncompacted: Path, tmp_path_factory: pytest.TempPathFactory) -> History:
    """The same history an hour after its end, for tests that only read it."""
    folder = tmp_path_factory.mktemp("compacted")
    shutil.copytree(uncompacted, folder, dirs_exist_ok=True)
    compact(History(folder), END + timedelta(hours=1))
    return History(folder)


@pytest.fixture
def history(uncompacted: Path, tmp_path: Path) -> History:
    shutil.copytree(uncompacted, tmp_path, dirs_exist_ok=True)
    return History(tmp_path)


def _bytes(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hash_of(path)
        for dataset in (HOUR, AGG10, AGG60, "_manifest")
        for path in (root / dataset).rglob("*")
        if path.is_file()
    }


def test_past_hours_are_compacted_once_and_deterministically(history: History) -> None:
    assert compact(history, HOURS[1] + timedelta(minutes=61)) == HOURS[:1]
    assert compact(history, HOURS[2] + timedelta(minutes=62)) == HOURS[1:]
    first = _bytes(history.root)

    assert compact(history, HOURS[2] + timedelta(hours=9)) == []
    for hour in HOURS:
        history.manifest(hour).unlink()
    assert compact(history, HOURS[2] + timedelta(hours=9)) == HOURS

    assert _bytes(history.root) == first
    assert verify(history) == []


def test_compacted_hour_has_every_row_in_order(compacted: History) -> None:
    for name in ("offsets", "progress", "groups", "brokers"):
        raw = sorted((compacted.root / RAW / name / hour_folder(HOURS[1])).glob("*"))
        rows = [row for path in raw for row in pq.read_table(path, partitioning=None).to_pylist()]
        (path,) = compacted.files(name, HOURS[1], HOURS[1])
        found = pq.read_table(path, partitioning=None).to_pylist()
        assert sorted(map(repr, found)) == sorted(map(repr, rows))
    keys = [
        tuple(row[it] for it in (*KEY, "snapshot_id")) for row in _progress(compacted, HOURS[1])
    ]
    assert keys == sorted(keys)


def _progress(history: History, hour: datetime) -> list[dict[str, object]]:
    (path,) = history.files("progress", hour, hour)
    rows: list[dict[str, object]] = pq.read_table(path, partitioning=None).to_pylist()
    return rows


def test_each_ten_minutes_keep_their_last_snapshot(compacted: History) -> None:
    rows = pq.read_table(hour_file(compacted.root, AGG10, HOURS[1]), partitioning=None).to_pylist()
    begin = int(HOURS[1].timestamp()) // 60
    ids = {row["snapshot_id"] for row in _progress(compacted, HOURS[1])}
    last = {max(it for it in ids if it // 10 == slot) for slot in {it // 10 for it in ids}}
    assert {row["snapshot_id"] for row in rows} == last
    assert min(last) > begin
    assert len(rows) == sum(row["snapshot_id"] in last for row in _progress(compacted, HOURS[1]))


def test_hourly_sums_merge_to_the_regression_over_all_points(compacted: History) -> None:
    expected = {
        row[:5]: row[5:]
        for row in duckdb.sql(
            f"""SELECT cluster, "group", broker_name, topic, queue_id,
                       regr_slope(lag, epoch_us(read_ts) / 1e6 - {END.timestamp()}), count(*)
                FROM (SELECT DISTINCT *,
                             greatest(0, max_offset - greatest(consumer_offset, min_offset)) lag
                      FROM read_parquet('{compacted.root}/raw/progress/*/*/*.parquet',
                                        hive_partitioning = false)
                      WHERE consumer_offset IS NOT NULL)
                GROUP BY ALL"""
        ).fetchall()
    }
    hours: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for hour in HOURS:
        table = pq.read_table(hour_file(compacted.root, AGG60, hour), partitioning=None)
        for row in table.to_pylist():
            hours.setdefault(tuple(row[name] for name in KEY), []).append(row)
    assert set(hours) == set(expected)
    for key, rows in hours.items():
        slope, count = expected[key]
        assert sum(row["n"] for row in rows) == count
        assert merged_slope(rows) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_compacted_hours_read_like_their_snapshots(history: History) -> None:
    before = {name: history.files(name, HOURS[0], HOURS[2]) for name in ("progress", "brokers")}
    newest = history.newest_id()
    compact(history, END + timedelta(hours=1))
    assert all(len(history.files(name, HOURS[0], HOURS[2])) == 3 for name in before)
    assert history.newest_id() == newest

    vacuum(history, END + timedelta(hours=3), Retention())

    assert history.raw_hours() == []
    assert history.newest_id() == newest


def test_vacuum_removes_only_compacted_and_expired_data(history: History) -> None:
    compact(history, HOURS[1] + timedelta(minutes=62))
    vacuum(history, HOURS[1] + timedelta(hours=3), Retention())
    assert history.raw_hours() == [HOURS[2]]

    vacuum(history, HOURS[1] + timedelta(hours=48, minutes=30), Retention())
    assert not history.manifest(HOURS[0]).exists()
    assert history.files("progress", HOURS[0], HOURS[0]) == []
    assert len(history.files("progress", HOURS[1], HOURS[1])) == 1
    assert hour_file(history.root, AGG60, HOURS[0]).exists()

    vacuum(history, END + timedelta(days=31), Retention())
    assert not hour_file(history.root, AGG10, HOURS[0]).exists()
    assert hour_file(history.root, AGG60, HOURS[0]).exists()


def _hold_back(history: History) -> dict[Path, bytes]:
    """Remove the newest snapshot of the second hour, as if its collector had not written it yet."""
    number = snapshot_id_in(history.raw_files("progress", HOURS[1])[-1])
    paths = [snapshot_path(history.root, name, number) for name in WRITE_ORDER]
    files = {path: path.read_bytes() for path in paths}
    for path in paths:
        path.unlink()
    return files


def _put_back(files: dict[Path, bytes]) -> None:
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize("is_vacuumed", [False, True])
def test_snapshot_written_after_its_hour_was_compacted_is_added(
    history: History, is_vacuumed: bool
) -> None:
    late = END + timedelta(hours=3)
    compact(history, late)
    expected = _bytes(history.root)
    history.manifest(HOURS[1]).unlink()
    held_back = _hold_back(history)
    assert compact(history, late) == [HOURS[1]]
    if is_vacuumed:
        vacuum(history, late, Retention())
        assert history.raw_hours() == []

    _put_back(held_back)
    vacuum(history, late, Retention())
    assert history.raw_hours() == [HOURS[1]]  # it is not compacted yet
    assert compact(history, late) == [HOURS[1]]

    assert _bytes(history.root) == expected
    assert verify(history) == []
    assert compact(history, late) == []
    vacuum(history, late, Retention())
    assert history.raw_hours() == []


def test_crash_while_a_late_snapshot_is_added_leaves_no_duplicates(history: History) -> None:
    late = END + timedelta(hours=1)
    held_back = _hold_back(history)
    compact(history, late)
    manifest = history.manifest(HOURS[1]).read_bytes()
    _put_back(held_back)
    compact(history, late)
    expected = _bytes(history.root)
    history.manifest(HOURS[1]).write_bytes(manifest)  # all files are written except the manifest

    assert compact(history, late) == [HOURS[1]]

    assert _bytes(history.root) == expected


def test_damaged_manifest_stops_compaction_and_is_named(history: History) -> None:
    compact(history, END + timedelta(hours=1))
    manifest = history.manifest(HOURS[1])
    for _, content in hostile({}):
        manifest.write_bytes(content)
        with pytest.raises(HistoryError, match=manifest.name):
            compact(history, END + timedelta(hours=1))
        assert [it for it in verify(history) if f"{manifest}: not a valid manifest" in it]


def test_damaged_snapshot_stops_compaction_and_is_named(history: History) -> None:
    broken = history.raw_files("progress", HOURS[1])[7]
    broken.write_bytes(broken.read_bytes()[:-20])
    with pytest.raises(HistoryError, match=broken.name):
        compact(history, END + timedelta(hours=1))
    assert not history.manifest(HOURS[1]).exists()
    assert [line.split(":")[0] for line in verify(history)] == [str(broken)]


def test_verify_finds_changed_and_missing_files(history: History) -> None:
    compact(history, END + timedelta(hours=1))
    (changed,) = history.files("progress", HOURS[0], HOURS[0])
    (lost,) = history.files("groups", HOURS[1], HOURS[1])
    pq.write_table(pq.read_table(changed, partitioning=None).slice(1), changed)
    lost.unlink()
    alone = history.root / RAW / "brokers" / hour_folder(HOURS[2])
    removed = min(alone.iterdir())
    removed.unlink()

    findings = verify(history)

    assert len(findings) == 3
    assert "the table brokers of this snapshot is missing" in findings[0]
    assert findings[1].startswith(f"{changed}: the content has changed")
    assert findings[2].startswith(f"{lost}: the file is missing")
