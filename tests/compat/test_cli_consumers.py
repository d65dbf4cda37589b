# SPDX-License-Identifier: Apache-2.0
"""`cometmq`'s commands about consumers, offsets and messages compared with RocketMQ's mqadmin.

Both query the same cluster in the same way, and their output must contain the same facts.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cometmq.peers.cli import CliAnswer, words_of
from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.clients.programs import ClientProgram, Running
from cometmq.peers.cluster import CLUSTER_NAME, Cluster
from cometmq.peers.content import Event, create_topic, named
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import agreed, wait_for_dispatch, wait_for_offsets

pytestmark = pytest.mark.compat

COUNT = 12
TIMEOUT_S = 180
TRACE_TIMEOUT_S = 240
RATE_COLUMN = 5
ID_AGE_MAX = timedelta(seconds=30)
"""Maximum time from creating a message id in the client to the first byte of the request."""
TOPIC, GROUP = "CliMessages", "CliMessagesGroup"


def heading(output: str) -> list[str]:
    line = next(line for line in output.splitlines() if line.startswith("#"))
    return re.split(r"\s\s+|\s(?=#)", line.strip())


def facts(output: str) -> dict[str, str]:
    """Parse lines of the form `Name: value`."""
    pairs = (line.split(":", 1) for line in output.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


Ask = Callable[..., CliAnswer]


@dataclass(frozen=True)
class Scene:
    """Messages that a group has consumed; one member of the group remains connected."""

    messages: list[Event]
    member: Running

    @property
    def one(self) -> Event:
        return self.messages[5]

    @property
    def place(self) -> list[str]:
        return ["-i", str(self.one["queue_id"]), "-o", str(self.one["queue_offset"])]


@pytest.fixture(scope="module")
def scene(cluster: Cluster, java: ClientProgram) -> Iterator[Scene]:
    """Wait until the member has all queues and has committed what it consumed."""
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC)
    server = {"namesrv": cluster.namesrv_addr, "topic": TOPIC}
    messages = named(java.run("send", count=COUNT, key="cli", **server), "sent")
    with java.start("consume", group=GROUP, count=COUNT + 1_000, timeout_s=900, **server) as member:
        member.wait_for("received", COUNT)
        wait_for_offsets(cluster, TOPIC, GROUP, COUNT)
        yield Scene(messages, member)


# -- members ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("scene")
def test_consumer_connection(mqadmin: MqAdmin, ours: Ask) -> None:
    arguments = ("consumerConnection", "-g", GROUP)
    theirs, found = mqadmin.run(*arguments).output, ours(*arguments)

    assert sorted(found.rows()) == sorted(words_of(theirs))
    assert heading(found.output) == heading(theirs)
    assert facts(found.output) == facts(theirs)
    document = ours(*arguments, "--json").json
    assert [member["version"] for member in document["members"]] == ["V4_9_4"]
    assert document["message_model"] == "CLUSTERING"


@pytest.mark.usefixtures("scene")
def test_producer_connection(mqadmin: MqAdmin, ours: Ask) -> None:
    arguments = ("producerConnection", "-g", "CLIENT_INNER_PRODUCER", "-t", TOPIC)
    found = ours(*arguments).rows()

    clients = {words[1] for words in words_of(mqadmin.run(*arguments).output)}
    assert clients & {words[1] for words in found}
    assert all(words[3:] == ["JAVA", "V4_9_4"] for words in found if words[1] in clients)
    unknown = ours("producerConnection", "-g", "nobody", "-t", TOPIC)
    assert unknown.status == 1
    assert unknown.errors.count("\n") == 1


@pytest.mark.usefixtures("scene")
def test_consumer_progress(mqadmin: MqAdmin, ours: Ask) -> None:
    arguments = ("consumerProgress", "-g", GROUP)
    # The offset of the retry topic may be stored a little later than the others.
    for options in (arguments, (*arguments, "-s", "true")):
        agreed(
            lambda: ours(*options).rows(),  # noqa: B023  # called before the loop goes on
            lambda: words_of(mqadmin.run(*options).output),  # noqa: B023
        )
    theirs, found = mqadmin.run(*arguments).output, ours(*arguments)
    assert heading(found.output) == heading(theirs)
    assert ours(*arguments, "--json").json["diff_total"] == 0
    rows = {row[0]: row for row in words_of(mqadmin.run("consumerProgress").output)}
    mine = {row[0]: row for row in ours("consumerProgress").rows()}
    assert _without_rate(mine[GROUP]) == _without_rate(rows[GROUP])


def _without_rate(row: list[str]) -> list[str]:
    """Return a group without its message rates, which change from one query to the next."""
    assert row[RATE_COLUMN].isdigit()
    return row[:RATE_COLUMN] + row[RATE_COLUMN + 1 :]


@pytest.mark.usefixtures("scene")
def test_consumer_status(mqadmin: MqAdmin, ours: Ask) -> None:
    members = ours("consumerConnection", "-g", GROUP, "--json").json["members"]
    one = ("consumerStatus", "-g", GROUP, "-i", members[0]["client_id"])

    def told(output: str) -> list[list[str]]:
        """Return the sections; of queues, only the columns that do not change with time."""
        plain = (
            sorted(_section(output, name)) for name in ("Properties", "Subscription", "Offset")
        )
        queues = [str(line.split()[:3]) for line in _section(output, "MQ Detail")]
        return [*plain, queues]

    # Queues may be assigned anew between the two calls.
    sections = agreed(lambda: told(ours(*one).output), lambda: told(mqadmin.run(*one).output))
    assert all(sections)
    stacks = ours(*one, "-s", "--json").json["jstack"]
    assert "Thread" in stacks


@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("command", ["consumerStatus", "consumer"])
def test_all_members(mqadmin: MqAdmin, ours: Ask, command: str) -> None:
    """RocketMQ's sources contain `consumer`, but its mqadmin does not register the command."""
    theirs = mqadmin.run("consumerStatus", "-g", GROUP).output
    document = ours(command, "-g", GROUP, "--json").json

    assert "Same subscription in the same group of consumer" in theirs
    assert (document["same_subscription"], document["troubles"]) == (True, [])
    (member,) = document["members"]
    assert member["client_id"] in theirs
    assert {queue["queue"] for queue in member["queues"] if queue["topic"] == TOPIC} == {0, 1, 2, 3}


