# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios of the benchmark at a small size, on CometMQ alone."""

import pytest
from macro import scenarios
from macro.native import BenchError
from macro.scenarios import Plan, run_million, run_transactions
from macro.servers import Contestant, Server
from macro.workloads import LOADS


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


class Refusing(Contestant):
    """A server that refuses one request in each of its first samples."""

    broker_pid = 0

    def __init__(self, refusals):
        super().__init__("java")
        self.refusals = refusals
        self.sample_count = 0

    def measured(self, run):
        return run()

    def generate(self, mode, options):
        self.sample_count += 1
        errors = int(self.sample_count <= self.refusals)
        return {
            "errors": errors, "codes": {"0": 1_000, "2": errors}, "others_cpus": 0.0,
            "messages_per_s": 1_000.0 * self.sample_count, "cpu_seconds_per_million": 1.0,
            "latency_us": {"p50": 1.0, "p99": 2.0, "p999": 3.0},
        }  # fmt: skip


SENDS = next(load for load in LOADS if load.name == "send-8x32")


def test_a_sample_with_refusals_is_repeated(plan):
    server = Refusing(2)

    sample = scenarios.measure(plan, SENDS, server, seconds=1.0)

    assert sample["messages_per_s"] == 3_000.0


def test_a_server_that_refuses_requests_in_every_sample_fails(plan):
    with pytest.raises(BenchError, match="java refused 1 requests: codes"):
        scenarios.measure(plan, SENDS, Refusing(10), seconds=1.0)
