# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's mqadmin on messages, consumers and statistics: every answer is checked."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import Event, create_topic, named, received, sent
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import text_of, wait_for_dispatch, wait_for_offsets

pytestmark = pytest.mark.compat

COUNT = 10
ROUND_TIMEOUT_S = 180
TOPIC, GROUP = "AdminMessages", "AdminMessagesGroup"


@dataclass(frozen=True)
class Scene:
    """Messages that were sent and consumed; the tests look up one of them."""

    messages: list[Event]

    @property
    def one(self) -> Event:
        return self.messages[3]

    @property
    def place(self) -> list[str]:
        return ["-i", str(self.one["queue_id"]), "-o", str(self.one["queue_offset"])]


@pytest.fixture(scope="module")
def scene(cluster: Cluster, java: ClientProgram) -> Iterator[Scene]:
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC)
    server = {"namesrv": cluster.namesrv_addr, "topic": TOPIC}
    messages = named(java.run("send", count=COUNT, key="admin", **server), "sent")
    consumed = java.run("consume", group=GROUP, count=COUNT, **server)
    assert received(consumed) == sent(messages)
    wait_for_offsets(cluster, TOPIC, GROUP, COUNT)
    with java.start("consume", group=GROUP, count=COUNT, timeout_s=900, **server) as consumer:
        consumer.wait_for("started")
        yield Scene(messages)


def test_consumer_progress(mqadmin: MqAdmin, scene: Scene) -> None:
    """consumerProgress (208) shows that every queue is consumed completely."""
    output = mqadmin.run("consumerProgress", "-g", GROUP)
    rows = [row for row in output.rows() if row[0] == TOPIC]
    groups = {row[0]: row for row in mqadmin.run("consumerProgress").rows()}

    assert sum(int(row[3]) for row in rows) == len(scene.messages)
    assert [row[3] for row in rows] == [row[4] for row in rows]
    assert "Diff Total: 0" in output.output
    assert groups[GROUP][1:5] == ["1", "V4_9_4", "PUSH", "CLUSTERING"]


@pytest.mark.usefixtures("scene")
def test_consumer_connection(mqadmin: MqAdmin) -> None:
    """consumerConnection (203) shows each client's language and version, and the subscription."""
    output = mqadmin.run("consumerConnection", "-g", GROUP).output

    assert re.search(r"127\.0\.0\.1:\d+ +JAVA +V4_9_4", output)
    assert re.search(rf"^%RETRY%{GROUP} +\*", output, re.MULTILINE)
    assert re.search(rf"^{TOPIC} +\*", output, re.MULTILINE)
    assert "ConsumeType: CONSUME_PASSIVELY" in output
    assert "MessageModel: CLUSTERING" in output
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in output


@pytest.mark.usefixtures("scene")
def test_producer_connection(mqadmin: MqAdmin) -> None:
    """producerConnection (204) lists the producer that every Java client contains."""
    output = mqadmin.run("producerConnection", "-g", "CLIENT_INNER_PRODUCER", "-t", TOPIC).output

    assert re.search(r"127\.0\.0\.1:\d+ +JAVA +V4_9_4", output)