def _section(output: str, name: str) -> list[str]:
    """Return the lines of one section of a consumer's state, without its heading."""
    _, _, rest = output.partition(f"#Consumer {name}#")
    lines = rest.partition("\n\n\n")[0].splitlines()
    return [" ".join(line.split()) for line in lines if line and not line.startswith("#")]


def test_consumer_config(cluster: Cluster, mqadmin: MqAdmin, ours: Ask, group: str) -> None:
    made = ours("updateSubGroup", "-c", CLUSTER_NAME, "-g", group, "-r", "3", "-d", "true")
    theirs = mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", group, "-r", "3", "-d", "true")
    assert made.output.split() == theirs.output.split()

    found = ours("getConsumerConfig", "-g", group).output
    assert found.split() == mqadmin.run("getConsumerConfig", "-g", group).output.split()
    (placed,) = ours("getConsumerConfig", "-g", group, "--json").json
    assert (placed["cluster"], placed["broker"]) == (CLUSTER_NAME, cluster.broker_names[0])
    assert placed["config"]["retryMaxTimes"] == 3


def test_groups_are_deleted(cluster: Cluster, mqadmin: MqAdmin, ours: Ask, group: str) -> None:
    address = cluster.broker_addrs[0]
    mqadmin.run("updateSubGroup", "-b", address, "-g", group)
    deleted = ours("deleteSubGroup", "-b", address, "-g", group)
    assert (
        deleted.output == f"delete subscription group [{group}] from broker [{address}] success.\n"
    )
    assert ours("getConsumerConfig", "-g", group).status == 1

    mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", group)
    theirs = mqadmin.run("deleteSubGroup", "-c", CLUSTER_NAME, "-g", group, "-r", "true").output
    mqadmin.run("updateSubGroup", "-c", CLUSTER_NAME, "-g", group)
    found = ours("deleteSubGroup", "-c", CLUSTER_NAME, "-g", group, "-r", "true")
    assert found.output.split() == theirs.split()


# -- messages ---------------------------------------------------------------------------------


def test_message_by_id(mqadmin: MqAdmin, ours: Ask, scene: Scene) -> None:
    for arguments in (
        ("queryMsgById", "-i", scene.one["offset_msg_id"]),
        ("queryMsgByUniqueKey", "-t", TOPIC, "-i", scene.one["msg_id"]),
        ("queryMsgByUniqueKey", "-t", TOPIC, "-i", scene.one["msg_id"], "-a"),
    ):
        theirs, found = mqadmin.run(*arguments).output, ours(*arguments).output
        _assert_same_message(found, theirs)
        (document,) = ours(*arguments, "--json").json
        assert document["message_id"] == scene.one["msg_id"]
        assert {track["consumer_group"]: track["track_type"] for track in document["tracks"]}[
            GROUP
        ] == "CONSUMED"
    assert ours("queryMsgById", "-i", "nonsense").status == 2
    assert ours("queryMsgByUniqueKey", "-t", TOPIC, "-i", "nonsense").status == 1


