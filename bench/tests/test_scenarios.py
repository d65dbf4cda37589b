# SPDX-License-Identifier: Apache-2.0
"""Runs scenarios of the benchmark at a small size, on CometMQ alone."""

from dataclasses import fields, replace

import pytest
from macro import scenarios
from macro.device import syncs_per_s
from macro.native import BenchError, loadgen
from macro.scenarios import Plan, run_million, run_transactions
from macro.servers import BROKER_CONF, Contestant, Server, running
from macro.setups import COLUMNS, PLAIN, Setup
from macro.workloads import LOADS, REPLICATED, Target, secured


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
            "latency_us": {"p50": 1.0, "p99": 2.0, "p999": 3.0, "p9999": 4.0},
        }  # fmt: skip


SENDS = next(load for load in LOADS if load.name == "send-8x32")


def test_a_sample_with_refusals_is_repeated(plan):
    server = Refusing(2)

    sample = scenarios.measure(plan, SENDS, server, seconds=1.0)

    assert sample["messages_per_s"] == 3_000.0


def test_a_server_that_refuses_requests_in_every_sample_fails(plan):
    with pytest.raises(BenchError, match="java refused 1 requests: codes"):
        scenarios.measure(plan, SENDS, Refusing(10), seconds=1.0)


def test_a_lone_sender_is_compared_with_the_syncs_of_the_disk(plan, monkeypatch):
    """Each message of a lone sender takes a sync of its own."""
    rates = iter((2_000.0, 4_000.0))
    monkeypatch.setattr(scenarios, "syncs_per_s", lambda _: next(rates))
    by_name = {load.name: load for load in LOADS}
    for name in ("send-1x1-sync", "send-8x32-sync", "send-1x1"):
        scenarios._run_load(plan, by_name[name], [Refusing(0)])
    lone, many, plain = (plan.samples[name]["java"][0] for name in plan.samples)
    assert (lone["device_syncs_per_s"], lone["share_of_syncs"]) == (2_000.0, 1.0)
    assert many["device_syncs_per_s"] == 4_000.0
    assert "share_of_syncs" not in many
    assert "device_syncs_per_s" not in plain


def test_the_syncs_of_the_disk_are_counted(tmp_path):
    assert syncs_per_s(tmp_path, seconds=0.01) > 0
    assert list(tmp_path.iterdir()) == []


SECURED = [load for load in (*LOADS, *REPLICATED) if load.setup != PLAIN]


@pytest.mark.parametrize("load", SECURED, ids=lambda load: load.name)
def test_a_configuration_is_measured_beside_the_plain_workload(plan, monkeypatch, load):
    """Each configuration has its own servers; requests without its signature are refused."""
    ran: list[tuple[str, dict[str, object]]] = []

    def run(plan, load, servers):
        for server in servers:
            scenarios.prepare(small, server)
            plan.add(load.name, server.name, {"messages_per_s": 80.0 if load.plain else 100.0})
            ran.append((load.name, server.cluster.broker_conf))

    small = replace(load, preload=100, topics=1)
    monkeypatch.setattr(scenarios, "_run_load", run)
    plain = next(each for each in (*LOADS, *REPLICATED) if each.name == load.plain)

    for each in (plain, load):
        scenarios.run_loads(plan, each.setup, [each])
    scenarios.add_shares(plan.samples)

    (plain_name, plain_conf), (name, conf) = ran
    assert [plain_name, name] == [load.plain, load.name]
    assert plain_conf == BROKER_CONF
    assert conf.get("aclEnable", False) is load.setup.accounts
    assert (conf["flushDiskType"] == "SYNC_FLUSH") is load.setup.sync_flush
    assert plan.samples[load.name]["comet"][0]["share_of_plain"] == 0.8
    assert "share_of_plain" not in plan.samples[load.plain]["comet"][0]


def test_unsigned_requests_are_refused_where_accounts_are_measured(tmp_path):
    setup = Setup(accounts=True)
    with running("comet", tmp_path, "json", setup=setup) as server:
        server.create_topic("BENCH_T", queues=1)
        server.fill(10, topic="BENCH_T", queues=1)
        assert server.length("BENCH_T", queues=1) == 10
        report = loadgen("send", server.port, count=10, topic="BENCH_T", queues=1)
    assert report["errors"] == 10


def test_names_and_titles_of_configurations_are_unique():
    names = [load.name for load in (*LOADS, *REPLICATED)]
    assert len(names) == len(set(names))
    both = Setup(accounts=True, sync_flush=True)
    load = secured("send-1x1", both, Target("messages_per_s", 1.0))
    assert load.name == "send-1x1-acl-sync"
    assert load.title.startswith("accounts + SYNC_FLUSH: send 128 B")
    assert load.topic == "BENCH_send_1x1_acl_sync"
    assert {column.field for column in COLUMNS} == {field.name for field in fields(Setup)}
