# SPDX-License-Identifier: Apache-2.0
"""Tools ask connected Java consumers through a broker, and Java requesters get replies."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from cometmq.client import ConsumeFrom, ConsumeResult, MessageExt, PushConsumer, PushOptions
from cometmq.client.admin import AdminClient
from cometmq.exporter.rounds import Rounds
from cometmq.exporter.settings import ExporterSettings
from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.clients.programs import ClientProgram, Running
from cometmq.peers.cluster import Cluster
from cometmq.peers.content import Event, contents, named, received, sent
from cometmq.peers.dialect import parse
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import committed, wait_for_offsets
from cometmq.peers.wire import call
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock

pytestmark = pytest.mark.compat

COUNT = 12
QUEUE_COUNT = 4
WAIT_S = 90.0
GET_CONSUMER_LIST_BY_GROUP = 38
INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
CLONE_GROUP_OFFSET = 314


@dataclass(frozen=True)
class Place:
    cluster: Cluster
    topic: str
    group: str
    messages: list[Event]

    def committed(self, group: str) -> list[int]:
        return committed(self.cluster, self.topic, group)

    @property
    def consumed(self) -> list[int]:
        """The number of consumed messages per queue, which equals the group's committed offset."""
        counts = [0] * QUEUE_COUNT
        for message in self.messages:
            counts[int(message["queue_id"])] += 1
        return counts


@dataclass(frozen=True)
class Scene(Place):
    """A group that has consumed all messages of its topic, and a connected member."""

    consumer: Running

    @property
    def client_id(self) -> str:
        answer = call(
            self.cluster.broker_addrs[0],
            GET_CONSUMER_LIST_BY_GROUP,
            {"consumerGroup": self.group},
        )
        (client_id,) = json.loads(answer.body)["consumerIdList"]
        return str(client_id)


@contextmanager
def online(cluster: Cluster, java: ClientProgram, topic: str, group: str) -> Iterator[Scene]:
    """Send messages, have them consumed, and keep a member of the group connected.

    The first consumer commits when it stops. A reset needs committed offsets and a member that
    owns the queues.
    """
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    messages = named(java.run("send", count=COUNT, **server), "sent")
    consumed = java.run("consume", group=group, count=COUNT, **server)
    assert received(consumed) == sent(messages)
    wait_for_offsets(cluster, topic, group, COUNT)
    with java.start("consume", group=group, count=10_000, timeout_s=900, **server) as consumer:
        consumer.wait_for("started")
        wait_until(
            lambda: _queues_of_members(cluster, topic, group) == QUEUE_COUNT, WAIT_S, "queues"
        )
        yield Scene(cluster, topic, group, messages, consumer)


def _queues_of_members(cluster: Cluster, topic: str, group: str) -> int:
    fields = {"group": group, "topic": topic}
    answer = call(cluster.broker_addrs[0], INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)
    members = parse(answer.body.decode())["consumerTable"] if answer.code == 0 else {}
    return sum(len(queues) for queues in members.values())


@pytest.fixture(scope="module")
def scene(cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin) -> Iterator[Scene]:
    topic, group = "AdminOfConsumers", "AdminOfConsumersGroup"
    mqadmin.run("updateTopic", "-b", cluster.broker_addrs[0], "-t", topic, "-r", "4", "-w", "4")
    with online(cluster, java, topic, group) as scene:
        yield scene


def test_a_connected_group_is_reset(
    cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin, topic: str, group: str
) -> None:
    """A reset (222, 220) to the first message makes the consumer receive all messages again."""
    with online(cluster, java, topic, group) as scene:
        output = mqadmin.run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        scene.consumer.wait_for("received", COUNT)
        again = received(scene.consumer.events())

    assert f"rollback consumer offset by specified group[{group}], topic[{topic}]" in output.output
    rows = {(row[0], int(row[1])): int(row[2]) for row in output.rows() if len(row) == 3}
    assert rows == {(cluster.broker_names[0], queue_id): 0 for queue_id in range(QUEUE_COUNT)}
    assert again == sent(scene.messages)


def test_without_force_nothing_is_skipped(mqadmin: MqAdmin, scene: Scene) -> None:
    """A reset (222) to the queues' ends without force leaves the group's offsets unchanged."""
    answer = mqadmin.run(
        "resetOffsetByTime", "-g", scene.group, "-t", scene.topic, "-s", "now", "-f", "false"
    )

    rows = {int(row[1]): int(row[2]) for row in answer.rows() if len(row) == 3}
    assert [rows[queue_id] for queue_id in range(QUEUE_COUNT)] == scene.consumed


