# SPDX-License-Identifier: Apache-2.0
"""Tests the options and the steps of a run."""

import sys

import pytest
import run
from macro.scenarios import Plan
from macro.servers import CLUSTERS
from macro.setups import PLAIN
from macro.workloads import WORKLOADS, Load

from cometmq.peers.errors import PeerError


@pytest.mark.parametrize(
    ("words", "rounds", "seconds"),
    [([], 3, 5.0), (["--quick"], 1, 3.0), (["--quick", "--rounds", "2"], 2, 3.0)],
)
def test_a_quick_run_has_other_defaults(monkeypatch, words, rounds, seconds):
    monkeypatch.setattr(sys, "argv", ["run.py", *words])
    arguments = run.parse_arguments()
    assert (arguments.rounds, arguments.seconds) == (rounds, seconds)


def test_each_configuration_and_each_scenario_is_one_step(tmp_path):
    """So that a failure, for example of a server that does not start, costs only its rows."""
    plan = Plan(
        directory=tmp_path, servers=[], rivals=[], rounds=1, seconds=1.0, warmup_s=1.0,
        serialization="json", catch_up_bytes=0, is_preferred=False, say=lambda _line: None,
    )  # fmt: skip
    steps = run.steps_of(plan, [workload.name for workload in WORKLOADS])
    scenarios = [workload.name for workload in WORKLOADS if not isinstance(workload, Load)]
    assert sorted(scenarios) == sorted(name for name in steps if name in scenarios)
    assert {"loads", "pairs", *scenarios} <= steps.keys()
    assert list(run.steps_of(plan, ["send-8x32"])) == ["loads" + PLAIN.suffix]


def test_a_run_with_a_console_has_three_rows_by_default(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "--server", "console"])
    arguments = run.parse_arguments()
    assert arguments.only == ["send-8x32", "pull", "start"]
    assert run.SERVERS[arguments.server] == ["comet", "watched"]
    assert (arguments.rounds, arguments.seconds) == (15, 3.0)
    monkeypatch.setattr(sys, "argv", ["run.py", "--server", "console", "--only", "pull"])
    assert run.parse_arguments().only == ["pull"]


def test_the_parent_runs_its_own_programs(monkeypatch, tmp_path):
    program = tmp_path / "cometmq"
    monkeypatch.setattr("macro.servers.PARENT_PROGRAM", program)
    cluster = CLUSTERS["parent"](tmp_path / "parent", None)
    with pytest.raises(PeerError, match=f"the environment lacks {program}: run make setup"):
        cluster.start()
    program.write_text('#!/bin/sh\necho "$0 ready $*"\nexec sleep 60\n')
    program.chmod(0o755)
    try:
        cluster.start_namesrv()
        assert cluster.namesrv is not None
        assert f"{program} ready namesrv -c" in cluster.namesrv.log()
    finally:
        cluster.kill()


def test_an_unknown_parent_ends_the_run(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--server", "parent", "--parent", "no-such-commit"])
    assert run.main() == 1
    assert capsys.readouterr().err == "bench: no commit no-such-commit\n"
