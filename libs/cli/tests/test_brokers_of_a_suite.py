# SPDX-License-Identifier: Apache-2.0
"""`standalone --brokers N` runs N brokers as one: none is left out, and none is left over."""

import os
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child, wait_until

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 180


class Pair:
    """A suite with two brokers."""

    def __init__(self, folder):
        self.folder = folder
        self.data = folder / "data"
        self.http = free_pair(free_port)
        self.port = free_pair(free_broker_port)
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.started: list[Child] = []

    def command(self, *more, brokers=2):
        port = self.namesrv.partition(":")[2]
        return [
            *(str(PROGRAM), "standalone", "--data", str(self.data), "--namesrv-port", port),
            *("--broker-port", str(self.port), "--http-port", str(self.http)),
            *("--brokers", str(brokers), *more),
        ]

    def start(self, *more, **options):
        path = self.folder / "suite.log"
        command = self.command(*more, **options)
        self.started.append(Child("suite", command, log_path=path, cwd=self.folder))
        self.child.wait_for_log("is running", START_TIMEOUT_S)

    @property
    def child(self):
        return self.started[-1]

    def run(self, *words):
        done = subprocess.run(
            [str(PROGRAM), *words, "-n", self.namesrv], cwd=self.folder,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def other(self):
        """Return the process of the second broker."""
        pid = self.child.pid
        (one,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(one)

    def serves(self, port, host="127.0.0.1"):
        with socket.socket() as probe:
            return probe.connect_ex((host, port)) == 0

    def metrics(self, port):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return answer.read().decode()


def free_pair(choose):
    """Return a port so that the one 10 above, with its neighbours, is free, too."""
    while True:
        port = choose()
        with socket.socket() as a, socket.socket() as b, socket.socket() as c:
            try:
                for probe, distance in ((a, 8), (b, 10), (c, 11)):
                    probe.bind(("127.0.0.1", port + distance))
            except OSError:
                continue
        return port


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def pair(tmp_path):
    pair = Pair(tmp_path)
    yield pair
    for child in pair.started:
        if child.exit_status is None:
            child.kill()


def test_two_brokers_share_topics_and_stop_with_ctrl_c(pair):
    pair.start()
    log = pair.child.log()
    assert f"broker 2     127.0.0.1:{pair.port + 10} and 127.0.0.1:{pair.port + 8}; slaves" in log
    names = sorted(re.findall(r"^(\S+):0 +master", pair.run("cluster"), re.MULTILINE))
    assert names[1] == f"{names[0]}-2"
    assert f"brokers     {','.join(names)}" in pair.run("topic", "create", "both")
    for number in range(4):
        pair.run("produce", "both", f"{number}")
    read = pair.run("consume", "both", "--from", "first", "--max", "4").split()
    assert sorted(read) == list("0123")
    assert all("cometmq_native_lane" in pair.metrics(pair.http + step) for step in (0, 10))
    other = pair.other()
    os.kill(pair.child.pid, signal.SIGINT)
    assert pair.child.stop(STOP_TIMEOUT_S) == 0
    assert not is_alive(other)
    verify = [str(PROGRAM), "store", "verify"]
    for name in ("store", "store-2"):
        subprocess.run([*verify, pair.data / name], check=True, capture_output=True)
    pair.start(brokers=1)
    pair.child.wait_for_log(f"{pair.data}/store-2 has the messages of another", START_TIMEOUT_S)


@pytest.mark.parametrize(("host", "bound"), [("localhost", "127.0.0.1"), ("127.0.0.3", None)])
def test_a_host_on_loopback_opens_no_port_to_the_network(pair, host, bound):
    """A port that is open to the network answers at all addresses, 127.0.0.2 included."""
    pair.namesrv = pair.namesrv.replace("127.0.0.1", host)
    pair.start("--host", host)
    ports = [int(pair.namesrv.rpartition(":")[2]), pair.http, pair.http + 10]
    ports += [pair.port + step for step in (-2, 0, 1, 8, 10, 11)]
    assert [port for port in ports if not pair.serves(port, bound or host)] == []
    assert [port for port in ports if pair.serves(port, "127.0.0.2")] == []
    assert pair.run("cluster").count(f"master  {host}:") == 2


def test_a_killed_suite_leaves_no_broker_behind(pair):
    pair.start()
    other = pair.other()
    os.kill(pair.child.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(other), 60, "the end of the second broker")
    assert not pair.serves(pair.port + 10)
    assert not (pair.data / "store-2/abort").exists(), "it stopped cleanly"


def test_a_killed_broker_is_started_again(pair):
    pair.start()
    other = pair.other()
    os.kill(other, signal.SIGKILL)
    pair.child.wait_for_log("sibling.restarted", START_TIMEOUT_S)
    assert pair.other() != other
    assert pair.serves(pair.port + 10)
    assert "sibling.ended" in pair.child.log()
    assert pair.child.stop(STOP_TIMEOUT_S) == 0


def test_a_port_of_a_further_broker_that_is_in_use_ends_the_start(pair):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", pair.port + 10))
        taken.listen()
        done = subprocess.run(
            pair.command(), capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 2, done.stderr
    assert "listenPort of instance 2" in done.stderr
    assert str(pair.port + 10) in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == "cometmq: broker 2 could not start (exit status 2)"


def test_the_txn_checker_asks_all_brokers_with_accounts(pair):
    pair.data.mkdir()
    (pair.data / "broker.conf").write_text("aclEnable=true\nbrokerName=shop\n")
    (pair.data / "plain_acl.yml").write_text(
        "accounts:\n- accessKey: admin-1\n  secretKey: change-me-now\n  admin: true\n"
    )
    pair.start()

    def failures():
        text = pair.metrics(pair.http)
        return dict(
            re.findall(r'^cometmq_txn_failures_total\{broker="([^"]*)"\} (\S+)', text, re.MULTILINE)
        )

    wait_until(lambda: set(failures()) == {"shop", "shop-2"}, 60, "questions to both brokers")
    assert set(failures().values()) == {"0.0"}
