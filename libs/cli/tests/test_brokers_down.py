# SPDX-License-Identifier: Apache-2.0
"""Commands while brokers are down or hang: each is named, and the other results are printed."""

import json
import os
import signal
import subprocess
from time import monotonic

import pytest

from cometmq.cli.verbs import brokers
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.clusters import ClusterMember
from cometmq.client.admin.figures import read_figures
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_broker_port, free_port
from cometmq.peers.processes import Child, wait_until
from cometmq.remoting.errors import AccessDenied, RequestTimeout, ServerError

START_TIMEOUT_S = 180
NAMES = ("broker-a", "broker-b")


class Cluster:
    """A name server and two brokers, as processes."""

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
        os.kill(self.children[name].pid, number)

    def stop(self):
        for child in reversed(self.children.values()):
            if child.exit_status is None:
                os.kill(child.pid, signal.SIGCONT)
                child.stop(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start_namesrv()
        for name in NAMES:
            cluster.start_broker(name)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def run(call, cluster):
    return lambda *args: call(*args, "-n", cluster.namesrv)


@pytest.fixture
def hung(cluster):
    """broker-b accepts connections and never answers."""
    cluster.send("broker-b", signal.SIGSTOP)
    yield f"broker broker-b ({cluster.addresses['broker-b']}) hangs: "
    cluster.send("broker-b", signal.SIGCONT)


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


@pytest.fixture(scope="module", autouse=True)
def orders(cluster):
    """A topic on both brokers, with a group that is behind."""

    def say(*args):
        command = [str(PROGRAM), *args, "-n", cluster.namesrv]
        return subprocess.run(command, check=True, capture_output=True, timeout=60)

    say("topic", "create", "Orders", "--queues", "2")
    say("group", "create", "payers")
    say("produce", "Orders", *map(str, range(8)))
    say("consume", "Orders", "-g", "payers", "--from", "first", "--max", "1", "--timeout", "60")


def named(result, line):
    """Check that the command failed with this line; return its output."""
    assert result.status == 1, result
    assert [it for it in result.err.splitlines() if it.startswith(f"cometmq: {line}")], result.err
    return result.out


def test_the_queues_of_a_topic_on_two_brokers_are_named_by_broker(run):
    created = run("topic", "create", "Both", "--queues", 2)
    assert (created.status, "2 at each of 2 brokers" in created.out) == (0, True)
    assert run("topic", "create", "BothToo", "--queues", 2, "--json").json["queues"] == 4


def test_existing_topics_are_reported_by_broker(run):
    assert run("topic", "create", "Partial", "--queues", 3, "-b", "broker-a").status == 0
    run("topic", "create", "Partial").assert_refused(
        1,
        "the topic Partial exists at broker-a (3 read and 3 write queues, rw); to change it, use"
        " cometmq topic alter Partial; to create it at the other brokers, use cometmq topic create"
        " Partial -b broker-b",
    )
    assert run("topic", "create", "Partial", "--queues", 2, "-b", "broker-b").status == 0
    run("topic", "alter", "Partial", "--queues", 2).assert_refused(
        1, "Partial: consumers lose broker-a:2 (0 messages); to do it anyway, give --force"
    )
    rows = run("topic", "alter", "Partial", "--queues", 5, "-b", "broker-b", "--json").json
    assert [(row["broker"], row["read_queues"]) for row in rows] == [("broker-b", 5)]
    rows = run("topic", "alter", "Partial", "--perm", "r", "--json").json
    assert [(row["read_queues"], row["permission"]) for row in rows] == [(3, "r"), (5, "r")]


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("cluster",), "broker-a"),
        (("topic", "list"), "Orders"),
        (("topic", "describe", "Orders"), "broker-a"),
        (("group", "list"), "payers"),
        (("group", "describe", "payers"), "payers"),
        (("lag",), "payers"),
        (("lag", "payers"), "broker-a"),
        (("txn", "list"), "Transaction"),
        (("clusterList",), "broker-a"),
    ],
)
def test_a_hung_broker_is_named_and_the_other_one_shown(run, hung, cluster, args, part):
    line = hung if args != ("clusterList",) else cluster.addresses["broker-b"]
    assert part in named(run(*args), line)


