# SPDX-License-Identifier: Apache-2.0
"""One running suite for all command tests, and functions that run commands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from typing import NamedTuple

import pytest

from cometmq.cli.main import main
from cometmq.client.admin import AdminClient
from cometmq.peers.comet import PROGRAM
from cometmq.peers.forks import forked_programs
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child, wait_until
from cometmq.peers.shared.leftovers import left_as_found
from cometmq.peers.suite import running_suite
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.client import RemotingClient

START_TIMEOUT_S = 180
COMMAND_TIMEOUT_S = 180
PATIENCE_MS = 300
EXECUTED = {"test_console_of_a_suite", "test_main"}
"""Modules about memory and starts, whose programs are executed, not forked."""


@pytest.fixture(autouse=True, scope="module")
def fork_programs(request):
    """Fork the programs that tests start."""
    with nullcontext() if request.path.stem in EXECUTED else forked_programs():
        yield


@pytest.fixture
def start(tmp_path):
    """Start programs, and kill all of them after the test."""
    children = []

    def start(*args, name="program", ready="ready"):
        command = [str(PROGRAM), *map(str, args)]
        child = Child(name, command, log_path=tmp_path / f"{name}.log", cwd=tmp_path)
        children.append(child)
        child.wait_for_log(ready, START_TIMEOUT_S)
        return child

    yield start
    for child in children:
        if child.exit_status is None:
            child.kill()


@pytest.fixture(autouse=True)
def own_settings(tmp_path, monkeypatch):
    """Hide the contexts of the user who runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


class Result(NamedTuple):
    status: int | str
    out: str
    err: str

    @property
    def json(self):
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def lines(self):
        """Return the JSON lines of `consume --json`."""
        return [json.loads(line) for line in self.out.splitlines()]

    def assert_refused(self, status, line):
        """Check that standard error has one line and standard output is empty."""
        assert self.status == status
        assert self.err.startswith(f"cometmq: {line}")
        assert self.err.count("\n") == 1
        assert self.out == ""

    def assert_named(self, line):
        """Check that the command failed with this line; return its output."""
        assert self.status == 1, self
        assert [it for it in self.err.splitlines() if it.startswith(f"cometmq: {line}")], self.err
        return self.out


@pytest.fixture
def silent(monkeypatch):
    """Return the addresses of servers that hang; requests of this process to them fail soon.

    Requests to other servers keep their timeouts, so that no test fails on a slow machine.
    """
    addresses: set[str] = set()
    invoke = RemotingClient.invoke

    async def hurried(self, address, *args, timeout_ms, **options):
        limit_ms = PATIENCE_MS if address in addresses else timeout_ms
        return await invoke(self, address, *args, timeout_ms=min(timeout_ms, limit_ms), **options)

    monkeypatch.setattr(RemotingClient, "invoke", hurried)
    return addresses


@pytest.fixture
def frozen(silent):
    """Let a server of a cluster accept connections without ever answering."""

    @contextmanager
    def frozen(cluster, name):
        address = cluster.addresses.get(name, cluster.namesrv)
        cluster.send(name, signal.SIGSTOP)
        silent.add(address)
        try:
            yield
        finally:
            cluster.send(name, signal.SIGCONT)
            silent.discard(address)

    return frozen


class Cluster:
    """Starts a name server and named brokers as processes."""

    def __init__(self, folder):
        self.folder = folder
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.addresses = {}
        self.children = {}

    def start_namesrv(self):
        port = self.namesrv.partition(":")[2]
        self._start("namesrv", "namesrv", "--listen-port", port, "--admin-http-port", "-1")

    def start_broker(self, name, **more):
        port = self.addresses.setdefault(name, f"127.0.0.1:{free_broker_port()}").partition(":")[2]
        options = {
            "broker-name": name,
            "listen-port": port,
            "broker-ip1": "127.0.0.1",
            "namesrv-addr": self.namesrv,
            "store-path-root-dir": str(self.folder / name),
            "admin-http-port": "-1",
            **more,
        }
        args = [word for key, value in options.items() for word in (f"--{key}", value)]
        self._start(name, "broker", *args)

    def _start(self, name, *args):
        log = self.folder / f"{name}.log"
        child = Child(name, [str(PROGRAM), *args], log_path=log, cwd=self.folder)
        self.children[name] = child
        child.wait_for_log("ready", START_TIMEOUT_S)

    def send(self, name, number):
        """Send a signal; a broker is stopped only once it is in the routes.

        If it was stopped before, it may have closed its connection to the name server, because a
        request timed out meanwhile.
        """
        if number == signal.SIGSTOP and name in self.addresses:
            wait_until(
                lambda: asyncio.run(self._is_serving(name)), START_TIMEOUT_S, f"{name} serves"
            )
        os.kill(self.children[name].pid, number)

    async def _is_serving(self, name):
        with suppress(CometError):
            async with AdminClient(self.namesrv, log=NO_LOG) as admin:
                await admin.broker(self.addresses[name]).runtime_info()
                return name in await admin.broker_groups()
        return False

    def stop(self):
        for child in reversed(self.children.values()):
            if child.exit_status is None:
                os.kill(child.pid, signal.SIGCONT)
                child.stop(60)


@pytest.fixture(scope="session")
def shared_suite(tmp_path_factory):
    with running_suite(tmp_path_factory.mktemp("suite")) as suite:
        yield suite


@pytest.fixture(scope="module")
def suite(shared_suite):
    """Return the suite of all files, each of which leaves it as it found it."""
    with left_as_found(*shared_suite):
        yield shared_suite


@pytest.fixture
def call(capfdbinary, monkeypatch):
    """Run the command line in this process; return its exit status, output and errors."""
    # The tests that follow in this process keep their priority.
    monkeypatch.setattr("cometmq.cli.programs.commands.yield_processors", lambda: None)

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["cometmq", *map(str, args)])
        # Otherwise errors name "python -m pytest.cometmq" under python -m pytest.
        monkeypatch.setattr(sys.modules["__main__"], "__package__", "", raising=False)
        capfdbinary.readouterr()
        status: int | str = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        out, err = capfdbinary.readouterr()
        return Result(status, out.decode("utf-8", "surrogateescape"), err.decode())

    return call


@pytest.fixture
def ask(call, suite):
    """Run a command against the suite."""
    return lambda *args: call(*args, "-n", suite.namesrv)


@pytest.fixture
def pipe(suite):
    """Run a command as a process, with standard input."""

    def pipe(*args, stdin=b""):
        command = [str(PROGRAM), *map(str, args), "-n", suite.namesrv]
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    return pipe


@pytest.fixture
def pipe_to():
    """Start a command that reads from a pipe."""
    started = []

    def pipe_to(*args):
        pipe = subprocess.PIPE
        child = subprocess.Popen([str(PROGRAM), *args], stdin=pipe, stdout=pipe, stderr=pipe)
        started.append(child)
        return started[-1]

    yield pipe_to
    for child in started:
        with child:
            child.kill()


@pytest.fixture(scope="session")
def running_cluster():
    """Run a name server, with its files in a folder; stop it and all its brokers at the end."""

    @contextmanager
    def running_cluster(folder):
        cluster = Cluster(folder)
        try:
            cluster.start_namesrv()
            yield cluster
        finally:
            cluster.stop()

    return running_cluster


_numbers = count()


@pytest.fixture
def topic(ask):
    """Create a topic with two queues."""
    name = f"Topic{next(_numbers)}"
    assert ask("topic", "create", name, "--queues", 2).status == 0
    return name