def test_a_group_that_is_away_is_reset_by_its_stored_offsets(
    cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin, topic: str, group: str
) -> None:
    """After CONSUMER_NOT_ONLINE (206), the tool writes offsets (15) for the next consumer."""
    server = {"namesrv": cluster.namesrv_addr, "topic": topic, "group": group}
    messages = sent(java.run("send", count=COUNT, namesrv=cluster.namesrv_addr, topic=topic))
    assert received(java.run("consume", count=COUNT, **server)) == messages
    wait_for_offsets(cluster, topic, group, COUNT)

    mqadmin.run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")

    assert committed(cluster, topic, group) == [0] * QUEUE_COUNT
    assert received(java.run("consume", count=COUNT, **server)) == messages


def test_an_unknown_group_cannot_be_reset(mqadmin: MqAdmin, topic: str) -> None:
    """The broker answers the reset (222) with code 1, and the tool shows the remark."""
    errors = mqadmin.run("resetOffsetByTime", "-g", "Nobody", "-t", topic, "-s", "0").errors

    assert "CODE: 1" in errors
    assert "THe consumer group <Nobody> not exist" in errors


@pytest.mark.parametrize("with_stacks", [False, True], ids=["plain", "stacks"])
def test_the_state_of_a_consumer(mqadmin: MqAdmin, scene: Scene, with_stacks: bool) -> None:
    """The broker forwards GET_CONSUMER_RUNNING_INFO (307) to the client."""
    options = ["-g", scene.group, "-i", scene.client_id, *(["-s"] if with_stacks else [])]

    output = mqadmin.run("consumerStatus", *options).output

    assert re.search(r"PROP_CONSUME_TYPE +: CONSUME_PASSIVELY", output)
    assert re.search(r"PROP_CLIENT_VERSION +: V4_9_4", output)
    assert re.search(rf"Topic: {scene.topic} +ClassFilter: false +SubExpression: \*", output)
    row = rf"^{scene.topic} +{scene.cluster.broker_names[0]} +(\d)"
    assert sorted(set(re.findall(row, output, re.MULTILINE))) == ["0", "1", "2", "3"]
    assert ("PullMessageService" in output) is with_stacks


async def test_an_exporter_finds_what_a_consumer_reports(
    cluster: Cluster, java: ClientProgram, topic: str, group: str
) -> None:
    """Through the broker, the exporter asks the consumer (307), which samples its rates every 10 s;
    the retry topic is one of those that it reports.
    """
    with online(cluster, java, topic, group) as scene:
        java.run("send", count=COUNT, namesrv=cluster.namesrv_addr, topic=topic)
        settings = ExporterSettings(namesrv_addr=cluster.namesrv_addr)
        async with AdminClient(cluster.namesrv_addr) as admin, asyncio.timeout(WAIT_S):
            rounds = Rounds(admin, settings, clock=SystemClock(), log=NO_LOG)
            while True:
                await rounds.round()
                rows = {row.topic: row for row in rounds.stats.figures.rows if row.group == group}
                shown = rows.get(topic)
                if shown and shown.status.consume_ok_tps and shown.status.pull_tps:
                    break
                await asyncio.sleep(0.5)
        assert shown.client_id == scene.client_id
        assert shown.address.startswith("127.0.0.1:")
        assert shown.status.consume_failed_msgs == 0
        assert rows.keys() == {topic, f"%RETRY%{group}"}
        assert rounds.fault is None


def test_how_far_members_say_they_are(java: ClientProgram, scene: Scene) -> None:
    """To answer INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), the broker asks each member (221)."""
    asked = {
        "namesrv": scene.cluster.namesrv_addr,
        "topic": scene.topic,
        "group": scene.group,
    }
    wanted = {queue_id: (scene.client_id, offset) for queue_id, offset in enumerate(scene.consumed)}

    for options in (asked, {**asked, "client_id": scene.client_id}):
        members = named(java.run("members", **options), "member")
        said = {event["queue_id"]: (event["client_id"], event["offset"]) for event in members}
        assert said == wanted
    assert named(java.run("members", **asked, client_id="nobody"), "member") == []


def test_an_unknown_group_has_no_progress(scene: Scene) -> None:
    fields = {"group": "Nobody", "topic": scene.topic}

    answer = call(scene.cluster.broker_addrs[0], INVOKE_BROKER_TO_GET_CONSUMER_STATUS, fields)

    assert answer.code == 1


def test_a_message_is_consumed_once_more(mqadmin: MqAdmin, scene: Scene) -> None:
    """CONSUME_MESSAGE_DIRECTLY (309) gives the stored message to the named client's listener."""
    one = scene.messages[5]
    before = len(scene.consumer.events("received"))

    output = mqadmin.run(
        "queryMsgById", "-i", one["offset_msg_id"], "-g", scene.group, "-d", scene.client_id
    ).output

    assert "order=false, autoCommit=true, consumeResult=CR_SUCCESS" in output
    scene.consumer.wait_for("received", before + 1)
    again = scene.consumer.events("received")[before]
    assert contents([again]) == {one["key"]: one["sha256"]}
    assert again["queue_offset"] == one["queue_offset"]


