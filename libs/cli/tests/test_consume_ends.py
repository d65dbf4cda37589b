# SPDX-License-Identifier: Apache-2.0
"""What ends `consume`: signals, readers that leave, and rights or groups that are missing."""

import signal
import subprocess

import pytest

from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import Child


def test_a_reader_that_leaves_ends_consume(suite, ask, topic):
    ask("produce", topic, "x" * 1000, "--count", 300)
    command = [str(PROGRAM), "consume", topic, "--from", "first", "-n", suite.namesrv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"x" * 1000 + b"\n"
        process.stdout.close()
        assert process.wait(60) == -signal.SIGPIPE
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("options", [(), ("-g", "readers")], ids=["observer", "group"])
def test_a_topic_that_consumers_may_not_read_is_refused(ask, topic, options):
    assert ask("topic", "alter", topic, "--perm", "w", "--yes").status == 0
    refused = ask("consume", topic, "--timeout", 5, *options)
    refused.assert_refused(1, f"consumers may not read the topic {topic}: see cometmq topic route")
    assert refused.err.endswith(f"cometmq topic alter {topic} --perm rw\n")


@pytest.mark.parametrize("options", [(), ("--from", "first"), ("--json", "--max", 1)])
def test_a_disabled_group_ends_consume(ask, topic, options):
    group = f"{topic}-off"
    assert ask("group", "create", group, "--no-enabled").status == 0
    refused = ask("consume", topic, "-g", group, "--timeout", 30, *options)
    refused.assert_refused(
        1,
        f"the consumer group {group} is disabled: nothing is delivered to it; to enable it:"
        f" cometmq group alter {group} --enabled\n",
    )
    assert ask("lag", group, "--json").json["queues"] == [], "offsets of a refused command"


def test_a_group_that_brokers_do_not_create_ends_consume_without_offsets(ask, suite, topic):
    group = f"{topic}-unknown"
    change = ("updateBrokerConfig", "-b", suite.broker, "-k", "autoCreateSubscriptionGroup", "-v")
    assert ask(*change, "false").status == 0
    try:
        refused = ask("consume", topic, "-g", group, "--from", "first", "--timeout", 30)
    finally:
        assert ask(*change, "true").status == 0
    (member,) = ask("cluster", "--json").json
    refused.assert_refused(
        1,
        f"broker {member['broker']} does not know the consumer group {group}, and does not create"
        f" groups itself (autoCreateSubscriptionGroup): cometmq group create {group}\n",
    )
    assert ask("group", "create", group).status == 0
    assert ask("lag", group, "--json").json["queues"] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_consume_in_order(suite, ask, topic, tmp_path, number):
    ask("produce", topic, "first")
    args = ["consume", topic, "-g", f"{topic}-{number.name}", "--from", "first"]
    child = Child("consume", [str(PROGRAM), *args, "-n", suite.namesrv], log_path=tmp_path / "log")
    try:
        child.wait_for_log("first", 60)
        child._signal(number)
        child.wait_until(lambda: child.exit_status is not None, 60, "end")
        assert (child.exit_status, child.log()) == (130, "first\n")
    finally:
        child.kill()
    state = ask("lag", f"{topic}-{number.name}", "-t", topic, "--json").json
    assert state["lag"] == 0


@pytest.mark.parametrize("options", [(), ("-g", "group-{topic}")])
def test_consume_ends_when_the_reader_is_gone_while_it_waits(suite, ask, topic, options):
    for number in range(2):
        ask("produce", topic, f"message-{number}")
    words = ("consume", topic, "--from", "first", *(word.format(topic=topic) for word in options))
    with subprocess.Popen(
        [str(PROGRAM), *words, "-n", suite.namesrv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        try:
            read = sorted(process.stdout.readline() for _ in range(2))
            process.stdout.close()
            assert process.wait(60) == -signal.SIGPIPE
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert read == [b"message-0\n", b"message-1\n"]
