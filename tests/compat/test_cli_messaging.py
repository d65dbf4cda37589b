# SPDX-License-Identifier: Apache-2.0
"""`cometmq`'s commands beyond mqadmin's, with servers and clients of both implementations."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.peers.cli import CliAnswer, CometCli
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import Cluster
from cometmq.peers.comet import PROGRAM
from cometmq.peers.content import named
from cometmq.peers.processes import wait_until

pytestmark = pytest.mark.compat

WAIT_S = 240
TIMEOUT = str(WAIT_S // 4)

Ask = Callable[..., CliAnswer]


def test_a_java_consumer_replies_to_our_requests(
    cluster: Cluster, java: ClientProgram, ours: Ask, topic: str, group: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    with java.start("reply", group=group, count=2, **server) as replier:
        replier.wait_for("started")
        first = ours("request", topic, "one", "--timeout", TIMEOUT)
        second = ours("request", topic, "two", "--timeout", TIMEOUT, "-k", "k", "--tag", "t")
        replier.finish()
    assert (first.output, second.output) == ("re:one\n", "re:two\n")


def test_we_reply_to_requests_of_java(cluster: Cluster, java: ClientProgram, topic: str) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    command = ("reply", topic, "--command", 'printf "%s:" "$REQUEST_KEYS"; cat', "--count", "3")
    with subprocess.Popen(
        [str(PROGRAM), *command, "-n", cluster.namesrv_addr],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as replier:
        try:
            printed = java.run("request", count=3, key="ask", **server)
            out, _ = replier.communicate(timeout=WAIT_S)
        finally:
            replier.kill()
    replied = {event["key"]: event["text"] for event in named(printed, "replied")}
    assert replied == {f"ask-{number}": f"ask-{number}:ask-{number}" for number in range(3)}
    assert replier.returncode == 0, out


def test_the_way_of_a_message_of_java_clients_is_shown(
    cluster: Cluster, java: ClientProgram, ours: Ask, topic: str, group: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic, "trace": "true"}
    with (
        java.start("send", count=1, key="way", group="JavaMaker", stay_s=300, **server) as producer,
        java.start("consume", group=group, count=2, timeout_s=300, **server),
    ):
        producer.wait_for("sent")
        (event,) = producer.events("sent")
        arguments = ("message", "trace", event["msg_id"], "--json")

        def clients() -> list[dict[str, object]]:
            found = ours(*arguments)
            rows = found.json if found.status == 0 else []
            return [row for row in rows if row["seen_by"] == "client"]

        wait_until(lambda: [row["is_success"] for row in clients()] == [True] * 2, WAIT_S, "traces")
        sent, consumed = clients()
    assert (sent["event"], sent["group"], sent["topic"]) == ("sent", "JavaMaker", topic)
    assert (consumed["event"], consumed["group"]) == ("consumed", group)
    assert consumed["text"] == "attempt 1: success"


def essence(answer: CliAnswer) -> list[tuple[Any, ...]]:
    """Return the messages of `consume --json` without their positions and times."""
    rows = [json.loads(line) for line in answer.output.splitlines()]
    names = ("queue_id", "message_id", "body", "tag", "keys", "properties", "flag")
    return [tuple(str(row.get(name)) for name in names) for row in rows]


ALL = ("--from", "first", "--no-follow", "--json")
LINES = "".join(
    json.dumps(
        {"body": f"b{n}", "tag": f"t{n % 3}", "keys": [f"k{n}"], "properties": {"n": str(n)}}
    )
    + "\n"
    for n in range(200)
)


def test_messages_are_copied_to_files_and_back(
    cluster: Cluster, java: ClientProgram, ours: Ask, topic: str, group: str, tmp_path: Path
) -> None:
    """All that `backup` and `restore` need of a broker, Java's have, too; groups keep their place.

    Java's client reads what was restored.
    """
    (tmp_path / "lines").write_text(LINES)
    assert ours("produce", topic, "--json-lines", "-f", str(tmp_path / "lines")).status == 0
    read = ("-g", group, "--from", "first", "--max", "50", "--timeout", TIMEOUT)
    assert ours("consume", topic, *read).status == 0
    folder, copy = str(tmp_path / "backup"), f"{topic}Copy"
    saved = ours("backup", folder, topic, "--group", group, "--json").json
    assert saved["messages"] == 200
    (row,) = ours("restore", folder, "--to", copy, "--groups", "--yes", "--json").json
    assert (row["restored"], row["verified"], row["differ"]) == (200, 200, 0)
    assert essence(ours("consume", copy, *ALL)) == essence(ours("consume", topic, *ALL))
    rest = ours("consume", copy, "-g", group, "--max", "150", "--timeout", TIMEOUT, "--json")
    assert rest.status == 0
    server = {"namesrv": cluster.namesrv_addr, "topic": copy}
    seen = java.run("consume", group=f"{group}Java", count=200, timeout_s=WAIT_S, **server)
    assert len(named(seen, "received")) == 200


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [("java", "comet"), ("comet", "java")])
def test_a_backup_moves_to_the_other_implementation(
    running: Callable[[str], Cluster],
    fresh_name: Callable[[str], str],
    tmp_path: Path,
    source: str,
    target: str,
) -> None:
    there, here = (CometCli(running(name).namesrv_addr).run for name in (source, target))
    topic, folder = fresh_name("Moved"), str(tmp_path / "backup")
    (tmp_path / "lines").write_text(LINES)
    assert there("topic", "create", topic, "--queues", "4").status == 0
    assert there("produce", topic, "--json-lines", "-f", str(tmp_path / "lines")).status == 0
    assert there("backup", folder, topic).status == 0
    (row,) = here("restore", folder, "--yes", "--json").json
    assert (row["restored"], row["differ"]) == (200, 0)
    assert essence(here("consume", topic, *ALL)) == essence(there("consume", topic, *ALL))
