# SPDX-License-Identifier: Apache-2.0
"""The collector as a program shows its metrics and those of the newest report."""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.peers.ports import HOST, free_port
from cometmq.peers.processes import wait_until
from cometmq.spark.collect.exposition import REPORT_METRICS
from cometmq.testing.spark import LAG

TIMEOUT_S = 60.0


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()
    except OSError:  # it does not listen yet
        return 0, ""


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of a collector whose name server does not exist."""
    port = free_port()
    command = [
        str(LAG), "snapshot", str(tmp_path / "history"), "--interval", "60",
        "--namesrv", "127.0.0.1:1", "--http-port", str(port), "--textfile", str(tmp_path),
    ]  # fmt: skip
    with subprocess.Popen(command) as running:
        try:
            wait_until(lambda: page(port, "/healthz")[0] == 200, TIMEOUT_S, "the port")
            yield port
        finally:
            running.terminate()
            assert running.wait(30) == 0


def test_the_port_shows_failures_and_the_report(port: int, tmp_path: Path) -> None:
    failed = "cometmq_lag_snapshots_failed_total 1.0\n"
    wait_until(lambda: failed in page(port, "/metrics")[1], TIMEOUT_S, failed)
    status, reasons = page(port, "/readyz")
    assert status == 503
    assert "127.0.0.1:1" in reasons

    assert "cometmq_lag_messages" not in page(port, "/metrics")[1]
    (tmp_path / REPORT_METRICS).write_text('cometmq_lag_messages{group="g"} 7\n')
    assert page(port, "/metrics")[1].endswith('\ncometmq_lag_messages{group="g"} 7.0\n')
    assert f"history={tmp_path / 'history'}\n" in page(port, "/settings")[1]


def test_a_taken_port_is_a_one_line_error(port: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [LAG, "snapshot", tmp_path, "--interval", "60", "--http-port", str(port)],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on *:{port}" in done.stderr
    assert "--http-port" in done.stderr
    assert len(done.stderr.splitlines()) == 1
