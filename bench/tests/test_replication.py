# SPDX-License-Identifier: Apache-2.0
"""Tests the comparison of pairs: their settings, the order of samples, and the plain copy."""

from contextlib import contextmanager
from pathlib import Path

import page
import pytest
import report
from macro import replication
from macro.copying import copy
from macro.native import BenchError
from macro.pairs import CometPair, JavaPair
from macro.replication import run_catch_up, run_replicated
from macro.scenarios import Plan
from macro.setups import PLAIN, Setup
from macro.workloads import CATCH_UP, REPLICATED

from cometmq.peers.cluster import BrokerPlace

LOAD = REPLICATED[0]


def settings(pair, number):
    """Return the settings of a member, as written to its file."""
    member = (pair.master, pair.slave)[number]
    (place,) = member.layout.brokers
    return {key: str(value) for key, value in member._broker_properties(place).items()}


@pytest.mark.parametrize(("is_sync", "min_in_sync"), [(True, "2"), (False, "1")])
def test_a_group_waits_for_both_copies_only_if_asked(tmp_path, is_sync, min_in_sync):
    pair = CometPair(tmp_path, is_sync=is_sync)
    first, second = (settings(pair, number) for number in (0, 1))
    assert first["minInSync"] == second["minInSync"] == min_in_sync
    assert first["groupRecord"] == second["groupRecord"]
    assert first["groupMembers"] == second["groupMembers"]
    assert first["groupMembers"].split(";") == [
        f"0=127.0.0.1:{first['listenPort']}", f"1=127.0.0.1:{second['listenPort']}"
    ]  # fmt: skip
    assert (first["brokerId"], second["brokerId"]) == ("0", "1")
    assert first["storePathRootDir"] != second["storePathRootDir"]


@pytest.mark.parametrize(("is_sync", "role"), [(True, "SYNC_MASTER"), (False, "ASYNC_MASTER")])
def test_a_java_master_waits_for_its_slave_only_if_asked(tmp_path, monkeypatch, is_sync, role):
    monkeypatch.setattr("cometmq.peers.java.server_class_path", lambda *_: "servers.jar")
    pair = JavaPair(tmp_path, is_sync=is_sync)
    first, second = (settings(pair, number) for number in (0, 1))
    assert first["brokerRole"] == role
    assert (second["brokerRole"], second["brokerId"]) == ("SLAVE", "1")
    assert first["brokerName"] == second["brokerName"]
    assert first["namesrvAddr"] == second["namesrvAddr"]


class FakeCluster:
    """A broker whose log has a settable end; its files are on the disk."""

    def __init__(self, directory: Path) -> None:
        self.store_dir = directory / "store"
        self.layout = self
        self.brokers = [BrokerPlace("broker-a", 1, self.store_dir)]
        (self.store_dir / "commitlog").mkdir(parents=True)
        self.end = 1000


class FakePair:
    """A pair whose slave copies a thousand bytes each time its log end is read."""

    slave_pid = 7

    def __init__(self, directory: Path, is_sync: bool) -> None:
        self.directory = directory
        self.master, self.slave = FakeCluster(directory / "0"), FakeCluster(directory / "1")
        self.is_sync = is_sync
        self.is_following = True

    def apply(self, setup: Setup) -> None:
        self.setup = setup

    def stop_slave(self) -> None:
        self.is_following = False

    def start_slave(self) -> None:
        self.is_following = True

    def log_end(self, cluster: FakeCluster) -> int:
        if cluster is self.slave and self.is_following:
            cluster.end = min(self.master.end, cluster.end + 1000)
        return cluster.end

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class FakeServer:
    """A server that answers `rate` messages a second and records its samples."""

    broker_pid, pids = 1, (1,)
    taken: tuple[str, ...] = ()

    def __init__(self, name: str, pair, serialization: str, *, rate: float = 100.0) -> None:
        self.name, self.pair, self.rate = name, pair, rate

    def load(self, mode, **options):
        FakeServer.taken += (f"{self.name} {self.rate:.0f}",)
        latency = {"p50": 1.0, "p99": 10.0, "p999": 20.0, "p9999": 30.0}
        return {
            "errors": 0, "codes": {}, "messages_per_s": self.rate, "latency_us": latency,
            "cpu_seconds_per_million": 1.0, "others_cpus": 0.0,
        }  # fmt: skip

    def create_topic(self, topic, *, queues):
        pass

    def fill(self, count, **options):
        """Extend the master's log by 5,000 bytes."""
        log = self.pair.master.store_dir / "commitlog" / "0".zfill(20)
        self.pair.master.end += 5000
        log.write_bytes(b"x" * self.pair.master.end)

    def settle(self):
        pass

    @contextmanager
    def sending(self, **options):
        class Senders:
            def report(self):
                return {"errors": 0, "latency_us": {"p99": 15.0}}

        yield Senders()


