# SPDX-License-Identifier: Apache-2.0
"""Two broker processes with the same brokerName and brokerId."""

import os
import signal
import subprocess

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child

START_TIMEOUT_S = 180


class Cluster:
    """A name server, and brokers that are all named broker-a."""

    def __init__(self, folder):
        self.folder = folder
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.children = []

    def start(self, name, args, ready):
        log = self.folder / f"{name}.log"
        child = Child(name, [str(PROGRAM), *args], log_path=log, cwd=self.folder)
        self.children.append(child)
        child.wait_for_log(ready, START_TIMEOUT_S)
        return child

    def start_namesrv(self):
        options = ("--listen-port", self.namesrv.partition(":")[2])
        return self.start("namesrv", ["namesrv", *options], "namesrv.ready")

    def broker_args(self, folder, *more):
        return [
            *("broker", "-n", self.namesrv, "--broker-name", "broker-a"),
            *("--broker-ip1", "127.0.0.1", "--listen-port", str(free_broker_port())),
            *("--store-path-root-dir", str(self.folder / folder), *more),
        ]

    def master(self):
        command = [str(PROGRAM), "cluster", "-n", self.namesrv, "--json"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        return shown.stdout


@pytest.fixture
def cluster(tmp_path):
    cluster = Cluster(tmp_path)
    cluster.start_namesrv()
    yield cluster
    for child in reversed(cluster.children):
        if child.exit_status is None:
            os.kill(child.pid, signal.SIGCONT)
            child.kill()


def port_of(args):
    return args[args.index("--listen-port") + 1]


def test_a_second_broker_of_this_name_does_not_start(cluster):
    first, second = cluster.broker_args("a"), cluster.broker_args("b")
    cluster.start("first", first, "broker.ready")
    done = subprocess.run(
        [str(PROGRAM), *second], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("cometmq: ")]
    assert f"127.0.0.1:{port_of(first)}" in line
    assert "takeOverName=true" in line
    shown = cluster.master()
    assert f":{port_of(first)}" in shown
    assert f":{port_of(second)}" not in shown


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_broker_whose_predecessor_is_dead_or_hung_starts_at_its_new_address(cluster, number):
    child = cluster.start("first", cluster.broker_args("a"), "broker.ready")
    os.kill(child.pid, number)
    second = cluster.broker_args("b")
    cluster.start("second", second, "broker.ready")
    assert f":{port_of(second)}" in cluster.master()


def test_a_broker_that_finds_its_name_taken_later_is_not_ready_until_the_name_is_free(cluster):
    first, second = cluster.broker_args("a"), cluster.broker_args("b")
    (namesrv,) = cluster.children
    namesrv.kill()
    holder = cluster.start("first", first, "broker.ready")
    waiting = cluster.start("second", second, "broker.ready")
    os.kill(waiting.pid, signal.SIGSTOP)
    cluster.start_namesrv()
    holder.wait_for_log("namesrv.registered", START_TIMEOUT_S)
    os.kill(waiting.pid, signal.SIGCONT)
    waiting.wait_for_log("broker.name_taken", START_TIMEOUT_S)
    assert f":{port_of(second)}" not in cluster.master()
    holder.kill()
    waiting.wait_for_log("namesrv.registered", START_TIMEOUT_S)
    assert f":{port_of(second)}" in cluster.master()
