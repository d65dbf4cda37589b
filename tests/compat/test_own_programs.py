# SPDX-License-Identifier: Apache-2.0
"""Runs our command line against either server, and Java clients against `standalone`."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import ConsumeFrom, Message, MessageExt, PushOptions
from cometmq.client import sync as sync_client
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import CLUSTER_NAME, Cluster
from cometmq.peers.comet import PROGRAM
from cometmq.peers.content import received, sent
from cometmq.peers.ports import HOST, free_broker_port, free_port
from cometmq.peers.processes import Child, wait_until
from cometmq.peers.settled import wait_for_offsets
from cometmq.peers.wire import registered_brokers

pytestmark = pytest.mark.compat

COUNT = 40
WAIT_S = 120


@pytest.fixture(scope="module", params=["comet", "java"])
def cluster(request: pytest.FixtureRequest, running: Callable[[str], Cluster]) -> Cluster:
    """Run against both implementations even in the short form: no other test covers the program."""
    return running(request.param)


@pytest.fixture
def cometmq(cluster: Cluster) -> Callable[..., Any]:
    """Run a command with --json; return its output, or its exit status if that is nonzero."""

    def run(*words: str, lines: bool = False) -> Any:
        done = subprocess.run(
            [str(PROGRAM), *words, "--json", "-n", cluster.namesrv_addr],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if done.returncode:
            return done.returncode
        if lines:
            return [json.loads(line) for line in done.stdout.splitlines()]
        return json.loads(done.stdout)

    return run


def test_the_command_line_sends_receives_and_looks_after_topics(
    cluster: Cluster, cometmq: Callable[..., Any], fresh_name: Callable[[str], str]
) -> None:
    topic, group = fresh_name("CliTopic"), fresh_name("CliGroup")
    assert cometmq("topic", "create", topic, "--queues", "4")["queues"] == 4
    assert topic in {row["topic"] for row in cometmq("topic", "list")}

    produced = cometmq("produce", topic, "eins", "zw\u00f6i", "--tag", "TagA", "-k", "kk")
    assert produced["sent"] == 2
    assert {result["status"] for result in produced["first_results"]} == {"SEND_OK"}
    consume = ("consume", topic, "-g", group, "--from", "first", "--max", "2", "--timeout", "90")
    messages = cometmq(*consume, lines=True)
    assert {message["body"] for message in messages} == {"eins", "zw\u00f6i"}
    assert {message["tag"] for message in messages} == {"TagA"}

    wait_for_offsets(cluster, topic, group, 2)
    lag = cometmq("lag", group)
    assert (lag["lag"], sum(queue["committed"] for queue in lag["queues"])) == (0, 2)
    assert sum(queue["messages"] for queue in cometmq("topic", "describe", topic)) == 2
    (broker,) = cometmq("cluster")
    assert (broker["cluster"], broker["address"], broker["state"]) == (
        CLUSTER_NAME,
        cluster.broker_addrs[0],
        "ok",
    )
    assert group in {row["group"] for row in cometmq("group", "list")}

    cometmq("topic", "delete", topic, "--yes")
    assert cometmq("topic", "route", topic) == 1


def test_the_synchronous_clients(cluster: Cluster, topic: str, group: str) -> None:
    """The caller has no event loop."""
    bodies = {f"{number}: gr\u00fcn".encode() for number in range(COUNT)}
    arrived: set[bytes] = set()

    def listener(messages: list[MessageExt]) -> None:
        arrived.update(message.body for message in messages)

    with sync_client.Producer(f"{group}Producer", cluster.namesrv_addr) as producer:
        for body in bodies:
            producer.send(Message(topic, body))
    consumer = sync_client.PushConsumer(
        group,
        cluster.namesrv_addr,
        listener=listener,
        options=PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET),
    )
    consumer.subscribe(topic)
    with consumer:
        wait_until(lambda: arrived == bodies, WAIT_S, "all messages")


@contextmanager
def _standalone(folder: Path, namesrv_port: int, broker_port: int) -> Iterator[str]:
    """Run `cometmq standalone` until SIGTERM; yield the name server's address."""
    command = [str(PROGRAM), "standalone", "--data", str(folder), "--http-port", "-1"]
    ports = ["--namesrv-port", str(namesrv_port), "--broker-port", str(broker_port)]
    child = Child("standalone", [*command, *ports], log_path=folder.parent / "log")
    address = f"{HOST}:{namesrv_port}"
    try:
        child.wait_until(lambda: bool(registered_brokers(address)), WAIT_S, "serving")
        yield address
        assert child.stop(WAIT_S) == 0
    finally:
        child.kill()


def test_standalone_serves_java_clients_and_keeps_their_messages(
    tmp_path: Path, java: ClientProgram
) -> None:
    """Topics are created automatically, and a restart keeps all messages."""
    options = {"topic": "StandaloneTopic", "count": COUNT}
    place = (tmp_path / "data", free_port(), free_broker_port())
    with _standalone(*place) as namesrv:
        wanted = sent(java.run("send", namesrv=namesrv, **options))

    with _standalone(*place) as namesrv:
        printed = java.run("consume", namesrv=namesrv, group="StandaloneGroup", **options)
    assert received(printed) == wanted