@pytest.fixture
def plan(tmp_path, monkeypatch):
    @contextmanager
    def running(name, directory, serialization, setup):
        assert setup == PLAIN
        yield FakeServer(name, None, serialization, rate=200.0)

    FakeServer.taken = ()
    monkeypatch.setattr(replication, "PAIRS", dict.fromkeys(("comet", "java"), FakePair))
    monkeypatch.setattr(replication, "PairServer", FakeServer)
    monkeypatch.setattr(replication, "running", running)
    monkeypatch.setattr(replication, "anonymous_bytes", lambda _pid: 5_000_000)
    return Plan(
        directory=tmp_path, servers=["comet", "java"], rivals=[], rounds=2, seconds=1.0,
        warmup_s=1.0, serialization="json", catch_up_bytes=20_000, is_preferred=False,
        say=lambda _line: None,
    )  # fmt: skip


def test_pairs_alternate_and_only_ours_has_a_price(plan):
    run_replicated(plan, PLAIN, [LOAD])
    samples = plan.samples[LOAD.name]
    assert [sample["share_of_single"] for sample in samples["comet"]] == [0.5, 0.5]
    assert all("share_of_single" not in sample for sample in samples["java"])
    assert samples["java"][0]["slave_anonymous_bytes"] == 5_000_000
    rounds = FakeServer.taken[-6:]
    assert rounds == (
        "comet 100", "comet 200", "java 100", "java 100", "comet 100", "comet 200",
    )  # fmt: skip


def test_a_slave_catches_up_from_where_it_was(plan, monkeypatch):
    pairs = []

    def make(directory, is_sync):
        pairs.append(FakePair(directory, is_sync))
        return pairs[-1]

    monkeypatch.setattr(replication, "PAIRS", {"comet": make, "java": make})
    ends = {}

    def log_end(cluster):
        pair = next(one for one in pairs if cluster in (one.master, one.slave))
        ends[cluster] = pair.log_end(cluster)
        return ends[cluster]

    monkeypatch.setattr(replication, "log_end", log_end)
    monkeypatch.setattr(replication, "await_equal_logs", lambda *_: None)
    run_catch_up(plan)
    assert [pair.is_sync for pair in pairs] == [False] * 4
    for pair in pairs:
        assert pair.slave.end == pair.master.end >= 21_000
        assert not pair.directory.exists()
    for name in ("comet", "java"):
        for sample in plan.samples[CATCH_UP.name][name]:
            assert sample["p99_growth"] == sample["p99_growth_of_copy"] == 1.5
            assert sample["p99_us"] == 15.0
            assert sample["catch_up_bytes_per_s"] > 0
            assert sample["share_of_copy"] > 0


def test_the_rows_of_pairs_have_units_and_targets():
    samples = {
        LOAD.name: {
            "comet": [{"messages_per_s": 3.0, "share_of_single": 0.5}],
            "java": [{"messages_per_s": 1.0}],
        },
        CATCH_UP.name: {"comet": [{"share_of_copy": 0.5, "p99_growth": 1.5}]},
    }
    options = {"rounds": 1, "seconds": 2.0}
    result = report.make_result(samples, {}, options=options, measured_at="2026-02-02")
    markdown = page.markdown(result)
    assert "| 3 · 1 (3.00 x) |" in markdown
    assert "| of a single broker's rate 50 %" in markdown
    assert "| of a plain copy's rate 50 % (missed >= 60 %); " in markdown
    assert "p99 while the slave copies, of p99 before 150 % (met <= 200 %) |" in markdown


def test_a_plain_copy_joins_the_files_of_a_log(tmp_path):
    files = [tmp_path / name for name in ("0", "1", "2")]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 1_500_000)
    target = tmp_path / "copy"
    assert copy(files, 3_100_000, target) > 0
    whole = b"".join(file.read_bytes() for file in files)
    assert target.read_bytes() == whole[:3_100_000]
    with pytest.raises(BenchError, match="4500000 of 5000000"):
        copy(files, 5_000_000, target)
