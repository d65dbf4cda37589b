# SPDX-License-Identifier: Apache-2.0
"""Runs `cometmq-lag` as users do: exit statuses, one-line errors, nothing overwritten."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cometmq.spark.lag.cli import Exit, FailOn, exit_of
from cometmq.spark.lag.columns import Header
from cometmq.spark.tables.arrow import VERSION_KEY
from cometmq.testing.spark import run_lag

from .random_histories import batch, moment


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["repport"], "Did you mean 'report'?"),
        (["report", "x", "--min-coverag", "1"], "--min-coverage"),
        (["snapshot", "x", "--intervall", "60"], "--interval"),
        (["report"], "HISTORY"),
        (["report", "x", "--fail-on", "sometimes"], "sometimes"),
        (["snapshot", "x", "--interval", "5"], "5"),
        (["snapshot", "x", "--http-port", "8080"], "--http-port needs --interval"),
        (["snapshot", "x", "--interval", "60", "--textfile", "y"], "--textfile needs --http-port"),
        (["report", "x", "--conf", "spark.executor.cores"], "spark.NAME=VALUE"),
        (["report", "x", "--conf", "executor.cores=1"], "spark.NAME=VALUE"),
        (["report", "x", "--broker-timezone", "Mars/Olympus"], "unknown time zone Mars/Olympus"),
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_mistake(words: list[str], said: str) -> None:
    status, _, lines = run_lag(*words)
    assert status == Exit.USAGE
    assert any(said in line for line in lines)


def test_report_without_history_is_a_one_line_error(tmp_path: Path) -> None:
    status, _, lines = run_lag("report", tmp_path)
    assert status == Exit.FAILED
    assert lines == [f"cometmq-lag: {tmp_path}: no snapshots; run cometmq-lag snapshot first"]


def test_missing_name_server_is_a_one_line_error(tmp_path: Path) -> None:
    status, _, lines = run_lag("snapshot", tmp_path, "--namesrv", "127.0.0.1:1")
    assert status == Exit.FAILED
    assert len(lines) == 1
    assert "127.0.0.1:1" in lines[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--out", "--textfile"])
def test_unwritable_output_fails_before_the_report(tmp_path: Path, option: str) -> None:
    history, taken = tmp_path / "history", tmp_path / "taken"
    batch(history, seed=1, end=moment("2026-05-01T10:59"), minutes=2, first=0, count=1)
    taken.write_text("mine")
    status, _, lines = run_lag("report", history, option, taken / "below")
    assert (status, len(lines)) == (Exit.FAILED, 1)
    assert str(taken) in lines[0]
    assert taken.read_text() == "mine"
    assert not (history / "report").exists()


@pytest.mark.parametrize("command", ["compact", "verify"])
def test_history_of_another_version_is_rejected(tmp_path: Path, command: str) -> None:
    batch(tmp_path, seed=1, end=moment("2026-05-01T10:59"), minutes=2, first=0, count=1)
    path = min(tmp_path.glob("raw/progress/*/*/*.parquet"))
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table.replace_schema_metadata({VERSION_KEY: "99"}), path)
    status, out, lines = run_lag(command, tmp_path)
    assert status == Exit.FAILED
    assert (
        f"{path}: written with table version 99, this cometmq-lag reads version 1:"
        in out + "".join(lines)
    )
    assert not list(tmp_path.glob("hour/*"))


def _flip(path: Path, part: slice) -> None:
    data = bytearray(path.read_bytes())
    data[part] = bytes(byte ^ 0x5A for byte in data[part])
    path.write_bytes(data)


@pytest.mark.servers
@pytest.mark.parametrize("part", [slice(4, 400), slice(-40, -8)], ids=["pages", "footer"])
def test_damaged_snapshot_is_a_one_line_error_and_keeps_the_last_report(
    tmp_path: Path, part: slice
) -> None:
    history, out = tmp_path / "history", tmp_path / "out"
    batch(history, seed=1, end=moment("2026-05-01T10:59"), minutes=10, first=0, count=1)
    damaged = sorted(history.glob("raw/progress/*/*/*.parquet"))[4]
    _flip(damaged, part)
    out.mkdir()
    (out / "report.html").write_text("the last one")

    status, _, lines = run_lag("report", history, "--out", out)

    assert status == Exit.FAILED
    assert all(line.startswith("cometmq-lag: ") for line in lines if "WARNING: Using" not in line)
    assert str(damaged.name) in lines[-1]
    assert [it.name for it in out.iterdir()] == ["report.html"]
    assert (out / "report.html").read_text() == "the last one"
    assert not (history / "report").exists()


@pytest.mark.servers
def test_settings_reach_spark(tmp_path: Path) -> None:
    history, events = tmp_path / "history", tmp_path / "events"
    batch(history, seed=1, end=moment("2026-05-01T10:59"), minutes=10, first=0, count=1)
    events.mkdir()
    conf = ("--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir=file:{events}")
    assert run_lag("report", history, "--fail-on", "never", *conf)[0] == Exit.OK
    assert list(events.iterdir())


def test_history_is_compacted_verified_and_vacuumed(tmp_path: Path) -> None:
    batch(tmp_path, seed=1, end=moment("2026-05-01T10:59"), minutes=60, first=0, count=1)
    assert run_lag("verify", tmp_path)[0] == Exit.OK
    status, _, lines = run_lag("compact", tmp_path)
    assert (status, lines[0]) == (Exit.OK, "cometmq-lag: compacted 1 hours")
    assert not list(tmp_path.glob("raw/*/dt=*/hh=*"))  # past the grace period: removed at once

    (file,) = tmp_path.glob("agg60/stats/*/*.parquet")
    whole = file.read_bytes()
    batch(tmp_path, seed=1, end=moment("2026-05-01T11:30"), minutes=20, first=0, count=1)
    broken = min(tmp_path.glob("raw/progress/*/*/*.parquet"))
    broken.write_bytes(b"PAR1")
    status, out, _ = run_lag("verify", tmp_path)
    assert status == Exit.FAILED
    assert out.startswith(f"{broken}: not a valid Parquet file")
    status, _, lines = run_lag("compact", tmp_path)
    assert (status, len(lines)) == (Exit.FAILED, 1)
    assert str(broken) in lines[0]
    assert file.read_bytes() == whole


def _header(severity: str, coverage: float) -> Header:
    return Header(
        run_id="x", snapshot_ts=datetime(2026, 1, 1, tzinfo=UTC), snapshot_id=1, snapshot_count=1,
        window_s=600, long_window_s=3600, history_s=86400, risk_hours=12, allowed_lag=0,
        allowed_age_s=30, timezone="UTC", coverage=coverage, unreachable=(), severity=severity,
        status_counts={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("severity", "coverage", "fail_on", "status"),
    [
        ("ok", 1.0, FailOn.WARN, 0),
        ("info", 1.0, FailOn.WARN, 0),
        ("warn", 1.0, FailOn.WARN, 10),
        ("warn", 1.0, FailOn.ERROR, 0),
        ("error", 1.0, FailOn.WARN, 20),
        ("critical", 1.0, FailOn.CRITICAL, 30),
        ("critical", 1.0, FailOn.NEVER, 0),
        ("critical", 0.5, FailOn.CRITICAL, 30),
        ("error", 0.5, FailOn.CRITICAL, 3),
        ("ok", 0.98, FailOn.CRITICAL, 3),
    ],
)
def test_exit_status(severity: str, coverage: float, fail_on: FailOn, status: int) -> None:
    assert exit_of(_header(severity, coverage), fail_on=fail_on, coverage_min=0.99) == status