def test_a_client_that_is_not_there_consumes_nothing(mqadmin: MqAdmin, scene: Scene) -> None:
    """The broker answers 309 with code 1, and its remark names the group and the client."""
    message_id = scene.messages[0]["offset_msg_id"]

    errors = mqadmin.run("queryMsgById", "-i", message_id, "-g", scene.group, "-d", "nobody").errors

    assert f"CODE: 1  DESC: The Consumer <{scene.group}> <nobody> not online" in errors


def test_a_group_begins_where_another_is(mqadmin: MqAdmin, scene: Scene) -> None:
    """The tool reads offsets with code 208 and writes them with code 15."""
    clone = f"{scene.group}Clone"

    output = mqadmin.run(
        "cloneGroupOffset", "-s", scene.group, "-d", clone, "-t", scene.topic
    ).output

    assert f"clone group offset success. srcGroup[{scene.group}]" in output
    assert scene.committed(clone) == scene.consumed


@pytest.mark.parametrize("offline", ["false", "true"])
def test_a_broker_copies_offsets(scene: Scene, offline: str) -> None:
    """No tool sends CLONE_GROUP_OFFSET (314), so the test sends it."""
    clone = f"{scene.group}Copy{offline}"
    fields = {
        "srcGroup": scene.group,
        "destGroup": clone,
        "topic": scene.topic,
        "offline": offline,
    }

    answer = call(scene.cluster.broker_addrs[0], CLONE_GROUP_OFFSET, fields)

    assert (answer.code, answer.remark) == (0, None)
    assert scene.committed(clone) == scene.consumed


@pytest.mark.parametrize("version", ["java-4", pytest.param("java-5", marks=pytest.mark.slow)])
def test_requests_get_their_replies(
    cluster: Cluster,
    clients: dict[str, ClientProgram],
    java: ClientProgram,
    topic: str,
    group: str,
    version: str,
) -> None:
    """Each request gets its own reply (codes 325, 326), and the reply topic keeps it."""
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    with clients[version].start("reply", group=group, count=3, **server) as replier:
        replier.wait_for("started")
        printed = java.run("request", count=3, key="ask", **server)
        answered = named(replier.finish(), "answered")

    replied = {event["key"]: event["text"] for event in named(printed, "replied")}
    assert replied == {f"ask-{number}": f"re:ask-{number}" for number in range(3)}
    assert {event["status"] for event in answered} == {"SEND_OK"}
    kept = java.run(
        "view",
        namesrv=cluster.namesrv_addr,
        topic=answered[0]["topic"],
        ids=",".join(event["msg_id"] for event in answered),
    )
    assert len(named(kept, "received")) == 3


async def test_a_python_consumer_answers_tools(
    cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin, topic: str, group: str
) -> None:
    """Our own client answers all of these codes: 307, 309, 221, 220."""
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    messages = named(await asyncio.to_thread(java.run, "send", count=COUNT, **server), "sent")
    place = Place(cluster, topic, group, messages)
    seen: list[str] = []

    def listen(received: list[MessageExt]) -> ConsumeResult:
        seen.extend(message.keys[0] for message in received)
        return ConsumeResult.SUCCESS

    async def until(condition: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(wait_until, condition, WAIT_S, what)

    async def admin(*arguments: str) -> str:
        return (await asyncio.to_thread(mqadmin.run, *arguments)).output

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer(group, cluster.namesrv_addr, listener=listen, options=options)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(seen) == COUNT, "all messages")
        one, client_id = messages[0], consumer.client_id
        state = await admin("consumerStatus", "-g", group, "-i", client_id)
        once_more = await admin(
            "queryMsgById", "-i", one["offset_msg_id"], "-g", group, "-d", client_id
        )
        members = await asyncio.to_thread(java.run, "members", group=group, **server)
        await until(lambda: place.committed(group) == place.consumed, "offsets")
        await admin("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
        await until(lambda: len(seen) == 2 * COUNT + 1, "all messages again")

    assert re.search(r"PROP_CONSUME_TYPE +: CONSUME_PASSIVELY", state)
    assert re.search(rf"Topic: {topic} +ClassFilter: false +SubExpression: \*", state)
    assert "consumeResult=CR_SUCCESS" in once_more
    assert seen[COUNT] == one["key"]
    said = {event["queue_id"]: event["offset"] for event in named(members, "member")}
    assert said == dict(enumerate(place.consumed))
    assert sorted(seen[COUNT + 1 :]) == sorted(message["key"] for message in messages)