def test_lag_names_a_broker_that_is_left_out_half_way(run, cluster, monkeypatch, tmp_path):
    """The first questions are answered; a later one is refused, or gets no answer."""

    def fails_at_b(method, error):
        original = getattr(BrokerAdmin, method)

        async def asked(self, *args):
            if self.name == "broker-b":
                raise error
            return await original(self, *args)

        monkeypatch.setattr(BrokerAdmin, method, asked)

    place = f"broker broker-b ({cluster.addresses['broker-b']})"
    commands = ("lag",), ("lag", "payers"), ("lag", "--report", tmp_path / "page.html")
    fails_at_b("min_offset", RequestTimeout("no answer"))
    for command in commands:
        named(run(*command), f"{place} hangs: no answer; ")
    (row,) = json.loads(named(run("lag", "--json"), f"{place} hangs"))
    assert (row["group"], row["queues"] > 0) == ("payers", True)
    fails_at_b("consume_stats", ServerError("out of order"))
    for command in commands:
        named(run(*command), f"{place} refuses: the server failed or refused the request: out of")
    fails_at_b("consume_stats", AccessDenied("denied"))
    for command in (commands[0], commands[2]):
        named(run(*command), "the figures of the group payers are missing: ")
    refused = run("lag", "payers")
    assert (refused.status, refused.out, "denied" in refused.err) == (1, "", True)


def test_changes_name_the_broker_that_hangs_and_change_nothing(run, hung, cluster):
    result = run("topic", "create", "Refunds")
    assert (result.status, result.out) == (1, "")
    assert cluster.addresses["broker-b"] in result.err
    assert "Refunds" not in run("topic", "list").out


@pytest.mark.parametrize("options", [(), ("-g", "copiers")], ids=["observer", "group"])
def test_consume_names_the_queues_of_a_broker_that_hangs(cluster, pipe_to, options):
    """Silence is not the end of the queues: the command must not end like a complete copy."""
    args = ("Orders", "--from", "first", "--timeout", "10", *options)
    child = pipe_to("consume", *args, "-n", cluster.namesrv)
    assert child.stdout.readline()
    cluster.send("broker-b", signal.SIGSTOP)
    try:
        _, err = child.communicate(timeout=60)
    finally:
        cluster.send("broker-b", signal.SIGCONT)
    assert child.returncode == 1
    address = cluster.addresses["broker-b"]
    assert (
        "cometmq: 2 queues (broker-b:0 broker-b:1) may not be read to the end: broker broker-b"
        f" ({address}) hangs: "
    ) in err.decode()


def test_a_group_that_is_new_to_a_hung_broker_is_not_called_known(run, hung):
    read = run("consume", "Orders", "-g", "newcomers", "--from", "first", "--max", 1)
    assert "has members or offsets" not in read.err
    assert "broker-b did not answer: if newcomers is new there" in read.err


def test_consume_names_the_queues_of_a_broker_that_dies(cluster, run, pipe_to):
    try:
        child = pipe_to(
            "consume", "Orders", "--from", "first", "--timeout", "10", "-n", cluster.namesrv
        )
        assert child.stdout.readline()
        cluster.children["broker-b"].kill()
        _, err = child.communicate(timeout=60)
    finally:
        cluster.start_broker("broker-b")
    assert child.returncode == 1
    assert "may not be read to the end: broker broker-b (" in err.decode()
    assert ") is down: " in err.decode()
    read = ("consume", "Orders", "--from", "first", "--timeout", 5)
    wait_until(lambda: run(*read).status == 0, 60, "readable again")


def test_consume_that_has_read_everything_ends_with_0(run):
    read = run("consume", "Orders", "--from", "first", "--timeout", 10)
    assert (read.status, len(read.out.splitlines())) == (0, 8)
    filtered = run("consume", "Orders", "--from", "first", "--tag", "none", "--timeout", 10)
    assert (filtered.status, filtered.out) == (0, "")