def test_message_by_queue_offset(
    cluster: Cluster, mqadmin: MqAdmin, ours: Ask, scene: Scene
) -> None:
    place = ("queryMsgByOffset", "-t", TOPIC, "-b", cluster.broker_names[0])
    _assert_same_message(
        ours(*place, *scene.place).output, mqadmin.run(*place, *scene.place).output
    )
    assert ours(*place, "-i", "0", "-o", "999").status == 1


def _assert_same_message(found: str, theirs: str) -> None:
    ours, expected = facts(found), facts(theirs)
    by_consumer = {"MIN_OFFSET=", "MAX_OFFSET="}
    properties = {
        pair
        for pair in expected.pop("Properties").strip("{}").split(", ")
        if not pair.startswith(tuple(by_consumer))
    }
    assert set(ours.pop("Properties").strip("{}").split(", ")) == properties
    ours.pop("Message Body Path")
    expected.pop("Message Body Path")
    assert {key: ours[key] for key in expected} == expected
    assert set(re.findall(r"MessageTrack \[.*?\]", found)) == set(
        re.findall(r"MessageTrack \[.*?\]", theirs)
    )


def test_message_by_key(mqadmin: MqAdmin, ours: Ask, scene: Scene) -> None:
    arguments = ("queryMsgByKey", "-t", TOPIC, "-k", scene.one["key"])
    assert ours(*arguments).rows() == words_of(mqadmin.run(*arguments).output)
    assert ours("queryMsgByKey", "-t", TOPIC, "-k", "nonsense").status == 1


def test_messages_are_consumed_again(mqadmin: MqAdmin, ours: Ask, scene: Scene) -> None:
    members = ours("consumerConnection", "-g", GROUP, "--json").json["members"]
    who = ("-g", GROUP, "-d", members[0]["client_id"])
    for arguments in (
        ("queryMsgById", "-i", scene.one["offset_msg_id"], *who),
        ("queryMsgByUniqueKey", "-t", TOPIC, "-i", scene.one["msg_id"], *who),
    ):
        theirs, found = mqadmin.run(*arguments).output, ours(*arguments).output
        assert _without_time(found).strip() == _without_time(theirs).strip()
        assert "consumeResult=CR_SUCCESS" in found


def _without_time(text: str) -> str:
    return re.sub(r"spentTimeMills=\d+", "", text)


