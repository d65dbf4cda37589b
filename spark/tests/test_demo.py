# SPDX-License-Identifier: Apache-2.0
"""Runs the whole `make lag-demo`, and the demo with invalid arguments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.client.clock import wall_ms
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.store.settings import StoreSettings
from lag_demo.groups import ACTORS
from lag_demo.old_messages import COUNT, FILE_BYTES, QUEUES, TOPIC, write_old_messages
from lag_demo.replay import MINUTES, SCENES, state_at
from lag_demo.run import compare

EXAMPLES = Path(__file__).parents[1] / "examples"
DEMO = [sys.executable, "-m", "lag_demo"]


@pytest.fixture(autouse=True)
def python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))


def test_broker_finds_the_old_messages(tmp_path: Path) -> None:
    write_old_messages(tmp_path)
    settings = StoreSettings(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log=FILE_BYTES
    )
    store = MessageStore.open(settings, disk=OsDisk(), clock_ms=lambda: 0)
    try:
        ends = [store.reader.max_offset(TOPIC, queue_id) for queue_id in range(QUEUES)]
        assert ends == [COUNT // QUEUES] * QUEUES
        newest_h = (wall_ms() - store.upkeep.recovered.last_timestamp) / 3_600_000
        assert 69 < newest_h < 70
        assert store.upkeep.recovered.was_clean
    finally:
        store.close()


def test_unexpected_status_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    right = {actor.group: actor.status for actor in ACTORS}
    assert compare(right)
    assert "WRONG" not in capsys.readouterr().out
    assert not compare(right | {"audit": "OK"})
    assert "WRONG, expected REWIND" in capsys.readouterr().out
    del right["billing"]
    assert not compare(right)
    assert "missing" in capsys.readouterr().out


def test_too_short_a_demo_is_rejected() -> None:
    done = subprocess.run([*DEMO, "--seconds", "5"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--seconds 5: must be at least 100" in done.stderr


def test_generated_day_is_deterministic_and_consistent() -> None:
    assert SCENES.keys() == {actor.group for actor in ACTORS}
    for minute in range(0, MINUTES, 7):
        state = state_at(30_000_000, minute)
        assert state == state_at(30_000_000, minute)
        for (topic, _), offsets in state.offsets.items():
            for queue, offset in offsets.items():
                found = state.stats[topic][queue]
                assert 0 <= found.min_offset <= offset <= found.max_offset
        for spans in state.spans.values():
            assert all(it.span.delay_time > 0 for it in spans.values())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("form", ["live", "replay"])
def test_report_of_the_demo_has_the_expected_statuses(tmp_path: Path, form: str) -> None:
    words = ["--replay"] if form == "replay" else []
    done = subprocess.run(
        [*DEMO, *words, "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_bytes())
    found = {row["group"]: row["status"] for row in report["group"]}
    assert found == {actor.group: actor.status for actor in ACTORS}