def test_broker_and_name_server_addresses_are_not_interchangeable(call, cluster):
    broker = cluster.addresses["broker-a"]
    line = f"{broker} is a broker, not a name server: "
    for command in ("cluster", "topic list", "lag", "clusterList", "getNamesrvConfig"):
        call(*command.split(), "-n", broker).assert_refused(1, line)
    for args in (("getBrokerConfig",), ("brokerStatus",), ("producer",)):
        result = call(*args, "-b", cluster.namesrv, "-n", cluster.namesrv)
        assert (result.status, result.out) == (1, "")
        assert f"{cluster.namesrv} is a name server, not a broker: " in result.err


def test_a_name_server_that_hangs_is_named(call, cluster):
    cluster.send("namesrv", signal.SIGSTOP)
    try:
        result = call("cluster", "-n", cluster.namesrv)
    finally:
        cluster.send("namesrv", signal.SIGCONT)
    result.assert_refused(1, f"no name server answers: {cluster.namesrv} does not answer within ")
    assert "s (hung?); look at its log, or give another one with -n or NAMESRV_ADDR" in result.err
    assert "start one" not in result.err


def test_produce_outlives_a_restart_and_gives_up_at_its_deadline(call, pipe_to, tmp_path):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_namesrv()
        cluster.start_broker("only")
        assert call("topic", "create", "Orders", "-n", cluster.namesrv).status == 0
        patient = ("--timeout", "300", "-n", cluster.namesrv)
        sending = pipe_to("produce", "Orders", *patient)
        sending.stdin.write(b"before\n")
        sending.stdin.flush()
        stored = ("topic", "describe", "Orders", "--json", "-n", cluster.namesrv)
        wait_until(lambda: sum(row["messages"] for row in call(*stored).json) == 1, 60, "a message")
        cluster.children["only"].stop(60)
        sending.stdin.write(b"during\n")
        sending.stdin.flush()
        line = sending.stderr.readline().decode()  # printed at the first failure
        assert cluster.addresses["only"] in line or "broker only" in line
        assert line.endswith("; trying again for 300 s\n")
        cluster.start_broker("only")
        out, err = sending.communicate(timeout=300)
        assert (sending.returncode, err) == (0, b"")
        assert out.count(b"SEND_OK") == 2
        cluster.send("only", signal.SIGSTOP)
        options = ("--timeout", 6, "-n", cluster.namesrv)
        hung = call("produce", "Orders", "x", *options)
        cluster.send("only", signal.SIGCONT)
    finally:
        cluster.stop()
    assert hung.status == 1
    # The send times out, or the heartbeat of the new client, which closes the connection.
    last = hung.err.splitlines()[-1]
    assert cluster.addresses["only"] in last, hung.err
    assert last.endswith("; gave up after 6 s (--timeout)")


def test_a_broker_that_refuses_messages_is_not_ok(call, tmp_path):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_namesrv()
        cluster.start_broker("full", **{"disk-space-warning-level-ratio": "1"})
        args = ("cluster", "-n", cluster.namesrv)
        wait_until(lambda: call(*args).status == 1, 60, "a check of the disk")
        shown = call(*args, "--json")
    finally:
        cluster.stop()
    (row,) = json.loads(shown.out)
    assert row["state"] == "takes no messages: disk-full"
    assert row["version"] == "V4_9_4"
    line = f"broker full ({cluster.addresses['full']}) takes no messages: disk-full; "
    assert shown.status == 1
    assert shown.err.startswith(f"cometmq: {line}")


def test_a_broker_with_a_broken_account_file_is_not_ok(call, monkeypatch):
    figures = read_figures({"accountsBroken": "/etc/accounts.yml"})
    member = ClusterMember("c", "broker-a", 0, "127.0.0.1:1", figures, None)
    monkeypatch.setattr(brokers, "ask", lambda *_: [member])
    shown = call("cluster", "--json")
    (row,) = json.loads(shown.out)
    assert row["state"] == "account file broken: /etc/accounts.yml"
    assert shown.status == 1
    assert shown.err.startswith(
        "cometmq: broker broker-a (127.0.0.1:1) cannot use its account file /etc/accounts.yml: it"
    )