def test_messages_are_sent_again(
    cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin, ours: Ask, topic: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    (event,) = named(java.run("send", count=1, key="again", **server), "sent")
    arguments = ("queryMsgById", "-i", event["offset_msg_id"], "-s", "true")

    theirs, found = mqadmin.run(*arguments).output, ours(*arguments).output
    own = [re.search(r"sendStatus=\w+, msgId=\w+", text) for text in (theirs, found)]
    assert own[0] is not None
    assert own[1] is not None
    assert own[0].group() == own[1].group()
    wait_for_dispatch(cluster)
    rows = ours("queryMsgByKey", "-t", topic, "-k", event["key"]).rows()
    assert [row[0] for row in rows] == [event["msg_id"]] * 3


def test_messages_are_printed(cluster: Cluster, mqadmin: MqAdmin, ours: Ask, scene: Scene) -> None:
    broker = cluster.broker_names[0]
    for arguments in (
        ("printMsg", "-t", TOPIC),
        ("printMsg", "-t", TOPIC, "-s", "TagNone"),
        ("printMsg", "-t", TOPIC, "-b", "2000-01-01#00:00:00:000", "-d", "false"),
        ("printMsgByQueue", "-t", TOPIC, "-a", broker, "-i", "1", "-p", "true", "-d", "true"),
        ("consumeMessage", "-t", TOPIC, "-b", broker, "-i", "0"),
    ):
        theirs, found = mqadmin.run(*arguments).output, ours(*arguments).output
        assert _printed(found) == _printed(theirs)
        assert re.findall(r"minOffset=.*", found) == sorted(re.findall(r"minOffset=.*", theirs))
    calculate = ("printMsgByQueue", "-t", TOPIC, "-a", broker, "-i", "0", "-f", "true")
    assert sorted(ours(*calculate).rows()) == sorted(words_of(mqadmin.run(*calculate).output))
    lines = ours("printMsg", "-t", TOPIC, "--json").output.splitlines()
    assert {json.loads(line)["message_id"] for line in lines} == {
        event["msg_id"] for event in scene.messages
    }


def _printed(output: str) -> list[tuple[str, str]]:
    """Return each message's id and body; Java uses fewer replacement characters for broken text."""
    return sorted(re.findall(r"MSGID: (\w+) .* BODY: (.*)", re.sub("\ufffd+", "\ufffd", output)))


@pytest.mark.usefixtures("scene")
def test_consumed_by_hand(cluster: Cluster, ours: Ask) -> None:
    broker = cluster.broker_names[0]
    one = ours("consumeMessage", "-t", TOPIC, "-b", broker, "-i", "0", "-o", "1", "-c", "1").output
    assert len(_printed(one)) == 1
    assert "queueOffset=1," in one
    assert len(_printed(ours("consumeMessage", "-t", TOPIC, "-c", "5").output)) == 5
    assert ours("consumeMessage", "-t", TOPIC, "-i", "0").status == 2
    assert ours("consumeMessage", "-t", TOPIC, "-s", "4000000000000").status == 2


def test_consume_queue(cluster: Cluster, mqadmin: MqAdmin, ours: Ask, scene: Scene) -> None:
    for extra in ((), ("-c", "2"), ("-g", GROUP), ("-b", cluster.broker_addrs[0])):
        arguments = ("queryCq", "-t", TOPIC, "-q", "0", "-i", "0", *extra)
        theirs, found = mqadmin.run(*arguments).output, ours(*arguments).output
        assert re.findall(r"(?:idx|max|Consume).*", found) == re.findall(
            r"(?:idx|max|Consume).*", theirs
        )
    assert len(scene.messages) == COUNT


def test_ids_are_decoded(ours: Ask, scene: Scene) -> None:
    """RocketMQ's sources contain `DecodeMessageId`, but its mqadmin does not register it."""
    before, after = scene.messages[0]["msg_id"], scene.messages[-1]["msg_id"]
    found = [ours("DecodeMessageId", "-i", text, "--json").json for text in (before, after)]
    assert found[0]["ip"] == found[1]["ip"]
    sent = ours("queryMsgByUniqueKey", "-t", TOPIC, "-i", before, "--json").json[0]
    assert found[0]["date"] <= found[1]["date"]
    age = datetime.fromtimestamp(sent["born_timestamp"] / 1000, tz=UTC) - datetime.fromisoformat(
        found[0]["date"]
    )
    assert timedelta(0) <= age < ID_AGE_MAX


def test_traces_are_followed(
    cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin, ours: Ask, topic: str, group: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic, "trace": "true"}
    with (
        java.start("send", count=1, key="trace", stay_s=300, **server) as producer,
        java.start("consume", group=group, count=2, timeout_s=300, **server),
    ):
        producer.wait_for("sent")
        (event,) = producer.events("sent")
        arguments = ("queryMsgTraceById", "-i", event["msg_id"])
        wait_until(
            lambda: ours(*arguments).output.count("success") == 2,
            TRACE_TIMEOUT_S,
            "the trace of both",
        )

    theirs, found = mqadmin.run(*arguments).output, ours(*arguments)
    assert found.rows() == words_of(theirs)
    assert heading(found.output) == heading(theirs)
    kinds = [(row["type"], row["status"]) for row in ours(*arguments, "--json").json]
    assert sorted(kinds) == [("Pub", "success"), ("Sub", "success")]
    assert ours("queryMsgTraceById", "-i", "nonsense").status == 1


# -- offsets ----------------------------------------------------------------------------------


def test_groups_off_line_are_moved(
    cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin, ours: Ask, topic: str, group: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    java.run("send", count=8, key="moved", **server)
    java.run("consume", group=group, count=8, **server)
    wait_for_offsets(cluster, topic, group, 8)
    common = ("-g", group, "-t", topic)

    ours("resetOffsetByTimeOld", *common, "-s", "2000-01-01#00:00:00:000")
    assert _committed(ours, group, topic) == {0: 0, 1: 0, 2: 0, 3: 0}
    ours("skipAccumulatedMessage", *common)
    assert sum(_committed(ours, group, topic).values()) == 8
    found = ours("resetOffsetByTime", *common, "-s", "1", "--json").json
    assert {row["queue"]: row["offset"] for row in found} == _committed(ours, group, topic)
    held = ours("resetOffsetByTimeOld", *common, "-s", "now", "-f", "false", "--json").json
    assert {row["rollback_offset"] for row in held} == {0}
    theirs = mqadmin.run("skipAccumulatedMessage", *common).output
    ours("resetOffsetByTimeOld", *common, "-s", "1")
    assert ours("skipAccumulatedMessage", *common, "--json").json == [
        {"broker": row[0], "queue": int(row[1]), "offset": int(row[5])}
        for row in sorted(words_of(theirs))
    ]


def test_offsets_are_cloned(
    cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin, ours: Ask, topic: str, group: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    java.run("send", count=8, key="cloned", **server)
    java.run("consume", group=group, count=8, **server)
    wait_for_offsets(cluster, topic, group, 8)
    arguments = ("cloneGroupOffset", "-s", group, "-t", topic)

    theirs = mqadmin.run(*arguments, "-d", f"{group}Theirs").output
    found = ours(*arguments, "-d", f"{group}Ours").output
    assert found.strip().replace("Ours", "Theirs") == theirs
    expected = _committed(ours, group, topic)
    assert _committed(ours, f"{group}Ours", topic) == expected
    assert _committed(ours, f"{group}Theirs", topic) == expected


def _committed(ours: Ask, group: str, topic: str) -> dict[int, int]:
    queues = ours("consumerProgress", "-g", group, "--json").json["queues"]
    return {row["queue"]: row["consumer_offset"] for row in queues if row["topic"] == topic}


@pytest.mark.slow
def test_members_on_line_are_moved(
    cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin, ours: Ask, topic: str, group: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    java.run("send", count=8, key="online", **server)
    common = ("-g", group, "-t", topic)
    with java.start("consume", group=group, count=1_000, **server) as member:
        member.wait_for("received", 8)
        wait_for_offsets(cluster, topic, group, 8)
        asked = ours("getConsumerStatus", *common, "--json").json
        assert {row["queue"]: row["offset"] for row in asked} == _committed(ours, group, topic)

        moved = ours("resetOffsetByTime", *common, "-s", "2000-01-01#00:00:00:000")
        assert moved.rows()[-4:] == [[cluster.broker_names[0], str(n), "0"] for n in range(4)]
        member.wait_for("received", 16)
        theirs = mqadmin.run("resetOffsetByTime", *common, "-s", "1").output
        member.wait_for("received", 24)
        assert sorted(words_of(theirs)[1:]) == moved.rows()[1:]


# -- dead letters -----------------------------------------------------------------------------


def test_dead_letters_are_redelivered(
    cluster: Cluster, java: ClientProgram, ours: Ask, topic: str, group: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    (event,) = named(java.run("send", count=1, key="dead", **server), "sent")
    refusing = {"count": 1, "fail_first": 1, "max_reconsume_times": 0}
    with java.start("consume", group=group, **refusing, **server) as member:
        member.wait_for("refused")
        wait_until(lambda: bool(_dead(ours, group)), TIMEOUT_S, "a dead letter")
        wait_for_offsets(cluster, topic, group, 1)
    (dead,) = _dead(ours, group)
    assert (dead["origin_topic"], dead["message_id"]) == (topic, event["msg_id"])

    assert ours("dlq", "replay", group, "--key", event["key"], "-y").status == 0
    (again,) = named(java.run("consume", group=group, count=1, **server), "received")
    assert (again["key"], again["sha256"]) == (event["key"], event["sha256"])
    assert again["msg_id"] == event["msg_id"]


def _dead(ours: Ask, group: str) -> list[Any]:
    answer = ours("dlq", "show", group, "--json")
    return list(answer.json) if answer.status == 0 else []


# -- monitoring -------------------------------------------------------------------------------


@pytest.mark.usefixtures("scene")
def test_one_round_of_monitoring(ours: Ask) -> None:
    answer = ours("startMonitoring", "--rounds", "1", "--json")
    assert answer.status == 0, answer.errors
    assert answer.errors == ""
    found = [json.loads(line) for line in answer.output.splitlines()]
    undone = {
        line["found"]["topic"]: line["found"]["undoneMsgsTotal"]
        for line in found
        if line["report"] == "reportUndoneMsgs" and line["found"]["consumerGroup"] == GROUP
    }
    assert undone[TOPIC] == 0
