# SPDX-License-Identifier: Apache-2.0
"""`lag` without one of two brokers: totals without its messages are shown as incomplete."""

import asyncio
import json
import signal
import subprocess

import pytest

from cometmq.client import Message, MessageQueue, Producer
from cometmq.client.admin import AdminClient
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import wait_until

READ = {"both": "Shared", "far": "Far"}
"""Group -> its topic, of which it has read one message at broker-b."""
INCOMPLETE = {"both", "far", "fresh"}
"""`both` and `far` have a message to read at broker-b; nothing is known about `fresh`. `near`
has topics at broker-a only.
"""


def hang(cluster):
    cluster.send("broker-b", signal.SIGSTOP)


def leave_only_the_slave(cluster):
    slave = {"broker-name": "broker-b", "broker-role": "SLAVE", "broker-id": "1"}
    cluster.start_broker("slave", **slave)
    cluster.children["broker-b"].kill()

    async def ids():
        async with AdminClient(cluster.namesrv) as admin:
            return (await admin.broker_groups())["broker-b"].keys()

    wait_until(lambda: asyncio.run(ids()) == {1}, 60, "a route without a master")


@pytest.fixture(scope="module", params=[hang, leave_only_the_slave])
def cluster(running_cluster, tmp_path_factory, request):
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        for name in ("broker-a", "broker-b"):
            cluster.start_broker(name)
        prepare(cluster)
        request.param(cluster)
        yield cluster


def prepare(cluster):
    def say(*args):
        command = [str(PROGRAM), *map(str, args), "-n", cluster.namesrv]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    async def send(topic, broker):
        async with Producer("lag-test", cluster.namesrv) as producer:
            await producer.send(Message(topic, b"x"), queue=MessageQueue(topic, broker, 0))

    say("topic", "create", "Near", "--queues", 1, "-b", "broker-a")
    say("topic", "create", "Shared", "--queues", 1)
    say("topic", "create", "Far", "--queues", 1, "-b", "broker-b")
    for group in ("fresh", "near", *READ):
        say("group", "create", group)
    say("updateTopic", "-t", "%RETRY%near", "-b", cluster.addresses["broker-a"])
    asyncio.run(send("Near", "broker-a"))
    say("group", "reset", "near", "Near", "--queue", "broker-a:0", "--offset", 1, "--yes")
    for group, topic in READ.items():
        asyncio.run(send(topic, "broker-b"))
        say("consume", topic, "-g", group, "--from", "first", "--max", 1, "--timeout", 60)
    for topic in READ.values():
        asyncio.run(send(topic, "broker-b"))


@pytest.fixture
def run(call, cluster, silent):
    """Run a command, which must name broker-b; return its output."""
    silent.add(cluster.addresses["broker-b"])
    return lambda *args: call(*args, "-n", cluster.namesrv).assert_named("broker broker-b ")


def test_the_groups_whose_figures_are_incomplete_are_marked(run):
    rows = {row["group"]: row for row in json.loads(run("lag", "--json"))}
    assert rows.keys() == {"near", *INCOMPLETE}
    missing = {group: ",".join(row["missing_brokers"]) for group, row in rows.items()}
    assert missing == {"near": "", **dict.fromkeys(INCOMPLETE, "broker-b")}
    head, *lines = run("lag").splitlines()
    assert head.endswith("Missing brokers")
    marks = {line.split()[0]: line.split()[-1] for line in lines}
    assert marks == {"near": "-", **dict.fromkeys(INCOMPLETE, "broker-b")}


def test_a_single_topic_is_complete_if_its_brokers_answer(run):
    near = json.loads(run("lag", "-t", "Near", "--json"))
    assert [(row["group"], row["missing_brokers"]) for row in near] == [("near", [])]
    assert near[0]["lag"] == 0
    shared = json.loads(run("lag", "-t", "Shared", "--json"))
    assert {tuple(row["missing_brokers"]) for row in shared} == {("broker-b",)}


def test_the_lag_of_one_group_says_that_it_is_incomplete(run):
    title = run("lag", "both").splitlines()[0]
    assert title.startswith("both: incomplete, because broker-b is missing; at least 0 messages")
    assert "s behind" not in title
    assert json.loads(run("lag", "far", "--json"))["missing_brokers"] == ["broker-b"]
    assert json.loads(run("lag", "near", "--json"))["missing_brokers"] == []


def test_the_page_shows_the_groups_as_unknown_and_names_the_broker(run, tmp_path):
    file = tmp_path / "page.html"
    facts = json.loads(run("lag", "--report", file, "--json"))
    assert (facts["missing_brokers"], facts["need_a_look"]) == (["broker-b"], 3)
    page = file.read_text()
    assert "broker-b is missing: no answer, or no master" in page
    rows = [line for line in page.splitlines() if line.startswith("<tr><td")]
    for group in INCOMPLETE:
        (row,) = [row for row in rows if f">{group}</td>" in row]
        assert "</span> unknown</td>" in row
        assert "broker-b is missing" in row
    (row,) = [row for row in rows if ">near</td>" in row]
    assert "</span> ok</td>" in row
