# SPDX-License-Identifier: Apache-2.0
"""Commands when a master is down, restarts or refuses messages, with and without slaves."""

import json
import signal
from time import monotonic

import pytest

from cometmq.peers.ports import free_port
from cometmq.peers.processes import wait_until


@pytest.fixture
def cluster(running_cluster, tmp_path):
    """Run a cluster without brokers for one test."""
    with running_cluster(tmp_path) as cluster:
        yield cluster


def test_produce_outlives_a_restart_and_gives_up_at_its_deadline(call, cluster, pipe_to, frozen):
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
    line = sending.stderr.readline().decode()  # printed after the first failure
    assert cluster.addresses["only"] in line or "broker only" in line
    assert line.endswith("; trying again for 300 s\n")
    cluster.start_broker("only")
    out, err = sending.communicate(timeout=300)
    assert (sending.returncode, err) == (0, b"")
    assert out.count(b"SEND_OK") == 2
    with frozen(cluster, "only"):
        hung = call("produce", "Orders", "x", "--timeout", 2, "-n", cluster.namesrv)
    assert hung.status == 1
    # Either the send times out, or the new client's heartbeat does and closes the connection.
    last = hung.err.splitlines()[-1]
    assert cluster.addresses["only"] in last, hung.err
    assert last.endswith("; gave up after 2 s (--timeout)")


def test_a_broker_that_refuses_messages_is_not_ok(call, cluster):
    cluster.start_broker("full", **{"disk-space-warning-level-ratio": "1"})
    args = ("cluster", "-n", cluster.namesrv)
    wait_until(lambda: call(*args).status == 1, 60, "a check of the disk")
    shown = call(*args, "--json")
    (row,) = json.loads(shown.out)
    assert row["state"] == "takes no messages: disk-full"
    assert row["version"] == "V4_9_4"
    line = f"broker full ({cluster.addresses['full']}) takes no messages: disk-full; "
    assert shown.status == 1
    assert shown.err.startswith(f"cometmq: {line}")


def test_slaves_are_shown_with_their_lag_or_why_they_do_not_follow(call, cluster):
    role = {"broker-name": "pair", "broker-role": "SLAVE"}
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
    assert [table[number]["role"] for number in range(3)] == ["master", "slave", "slave"]
    assert [table[number]["behind_bytes"] is None for number in range(3)] == [True, False, False]
    assert [table[number]["state"] for number in (0, 1)] == ["ok", "ok"]
    assert table[2]["state"] == "cannot follow: file-size"
    assert shown.status == 1
    line = f"slave pair ({cluster.addresses['bad']}) cannot follow its master: file-size; "
    assert shown.err.startswith(f"cometmq: {line}")


@pytest.mark.parametrize("is_killed", [True, False])
def test_without_any_broker_commands_do_not_look_like_an_empty_cluster(
    call, cluster, silent, is_killed
):
    cluster.start_broker("broker-a")
    at = ("-n", cluster.namesrv)
    assert call("topic", "create", "Orders", *at).status == 0
    cluster.send("broker-a", signal.SIGKILL if is_killed else signal.SIGSTOP)
    if is_killed:
        wait_until(lambda: "is registered" in call("cluster", *at).err, 60, "no route")
        expected = f"no broker is registered at the name server {cluster.namesrv}"
        assert "again within 30 s after a restart of the name server" in call("cluster", *at).err
    else:
        silent.add(cluster.addresses["broker-a"])
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
        assert result.assert_named(expected) == "", args
    if is_killed:
        for words in (("produce", "Orders", "x", "--timeout", 0), ("consume", "Orders")):
            result = call(*words, *at)
            assert result.status == 1
            assert "no broker is registered with the name server" in result.err
        for args in (
            ("dlq", "list"),
            ("dlq", "show", "g"),
            ("clusterList",),
            ("topicList",),
            ("statsAll",),
        ):
            assert call(*args, *at).assert_named(expected) == "", args


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
def test_a_broker_of_which_only_a_slave_is_left_is_named(call, cluster, tmp_path, number):
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
    (row,) = json.loads(shown.assert_named(line))
    assert (row["role"], row["state"]) == ("slave", "no master: nobody can send")
    for command in QUESTIONS + CHANGES + ("topic describe Nowhere", "group alter x --retries 1"):
        result = call(*command.split(), *at)
        assert (result.status, result.out) == (1, ""), (command, result)
        assert "broker-a has" in result.err, command
        assert "check the name" not in result.err, command
        assert "masters are" not in result.err, command
    (row,) = json.loads(call("topic", "list", "--json", *at).assert_named(line))
    assert (row["topic"], row["brokers"]) == ("Orders", ["broker-a"])
    for command in ("dlq list", "lag --json"):
        call(*command.split(), *at).assert_named(line)
    call("lag", "--report", tmp_path / "page.html", *at).assert_named(line)

    cluster.start_broker("broker-b")
    assert call("topic", "create", "Other", "-b", "broker-b", *at).status == 0
    listed = call("topic", "list", *at).assert_named(line)
    assert ("Other" in listed, "Orders" in listed) == (True, True)
    nobody = call("lag", "nobody", *at)
    assert (
        nobody.assert_named("the brokers that answer do not know the consumer group nobody") == ""
    )
    for command in CHANGES[:2]:
        refused = call(*command.split(), *at)
        assert refused.assert_named("nothing was changed: broker-a has no master") == ""
    cluster.children["broker-a"].wait_until(
        lambda: cluster.children["broker-a"].exit_status is not None, 20, "its end"
    )
    cluster.start_broker("broker-a", **{"broker-role": "ASYNC_MASTER"})
    wait_until(lambda: call("cluster", *at).status == 0, 60, "the master")
    names = {row["topic"] for row in call("topic", "list", "--json", *at).json}
    assert names == {"Orders", "Other"}


def test_produce_outlives_a_killed_master_and_its_slave_serves_reads(
    call, cluster, tmp_path, pipe_to
):
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
    assert monotonic() - begin < 25  # it takes about 1 s; regular lookups are 30 s apart


def has_copied(call, at, count):
    """Return whether the `Orders` topic has `count` messages and the slave has copied them all."""
    queues = call("topic", "describe", "Orders", *at, "--json").json
    lags = [row["behind_bytes"] for row in call("cluster", *at, "--json").json]
    return sum(row["messages"] for row in queues) == count and lags[1:] == [0]
