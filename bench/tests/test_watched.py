# SPDX-License-Identifier: Apache-2.0
"""The server with an open console: its tabs are refreshed only while it is under load."""

import urllib.request
from pathlib import Path

import pytest
from macro import watched
from macro.process import cpu_seconds
from macro.servers import start_seconds
from macro.watched import TABS, WATCHED, running_watched

from cometmq.peers.processes import wait_until


def test_all_tabs_are_renewed_while_the_server_is_under_load(tmp_path, monkeypatch):
    monkeypatch.setattr(watched, "RENEWAL_S", 0.2)
    seen = []
    real = urllib.request.urlopen

    def opened(url, **more):
        seen.append(url)
        return real(url, **more)

    monkeypatch.setattr(urllib.request, "urlopen", opened)
    with running_watched(tmp_path, "json") as server:
        server.load("send", topic="BENCH_WARMUP", seconds=0.2, connections=1, in_flight=1)
        seen.clear()
        server.load("send", topic="T", seconds=2.0, connections=1, in_flight=1)
        assert {url.rpartition("/")[2] for url in seen} == set(TABS)
        state = Path(f"/proc/{server.console.pid}/stat")

        def stands_still():
            return state.read_text().rpartition(")")[2].split()[0] == "T"

        wait_until(stands_still, 10, "a console that stands still")
        used = cpu_seconds(server.broker_pid) + cpu_seconds(server.console.pid)
        assert server._cpu_seconds() == pytest.approx(used, abs=0.1)
        assert cpu_seconds(server.console.pid) > 0.1


def test_the_start_with_a_console_is_a_row_of_its_own(tmp_path):
    assert start_seconds(WATCHED, tmp_path, "json") > 0
    assert "\n  console      http" in (tmp_path / "standalone.log").read_text()