def test_slaves_are_shown_with_their_lag_or_why_they_do_not_follow(call, tmp_path):
    cluster = Cluster(tmp_path)
    role = {"broker-name": "pair", "broker-role": "SLAVE"}
    try:
        cluster.start_namesrv()
        cluster.start_broker("pair")
        at = ("-n", cluster.namesrv)
        call("produce", "Orders", "one", *at)
        cluster.start_broker("good", **role, **{"broker-id": "1"})
        files = {"broker-id": "2", "mapped-file-size-commit-log": "4096"}
        cluster.start_broker("bad", **role, **files)

        def rows():
            shown = call("cluster", *at, "--json").out
            return {row["id"]: row for row in json.loads(shown)}

        wait_until(lambda: rows()[1]["behind_bytes"] == 0, 60, "a slave that follows")
        wait_until(lambda: rows()[2]["state"] != "ok", 60, "a slave that does not")
        shown, table = call("cluster", *at), rows()
    finally:
        cluster.stop()
    assert [table[number]["role"] for number in range(3)] == ["master", "slave", "slave"]
    assert [table[number]["behind_bytes"] is None for number in range(3)] == [True, False, False]
    assert [table[number]["state"] for number in (0, 1)] == ["ok", "ok"]
    assert table[2]["state"] == "cannot follow: file-size"
    assert shown.status == 1
    line = f"slave pair ({cluster.addresses['bad']}) cannot follow its master: file-size; "
    assert shown.err.startswith(f"cometmq: {line}")


@pytest.mark.parametrize("is_killed", [True, False])
def test_without_any_broker_commands_do_not_look_like_an_empty_cluster(call, tmp_path, is_killed):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_namesrv()
        cluster.start_broker("broker-a")
        at = ("-n", cluster.namesrv)
        assert call("topic", "create", "Orders", *at).status == 0
        cluster.send("broker-a", signal.SIGKILL if is_killed else signal.SIGSTOP)
        if is_killed:
            wait_until(lambda: "is registered" in call("cluster", *at).err, 60, "no route")
            expected = f"no broker is registered at the name server {cluster.namesrv}"
            assert "since its start (try again in 30 s" in call("cluster", *at).err
        else:
            expected = f"broker broker-a ({cluster.addresses['broker-a']}) hangs: "
        for args in (
            ("topic", "list"),
            ("topic", "describe", "Orders"),
            ("lag",),
            ("lag", "payers"),
            ("group", "list"),
            ("group", "describe", "payers"),
            ("txn", "list"),
        ):
            result = call(*args, *at)
            assert named(result, expected) == "", args
        if is_killed:
            for args in (
                ("dlq", "list"),
                ("dlq", "show", "g"),
                ("clusterList",),
                ("topicList",),
                ("statsAll",),
            ):
                assert named(call(*args, *at), expected) == "", args
    finally:
        cluster.stop()


CHANGES = (
    "topic delete Orders --yes",
    "topic create New",
    "topic create New -b broker-a",
    "topic alter Orders --queues 9",
    "group create new",
    "group alter payers --retries 3",
    "group delete payers --yes",
    "group reset payers Orders --to first --yes",
    "group clone payers payers Orders --yes",
)
QUESTIONS = (
    "group list", "group describe payers", "lag", "lag payers", "txn list",
)  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_broker_of_which_only_a_slave_is_left_is_named(call, tmp_path, number):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_namesrv()
        cluster.start_broker("broker-a", **{"broker-role": "ASYNC_MASTER"})
        at = ("-n", cluster.namesrv)
        assert call("topic", "create", "Orders", *at).status == 0
        assert call("group", "create", "payers", *at).status == 0
        role = {"broker-name": "broker-a", "broker-role": "SLAVE", "broker-id": "1"}
        cluster.start_broker("slave", **role)
        table = tmp_path / "slave" / "config" / "topics.json"
        wait_until(lambda: table.exists() and "Orders" in table.read_text(), 60, "the topic")
        cluster.send("broker-a", number)
        line = "broker broker-a has no master: nobody can send to it; its slave is up ("
        line += f"{cluster.addresses['slave']}); "
        wait_until(lambda: line in call("cluster", *at).err, 60, "a route without a master")
        shown = call("cluster", "--json", *at)
        (row,) = json.loads(named(shown, line))
        assert (row["role"], row["state"]) == ("slave", "no master: nobody can send")
        for command in (
            QUESTIONS + CHANGES + ("topic describe Nowhere", "group alter x --retries 1")
        ):
            result = call(*command.split(), *at)
            assert (result.status, result.out) == (1, ""), (command, result)
            assert "broker-a has" in result.err, command
            assert "check the name" not in result.err, command
            assert "masters are" not in result.err, command
        (row,) = json.loads(named(call("topic", "list", "--json", *at), line))
        assert (row["topic"], row["brokers"]) == ("Orders", "broker-a")
        for command in ("dlq list", "lag --json"):
            named(call(*command.split(), *at), line)
        named(call("lag", "--report", tmp_path / "page.html", *at), line)

        cluster.start_broker("broker-b")
        assert call("topic", "create", "Other", "-b", "broker-b", *at).status == 0
        listed = named(call("topic", "list", *at), line)
        assert ("Other" in listed, "Orders" in listed) == (True, True)
        nobody = call("lag", "nobody", *at)
        assert named(nobody, "the brokers that answer do not know the consumer group nobody") == ""
        for command in CHANGES[:2]:
            refused = call(*command.split(), *at)
            assert named(refused, "nothing was changed: broker-a has no master") == ""
        cluster.children["broker-a"].wait_until(
            lambda: cluster.children["broker-a"].exit_status is not None, 20, "its end"
        )
        cluster.start_broker("broker-a", **{"broker-role": "ASYNC_MASTER"})
        wait_until(lambda: call("cluster", *at).status == 0, 60, "the master")
        names = {row["topic"] for row in call("topic", "list", "--json", *at).json}
        assert names == {"Orders", "Other"}
    finally:
        cluster.stop()


