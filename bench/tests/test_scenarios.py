# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios of the benchmark at a small size, on CometMQ alone."""

import pytest
from macro import scenarios
from macro.scenarios import Plan, run_million, run_transactions
from macro.servers import Server


@pytest.fixture
def plan(tmp_path):
    return Plan(
        directory=tmp_path, servers=["comet"], rivals=[], rounds=1, seconds=1.0, warmup_s=0.2,
        serialization="json", catch_up_bytes=0, is_preferred=False, say=lambda _line: None,
    )  # fmt: skip


def test_a_transaction_counts_once_consumers_can_read_it(plan, monkeypatch):
    lengths: list[int] = []
    monkeypatch.setattr(scenarios, "TRANSACTION_PAIRS", 500)

    def length(server, topic, *, queues):
        found = length_of(server, topic, queues=queues)
        lengths.append(found)
        return found if len(lengths) > 2 else 0  # as if commits took effect late

    length_of = Server.length
    monkeypatch.setattr(Server, "length", length)

    run_transactions(plan)

    (sample,) = plan.samples["transactions"]["comet"]
    assert lengths[-1] == 500
    assert len(lengths) >= 4  # three for the warm-up
    assert 0 < sample["pairs_per_s"] < 1_000_000
    assert "messages_per_s" not in sample


def test_memory_and_idle_time_are_taken_before_the_kill(plan, monkeypatch):
    monkeypatch.setattr(scenarios, "MESSAGES_MANY", 1_000)
    monkeypatch.setattr(scenarios, "IDLE_S", 0.5)

    run_million(plan)

    (sample,) = plan.samples["million"]["comet"]
    assert sample["anonymous_bytes"] > 1_000_000
    assert 0 <= sample["idle_cpus"] < 1
    assert 0 < sample["recovery_s"] < 60