def _fields(output: str) -> dict[str, str]:
    """Parse lines of the form `Name: value`."""
    pairs = (line.split(":", 1) for line in output.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _assert_is_the_one(output: str, scene: Scene) -> None:
    fields, one = _fields(output), scene.one
    assert fields["Topic"] == TOPIC
    assert fields["Tags"] == f"[{one['tag']}]"
    assert fields["Keys"] == f"[{one['key']}]"
    assert fields["Queue ID"] == str(one["queue_id"])
    assert fields["Queue Offset"] == str(one["queue_offset"])
    assert fields["Reconsume Times"] == "0"
    assert f"UNIQ_KEY={one['msg_id']}" in fields["Properties"]
    assert "colour=grün 绿" in fields["Properties"]


def test_message_by_offset_id(mqadmin: MqAdmin, scene: Scene, tmp_path: Path) -> None:
    """queryMsgById sends VIEW_MESSAGE_BY_ID (33) and finds the message."""
    answer = mqadmin.run("queryMsgById", "-i", scene.one["offset_msg_id"], "-d", str(tmp_path))

    _assert_is_the_one(answer.output, scene)
    assert _fields(answer.output)["OffsetID"] == scene.one["offset_msg_id"]


def test_message_by_key(mqadmin: MqAdmin, scene: Scene) -> None:
    """queryMsgByKey sends QUERY_MESSAGE (12) and finds the message."""
    rows = mqadmin.run("queryMsgByKey", "-t", TOPIC, "-k", scene.one["key"]).rows()

    one = scene.one
    assert rows == [[one["msg_id"], str(one["queue_id"]), str(one["queue_offset"])]]


def test_message_by_unique_key(mqadmin: MqAdmin, scene: Scene) -> None:
    """queryMsgByUniqueKey sends QUERY_MESSAGE (12) with the flag for unique keys."""
    answer = mqadmin.run("queryMsgByUniqueKey", "-t", TOPIC, "-i", scene.one["msg_id"])

    _assert_is_the_one(answer.output, scene)


def test_message_by_queue_offset(cluster: Cluster, mqadmin: MqAdmin, scene: Scene) -> None:
    """queryMsgByOffset pulls (11) a single message."""
    answer = mqadmin.run(
        "queryMsgByOffset", "-t", TOPIC, "-b", cluster.broker_names[0], *scene.place
    )

    _assert_is_the_one(answer.output, scene)


def test_all_messages_are_printed(cluster: Cluster, mqadmin: MqAdmin, scene: Scene) -> None:
    printed = mqadmin.run("printMsg", "-t", TOPIC).output
    queue_zero = mqadmin.run(
        "printMsgByQueue", "-t", TOPIC, "-a", cluster.broker_names[0], "-i", "0", "-p", "true"
    ).output
    consumed = mqadmin.run(
        "consumeMessage", "-t", TOPIC, "-b", cluster.broker_names[0], "-i", "0", "-c", "1"
    ).output

    in_queue_zero = {event["msg_id"] for event in scene.messages if event["queue_id"] == 0}
    assert set(re.findall(r"MSGID: (\w+)", printed)) == {e["msg_id"] for e in scene.messages}
    assert set(re.findall(r"MSGID: (\w+)", queue_zero)) == in_queue_zero
    assert set(re.findall(r"MSGID: (\w+)", consumed)) <= in_queue_zero
    assert "Consume ok" in consumed


def test_a_message_is_sent_by_hand(cluster: Cluster, mqadmin: MqAdmin, topic: str) -> None:
    """sendMessage (310) stores a message that is then found by its key."""
    ((broker, queue, status, unique_id),) = mqadmin.run(
        "sendMessage", "-t", topic, "-p", "by hand", "-k", "hand", "-c", "TagX"
    ).rows()

    assert (broker, status) == (cluster.broker_names[0], "SEND_OK")
    wait_for_dispatch(cluster)
    assert mqadmin.run("queryMsgByKey", "-t", topic, "-k", "hand").rows() == [
        [unique_id, queue, "0"]
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("scene")
def test_monitoring(cluster: Cluster, tmp_path: Path) -> None:
    """Each round sends code 206, then 203, 208 and 307 per group; the first begins after 20 s."""
    log = tmp_path / "logs" / "rocketmqlogs" / "rocketmq_client.log"
    with MqAdmin(cluster.namesrv_addr, properties={"user.home": str(tmp_path)}) as tool:
        tool.run("startMonitoring")
        wait_until(lambda: "endRound" in text_of(log), ROUND_TIMEOUT_S, "a round")

    assert re.search(
        rf"reportUndoneMsgs: UndoneMsgs \[consumerGroup={GROUP}, topic={TOPIC}, "
        r"undoneMsgsTotal=0, undoneMsgsSingleMQ=0, undoneMsgsDelayTimeMills=\d+\]",
        log.read_text(),
    )