def test_produce_outlives_a_killed_master_and_its_slave_serves_reads(call, tmp_path, pipe_to):
    cluster = Cluster(tmp_path)
    try:
        cluster.start_namesrv()
        at = ("-n", cluster.namesrv)
        master = {"broker-name": "pair", "ha-listen-port": str(free_port())}
        slave = {"broker-name": "pair", "broker-role": "SLAVE", "broker-id": "1"}
        cluster.start_broker("master", **master)
        pace = {"slave-sync-delay-mills": "100", "slave-sync-interval-mills": "200"}
        cluster.start_broker("slave", **slave, **pace)
        assert call("topic", "create", "Orders", "--queues", "2", *at).status == 0
        sending = pipe_to("produce", "Orders", "--timeout", "300", *at)
        sending.stdin.write(b"a\nb\nc\nd\n")
        sending.stdin.flush()
        wait_until(lambda: has_copied(call, at, 4), 60, "a slave with the messages")
        topics = tmp_path / "slave" / "config" / "topics.json"
        wait_until(lambda: topics.exists() and "Orders" in topics.read_text(), 60, "the topic")
        cluster.children["master"].kill()
        sending.stdin.write(b"e\nf\n")
        sending.stdin.flush()
        assert sending.stderr.readline().endswith(b"; trying again for 300 s\n")
        begin = monotonic()
        refused = call("produce", "Orders", "x", "--timeout", "4.5", *at)
        assert (refused.status, monotonic() - begin > 4.5) == (1, True)
        assert "pair has no master now" in refused.err.splitlines()[-1]
        assert refused.err.endswith("; gave up after 4.5 s (--timeout)\n")
        for group in ((), ("-g", "payers")):
            reading = ("consume", "Orders", *group, "--from", "first", "--max", "4")
            shown = call(*reading, "--timeout", "60", *at)
            assert (sorted(shown.out.split()), shown.err) == (["a", "b", "c", "d"], "")
        cluster.start_broker("master", **master)
        begin = monotonic()
        out, _ = sending.communicate(timeout=300)
        assert (sending.returncode, out.count(b"SEND_OK")) == (0, 6)
        assert monotonic() - begin < 25  # about 1 s; the regular lookup comes every 30 s
    finally:
        cluster.stop()


def has_copied(call, at, count):
    """Return whether the topic Orders has `count` messages, and the slave has copied them all."""
    queues = call("topic", "describe", "Orders", *at, "--json").json
    lags = [row["behind_bytes"] for row in call("cluster", *at, "--json").json]
    return sum(row["messages"] for row in queues) == count and lags[1:] == [0]
