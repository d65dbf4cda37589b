# SPDX-License-Identifier: Apache-2.0
"""Broker groups of real processes: they survive a kill -9 and a switchover, and rest when idle."""

import json
import statistics
import subprocess
import time

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child
from cometmq.peers.scale.processes import processor_s

START_TIMEOUT_S = 180
FAILOVER_TIMEOUT_S = 90
IDLE_WINDOW_S = 5
IDLE_SHARE_MAX = 0.015
IDLE_TIMEOUT_S = 120

BROKER = """\
brokerName=orders
brokerId={ordinal}
brokerIP1=127.0.0.1
listenPort={port}
controlPort={control}
storePathRootDir={folder}/{ordinal}
mappedFileSizeCommitLog=1048576
namesrvAddr=127.0.0.1:{namesrv}
groupRecord=file:{folder}/record/orders.json
groupMembers={members}
"""
ELECTOR = """\
brokerName=orders
groupRecord=file:{folder}/record/orders.json
controlMembers={members}
"""


class Processes:
    def __init__(self, folder):
        self.folder = folder
        self.namesrv_port = free_port()
        self.ports = [free_broker_port() for _ in range(2)]
        self.controls = [free_port() for _ in range(2)]
        self.children: dict[str, Child] = {}

    def start(self, name, *words, ready):
        command = [str(PROGRAM), *map(str, words), "--log-text"]
        log = self.folder / f"{name}-{len(self.children)}.log"
        child = Child(name, command, log_path=log, cwd=self.folder)
        self.children[name] = child
        child.wait_for_log(ready, START_TIMEOUT_S)

    def start_broker(self, ordinal):
        members = ";".join(f"{n}=127.0.0.1:{port}" for n, port in enumerate(self.ports))
        text = BROKER.format(
            ordinal=ordinal, port=self.ports[ordinal], control=self.controls[ordinal],
            folder=self.folder, namesrv=self.namesrv_port, members=members,
        )  # fmt: skip
        config = self.folder / f"broker-{ordinal}.conf"
        config.write_text(text)
        self.start(f"broker-{ordinal}", "broker", "-c", config, ready="broker.ready")

    def start_elector(self, number):
        members = ";".join(f"{n}=127.0.0.1:{port}" for n, port in enumerate(self.controls))
        config = self.folder / "elector.conf"
        config.write_text(ELECTOR.format(folder=self.folder, members=members))
        self.start(f"elector-{number}", "elector", "-c", config, ready="elector.ready")

    def start_group(self, electors):
        """Start a whole group; return its status once clients find its master."""
        self.start("namesrv", "namesrv", "--listen-port", self.namesrv_port, ready="ready")
        for ordinal in range(2):
            self.start_broker(ordinal)
        for number in range(electors):
            self.start_elector(number)
        status = self.until_complete()
        self.until_listed("ok", status=0)  # the master registers after its election
        return status

    def run(self, *words, status=0):
        done = subprocess.run(
            [str(PROGRAM), *map(str, words)],
            capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False, cwd=self.folder,
        )  # fmt: skip
        assert status is None or done.returncode == status, done.stdout + done.stderr
        return done.stdout

    def refused(self, *words):
        """Run a command that ends with status 1; return its standard error."""
        done = subprocess.run(
            [str(PROGRAM), *map(str, words)],
            capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False, cwd=self.folder,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr

    def status(self):
        return json.loads(self.run("ha", "status", "-c", "elector.conf", "--json", status=None))

    def until_listed(self, state, status):
        """Wait until `cometmq cluster` shows the master in this state and exits with this
        status."""
        command = ("cluster", "--json", "-n", f"127.0.0.1:{self.namesrv_port}")
        deadline = time.monotonic() + FAILOVER_TIMEOUT_S
        while True:
            done = subprocess.run(
                [str(PROGRAM), *command],
                capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False,
            )  # fmt: skip
            rows = json.loads(done.stdout or "[]")
            if done.returncode == status and [row["state"] for row in rows[:1]] == [state]:
                return done.stderr
            assert time.monotonic() < deadline, done
            time.sleep(0.1)

    def until(self, condition, what):
        deadline = time.monotonic() + FAILOVER_TIMEOUT_S
        while not condition(status := self.status()):
            assert time.monotonic() < deadline, f"not {what}: {status}"
        return status

    def until_complete(self):
        def is_complete(status):
            states = {one["state"] for one in status["members"]}
            return states == {"ok"} and status["master"] is not None

        return self.until(is_complete, "complete")

    def send(self, *bodies):
        self.run("produce", "-n", f"127.0.0.1:{self.namesrv_port}", "T", *bodies)

    def received(self, count):
        words = ("consume", "T", "--from", "first", "--max", count, "--json")
        out = self.run(*words, "-n", f"127.0.0.1:{self.namesrv_port}")
        return sorted(json.loads(line)["body"] for line in out.splitlines())


@pytest.fixture
def processes(tmp_path):
    processes = Processes(tmp_path)
    yield processes
    for child in processes.children.values():
        if child.exit_status is None:
            child.kill()


def test_a_group_survives_a_kill_and_a_switchover_without_losing_a_message(processes):
    first = processes.start_group(electors=2)
    processes.send("one", "two")

    master = first["master"]
    processes.children[f"broker-{master}"].kill()
    after = processes.until(lambda it: it["master"] == 1 - master, "failed over")
    assert after["epoch"] > first["epoch"]
    # By then the name server lists the new master, and sends wait for one copy only.
    missing = processes.until_listed(f"lacks copies: {master}", status=1)
    processes.send("three")
    assert missing.startswith("cometmq: the group of broker orders (")
    assert f"lacks copies: brokerId {master} not in sync (1 of 2 " in missing

    processes.start_broker(master)
    processes.until_complete()
    processes.until_listed("ok", status=0)
    switched = json.loads(processes.run("ha", "switchover", "-c", "elector.conf", "--json"))
    assert switched["master"] == master
    processes.send("four")
    assert processes.received(4) == ["four", "one", "three", "two"]
    complete = processes.until_complete()
    assert complete["master"] == master
    for child in processes.children.values():
        if child.name != f"broker-{master}" or child.exit_status is None:
            assert child.stop(60) == 0


def test_a_deleted_record_is_not_restored_without_the_only_copy_in_sync(processes):
    master = processes.start_group(electors=1)["master"]
    other = 1 - master
    processes.children[f"broker-{other}"].kill()
    processes.until(lambda it: it["in_sync"] == [master], "left by the killed broker")
    processes.send("only here")
    processes.children["elector-0"].stop(60)
    processes.children[f"broker-{master}"].kill()
    (processes.folder / "record" / "orders.json").unlink()

    processes.start_broker(other)
    members = f"{other}=127.0.0.1:{processes.controls[other]}"
    restore = ("ha", "restore", "-c", "elector.conf", "--members", members, "--yes")
    refused = processes.refused(*restore)
    assert f"brokers [{master}], which were in sync" in refused
    made = json.loads(processes.run(*restore, "--accept-loss", "--json"))
    assert made["master"] == other


def idle_shares(processes):
    """Return the share of a core that each process takes in the next window."""
    pids = {name: child.pid for name, child in processes.children.items()}
    before, begin = processor_s(pids), time.monotonic()
    time.sleep(IDLE_WINDOW_S)
    after, passed_s = processor_s(pids), time.monotonic() - begin
    return {name: (after[name] - before[name]) / passed_s for name in pids}


@pytest.mark.load
def test_the_members_and_electors_of_an_idle_group_take_little_of_a_core(processes):
    """A member took 4 % with three electors, and an elector 1.7 %: each elector asked each member
    twice a second, each of its watches looked at the report 20 times a second, and the record was
    read ten times a second.
    """
    processes.start_group(electors=3)
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    windows = [idle_shares(processes) for _ in range(3)]  # the first ones: it is still starting

    def median(name):
        return statistics.median(window[name] for window in windows[-3:])

    while any(median(name) >= IDLE_SHARE_MAX for name in processes.children):
        assert time.monotonic() < deadline, windows
        windows.append(idle_shares(processes))
