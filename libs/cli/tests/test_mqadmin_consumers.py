# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for groups, offsets, messages and traces, against a running suite."""

import asyncio
import json
from contextlib import contextmanager
from pathlib import Path

import pytest

from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.java_text import write_body
from cometmq.cli.mqadmin.reading import decoded
from cometmq.client import (
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    ProducerOptions,
    PushOptions,
)
from cometmq.client.sync import PushConsumer
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import Child, wait_until
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo, ProcessQueueInfo

NOW_MS = 1_795_176_000_000


@pytest.fixture
def sent(ask, topic):
    """Send ten messages to two queues."""
    ask("produce", topic, *range(10), "--tag", "A", "--key", "k", "--in-flight", 1)
    return [json.loads(line) for line in ask("printMsg", "-t", topic, "--json").out.splitlines()]


@pytest.fixture
def member(suite, tmp_path):
    @contextmanager
    def member(topic, group):
        args = ["consume", topic, "-g", group, "--from", "first", "-n", suite.namesrv]
        child = Child(group, [str(PROGRAM), *args], log_path=tmp_path / group)
        try:
            yield child
        finally:
            child.stop(60)

    return member


def consumed(ask, topic, group, count=10):
    args = ("-g", group, "--from", "first", "--timeout", 60, "--max", count)
    assert ask("consume", topic, *args).status == 0


def committed(ask, topic, group):
    rows = ask("consumerProgress", "-g", group, "--json").json["queues"]
    return {row["queue"]: row["consumer_offset"] for row in rows if row["topic"] == topic}


# -- groups -----------------------------------------------------------------------------------


def test_a_group_is_created_shown_and_deleted(ask, suite):
    made = ask("updateSubGroup", "-b", suite.broker, "-g", "sub-group", "-r", 3, "-s", "false")
    assert made.out.startswith(f"create subscription group to {suite.broker} success.\n")
    assert "[groupName=sub-group, consumeEnable=false, consumeFromMinEnable=false" in made.out
    shown = ask("getConsumerConfig", "-g", "sub-group").out
    assert "retryMaxTimes                           =  3\n" in shown
    (placed,) = ask("getConsumerConfig", "-groupName", "sub-group", "--json").json
    assert (placed["cluster"], placed["config"]["consumeEnable"]) == ("DefaultCluster", False)

    gone = ask("deleteSubGroup", "-c", "DefaultCluster", "-g", "sub-group", "-r", "true")
    assert f"delete subscription group [sub-group] from broker [{suite.broker}]" in gone.out
    ask("getConsumerConfig", "-g", "sub-group").assert_refused(1, "no broker knows the consumer")


def test_either_a_broker_or_a_cluster_is_meant(ask, suite):
    for command in ("updateSubGroup", "deleteSubGroup"):
        ask(command, "-g", "x").assert_refused(2, "the target is missing: give -c ")
        both = ask(command, "-g", "x", "-b", suite.broker, "-c", "DefaultCluster")
        both.assert_refused(2, "there are two targets: give either -b ")
    ask("updateSubGroup", "-c", "Other", "-g", "x").assert_refused(1, "there is no cluster Other")


# -- members ----------------------------------------------------------------------------------


def test_members_are_shown(ask, topic, sent, member):
    group = f"{topic}-online"
    with member(topic, group):
        wait_until(lambda: ask("consumerConnection", "-g", group).status == 0, 60, "a member")
        shown = ask("consumerConnection", "-g", group, "--json").json
        assert [row["version"] for row in shown["members"]] == ["V4_9_4"]
        assert {"topic": topic, "expression": "*"} in shown["subscriptions"]
        text = ask("consumerConnection", "-g", group).out
        assert "#ClientId" in text.splitlines()[0]
        assert "MessageModel: CLUSTERING\n" in text
        rows = {row["group"]: row for row in ask("consumerProgress", "--json").json}
        assert (rows[group]["count"], rows[group]["type"]) == (1, "PUSH")
    offline = ask("consumerConnection", "-g", "nobody")
    assert (offline.status, offline.err.count("\n")) == (1, 1)
    assert ask("producerConnection", "-g", "nobody", "-t", topic).status == 1
    assert len(sent) == 10


# -- progress and offsets ---------------------------------------------------------------------


def test_progress_by_queue(ask, topic, sent):
    group = f"{topic}-progress"
    consumed(ask, topic, group)
    found = ask("consumerProgress", "-g", group, "--json").json
    assert sum(row["consumer_offset"] for row in found["queues"]) == len(sent)
    assert found["diff_total"] == 0
    lines = ask("consumerProgress", "-g", group, "-s", "true").out.splitlines()
    assert lines[0].split("  ")[0] == "#Topic"
    assert "#Client IP" in lines[0]
    assert lines[-1] == "Diff Total: 0"
    ask("consumerProgress", "-g", "nobody").assert_refused(
        1, "no broker knows the consumer group nobody"
    )


def test_a_group_is_moved(ask, topic, sent):
    group = f"{topic}-moved"
    consumed(ask, topic, group)
    common = ("-g", group, "-t", topic)
    ask("resetOffsetByTime", *common, "-s", "2000-01-01#00:00:00:000")
    assert sum(committed(ask, topic, group).values()) == 0
    rows = ask("skipAccumulatedMessage", *common, "--json").json
    assert sum(row["offset"] for row in rows) == len(sent)
    assert ask("resetOffsetByTime", *common, "-s", "now").status == 0
    moved = ask("resetOffsetByTimeOld", *common, "-s", "1h", "--json").json
    assert {row["rollback_offset"] for row in moved} == {0}
    held = ask("resetOffsetByTimeOld", *common, "-s", "-1", "-f", "false", "--json").json
    assert {row["rollback_offset"] for row in held} == {0}
    ask("resetOffsetByTime", *common, "-s", "1700000000").assert_refused(
        2, "1700000000 milliseconds"
    )
    ask("resetOffsetByTime", *common, "-s", "soon").assert_refused(2, "soon is not a time")

    assert ask("group", "reset", group, topic, "--to", "last", "--yes").status == 0
    cloned = ask("cloneGroupOffset", "-s", group, "-d", f"{group}-copy", "-t", topic)
    assert cloned.out.startswith("clone group offset success.")
    assert committed(ask, topic, f"{group}-copy") == committed(ask, topic, group)
    assert ask("group", "create", f"{group}-other").status == 0
    rows = ask("group", "clone", group, f"{group}-other", topic, "-y", "--json").json
    assert {row["queue"]: row["offset"] for row in rows} == committed(ask, topic, group)


def test_members_say_where_they_are(ask, topic, sent, member, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = f"{topic}-asked"
    with member(topic, group):
        wait_until(
            lambda: ask("consumerProgress", "-g", group).out.endswith("Diff Total: 0\n"),
            30,
            "offsets",
        )
        rows = ask("getConsumerStatus", "-g", group, "-t", topic, "--json").json
        assert sum(row["offset"] for row in rows) == len(sent)
        found = ask("consumerStatus", "-g", group, "--json").json
        assert found["same_subscription"]
        client = found["members"][0]["client_id"]
        text = ask("consumerStatus", "-g", group, "-i", client).out
        assert "#Consumer Properties#" in text
        table = ask("consumer", "-g", group).out.splitlines()
        assert table[1].split()[1] == client
        path = Path(table[1].split()[-1])
        assert path.read_text(encoding="utf-8").startswith("#Consumer Properties#\n")
    assert ask("consumerStatus", "-g", "nobody").status == 1


# -- messages ---------------------------------------------------------------------------------


def test_a_message_is_found_in_every_way(ask, topic, sent):
    one = sent[3]
    place = ("-b", one["broker"], "-i", one["queue_id"], "-o", one["queue_offset"])
    for arguments in (
        ("queryMsgById", "-i", one["offset_message_id"]),
        ("queryMsgByUniqueKey", "-t", topic, "-i", one["message_id"]),
        ("queryMsgByUniqueKey", "-t", topic, "-i", one["message_id"], "-a"),
        ("queryMsgByOffset", "-t", topic, *place),
    ):
        (found,) = ask(*arguments, "--json").json
        assert (found["message_id"], found["body"]) == (one["message_id"], one["body"])
        assert found["tracks"] == []
        text = ask(*arguments).out
        assert "Tags:                [A]\n" in text
        assert "WARN: No Consumer" in text
        path = Path(text.split("Message Body Path:")[1].split()[0])
        assert path.read_text(encoding="utf-8") == one["body"]
        path.unlink()
    rows = ask("queryMsgByKey", "-t", topic, "-k", "k", "--json").json
    assert sorted(row["message_id"] for row in rows) == sorted(m["message_id"] for m in sent)


@pytest.mark.parametrize("words", [("queryMsgById",), ("mqadmin", "queryMsgById")])
def test_a_unique_key_given_as_an_offset_message_id_is_recognised(ask, topic, words):
    ask("produce", topic, "x")
    (one,) = ask("consume", topic, "--from", "first", "--max", 1, "--json").lines
    refused = ask(*words, "-i", one["message_id"])
    remedy = f"cometmq queryMsgByUniqueKey -t TOPIC -i {one['message_id']}\n"
    assert (refused.status, refused.out) == (1, "")
    assert refused.err.endswith(remedy), refused.err
    assert refused.err.count("nique") == refused.err.count("ueryMsgByUniqueKey") + 1 == 2
    assert "view_message" not in refused.err
    refused = ask(*words, "-i", "nonsense")
    assert (refused.status, "use" in refused.err) == (2, False)
    assert refused.err.endswith("cometmq queryMsgByUniqueKey -t TOPIC\n")


@pytest.mark.parametrize(
    ("arguments", "status", "line"),
    [
        (("queryMsgById", "-i", "nonsense"), 2, "an offset message id has 32 or 56 hex digits"),
        (("queryMsgById", "-i", ","), 2, "-i: give at least one id"),
        (
            ("queryMsgById", "-i", "7F00000100007AD80000000000000000"),
            1,
            "7F00000100007AD80000000000000000 is no offset message id of this cluster; if it is a",
        ),
        (("queryMsgByUniqueKey", "-t", "TBW102", "-i", "x"), 1, "nothing was found: no message"),
        (("queryMsgByKey", "-t", "Nowhere", "-k", "x"), 1, "no broker has the topic Nowhere"),
        (("printMsg", "-t", "Nowhere"), 1, "no broker has the topic Nowhere"),
        (("printMsg", "-t", "Nowhere", "-c", "klingon"), 2, "-c: unknown encoding: klingon"),
        (("consumeMessage", "-t", "T", "-i", "0"), 2, "Please set the brokerName before queueId!"),
        (("consumeMessage", "-t", "T", "-o", "0"), 2, "Please set queueId before offset!"),
        (
            ("consumeMessage", "-t", "T", "-s", "9999999999999"),
            2,
            "-s: 9999999999999 is in the future",
        ),
        (("DecodeMessageId", "-i", "abc"), 2, "abc is not a unique key"),
        (("queryCq", "-t", "Nowhere", "-q", "0", "-i", "0"), 1, "no broker has the topic"),
        (("queryMsgTraceById", "-i", "x", "-t", "TBW102"), 1, "the topic TBW102 has no trace of"),
        (("cloneGroupOffset", "-s", "g", "-d", "g", "-t", "T"), 2, "g cannot be cloned to itself"),
    ],
)
def test_missing_things_give_one_line(ask, arguments, status, line):
    ask(*arguments).assert_refused(status, line)


def test_an_unknown_offset_and_key_fail(ask, topic, sent):
    place = ("-t", topic, "-b", sent[0]["broker"], "-i", 0)
    assert ask("queryMsgByOffset", *place, "-o", 99).status == 1
    assert ask("queryMsgByKey", "-t", topic, "-k", "nokey").status == 1


def test_an_offset_message_id_given_as_a_unique_key_is_recognised(ask, topic, sent):
    refused = ask("queryMsgByUniqueKey", "-t", topic, "-i", sent[0]["offset_message_id"])
    refused.assert_refused(1, f"{sent[0]['offset_message_id']} is an offset message id, not a")
    assert refused.err.endswith(f"cometmq queryMsgById -i {sent[0]['offset_message_id']}\n")


def test_a_message_is_consumed_and_sent_again(ask, topic, sent, member):
    one, group = sent[0], f"{topic}-again"
    with member(topic, group):
        wait_until(lambda: ask("consumerConnection", "-g", group).status == 0, 60, "a member")
        members = ask("consumerConnection", "-g", group, "--json").json["members"]
        who = ("-g", group, "-d", members[0]["client_id"])
        (result,) = ask("queryMsgById", "-i", one["offset_message_id"], *who, "--json").json
        assert result["consumeResult"] == "CR_SUCCESS"
        text = ask("queryMsgByUniqueKey", "-t", topic, "-i", one["message_id"], *who).out
        assert text.startswith("ConsumeMessageDirectlyResult [order=false, autoCommit=true, ")
    (again,) = ask("queryMsgById", "-i", one["offset_message_id"], "-s", "true", "--json").json
    assert again["message_id"] == one["message_id"]
    both = ask("queryMsgByUniqueKey", "-t", topic, "-i", one["message_id"], "-a", "--json").json
    assert len(both) == 2


def test_queues_are_printed(ask, topic, sent):
    text = ask("printMsg", "-t", topic).out
    assert text.count("MSGID: ") == len(sent)
    assert text.count("minOffset=0, maxOffset=") == 2
    assert "NOT PRINT BODY" in ask("printMsg", "-t", topic, "-d", "false").out
    assert ask("printMsg", "-t", topic, "-s", "B").out.count("MSGID: ") == 0
    assert ask("printMsg", "-t", topic, "-e", "1h", "--json").out == ""
    broker = sent[0]["broker"]
    counted = ask("printMsgByQueue", "-t", topic, "-a", broker, "-i", 0, "-f", "true", "--json")
    in_queue = sum(message["queue_id"] == 0 for message in sent)
    assert counted.json == {"A": in_queue}
    assert len(ask("consumeMessage", "-t", topic, "-c", 3, "--json").lines) == 3
    place = ("-b", broker, "-i", 1, "-o", 2, "-c", 1)
    (one,) = ask("consumeMessage", "-t", topic, *place, "--json").lines
    assert (one["queue_id"], one["queue_offset"]) == (1, 2)


def test_entries_of_a_queue_are_shown(ask, topic, sent, suite):
    found = ask("queryCq", "-t", topic, "-q", 0, "-i", 1, "-c", 2, "--json").json
    assert len(found["queueData"]) == 2
    ask("queryCq", "-t", topic, "-q", 0, "-i", 9999).assert_refused(1, "nothing was found")
    text = ask("queryCq", "-t", topic, "-q", 0, "-i", 1, "-b", suite.broker).out
    assert text.startswith("Queue data: \nmax: ")
    assert "idx: 1\nConsumeQueueData{physicOffset=" in text
    assert len(sent) == 10


def test_a_message_is_followed_by_its_traces(ask, suite, topic):
    traces = f"{topic}-traces"
    assert ask("topic", "create", traces, "--queues", 1).status == 0
    message_id = asyncio.run(_traced(suite.namesrv, topic, traces))
    arguments = ("queryMsgTraceById", "-i", message_id, "-t", traces)
    wait_until(lambda: ask(*arguments).status == 0, 60, "a trace")
    (row,) = ask(*arguments, "--json").json
    assert (row["type"], row["group"], row["status"]) == ("Pub", "traced", "success")
    heading, line = ask(*arguments).out.splitlines()[:2]
    assert heading.split() == [
        "#Type", "#ProducerGroup", "#ClientHost", "#SendTime", "#CostTimes", "#Status",
    ]  # fmt: skip
    assert line.split()[:3] == ["Pub", "traced", "127.0.0.1"]
    asyncio.run(_broken_trace(suite.namesrv, traces, message_id))
    notes = "cannot be read: a Pub record of 2 fields"
    wait_until(lambda: notes in ask(*arguments).err, 60, "the broken trace")
    assert ask(*arguments).out.splitlines()[1] == line


async def _broken_trace(namesrv, traces, message_id):
    async with Producer("stranger", namesrv) as producer:
        await producer.send(Message(traces, b"Pub\x01x\x02", keys=(message_id,)))


async def _traced(namesrv, topic, traces):
    options = ProducerOptions(trace=True, trace_topic=traces)
    async with Producer("traced", namesrv, options=options) as producer:
        return (await producer.send(Message(topic, b"x"))).message_id


# -- monitoring -------------------------------------------------------------------------------


def test_a_round_of_monitoring(ask, topic, sent, member):
    group = f"{topic}-watched"
    with member(topic, group):
        wait_until(
            lambda: ask("consumerProgress", "-g", group).out.endswith("Diff Total: 0\n"),
            30,
            "offsets",
        )
        lines = ask("startMonitoring", "--rounds", 1, "--json").lines
        text = ask("startMonitoring", "--rounds", 2, "--interval", 0.1).out
    undone = [line["found"] for line in lines if line["report"] == "reportUndoneMsgs"]
    found = {(row["consumerGroup"], row["topic"]): row["undoneMsgsTotal"] for row in undone}
    assert found[group, topic] == 0
    assert text.count("[MONITOR] beginRound") == 2
    assert f"UndoneMsgs [consumerGroup={group}, topic={topic}, undoneMsgsTotal=0, " in text
    assert len(sent) == 10


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("QueryMsgTraceById", "queryMsgTraceById"),
        ("querycq", "queryCq"),
        ("getAccessConfigSubCommand", "getAclConfig"),
        ("deleteAccessConfig", "deleteAclConfig"),
    ],
)
def test_commands_have_the_names_that_mqadmin_takes(call, name, command):
    assert call(name, "-h").out == call(command, "-h").out
    assert call("querything").status == 2


# -- without a cluster ------------------------------------------------------------------------


def running(*, started_ms=0, orderly="false", expression="*", **state):
    queue = MessageQueue("T", "broker-a", 0)
    return ConsumerRunningInfo(
        properties={
            "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
            "PROP_CONSUMEORDERLY": orderly,
            "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
        },
        subscription_set=[SubscriptionData(topic="T", sub_string=expression)],
        mq_table={queue: ProcessQueueInfo(**state)},
    )


def test_subscriptions_must_be_the_same_after_a_while():
    def same(*infos):
        members = {str(number): info for number, info in enumerate(infos)}
        return java_text.is_same_subscription(members, now_ms=NOW_MS)

    assert same(running(), running())
    assert not same(running(), running(expression="A"))
    assert same(running(), running(expression="A", started_ms=NOW_MS - 1_000))
    assert not same(ConsumerRunningInfo(properties=running().properties))


@pytest.mark.parametrize(
    ("info", "trouble"),
    [
        (running(), ""),
        (running(cached_msg_count=1, last_consume_timestamp=NOW_MS), ""),
        (
            running(cached_msg_count=1, last_consume_timestamp=NOW_MS - 61_000),
            "can't consume for a while, maybe blocked, 61000ms",
        ),
        (running(orderly="true", locked=True), ""),
        (
            running(orderly="true", last_lock_timestamp=NOW_MS - 5),
            "can't lock for a while, 5ms",
        ),
        (
            running(orderly="true", locked=True, droped=True, try_unlock_times=2),
            "unlock 2 times, still failed",
        ),
    ],
)
def test_troubles_of_a_queue_are_named(info, trouble):
    found = list(java_text.troubles("c", info, now_ms=NOW_MS))
    place = "c MessageQueue [topic=T, brokerName=broker-a, queueId=0]"
    assert found == ([f"{place} {trouble}"] if trouble else [])


def test_a_unique_key_holds_machine_and_time():
    month_ms = int(decoded_month().timestamp() * 1000)
    elapsed_ms = 1_234_567
    text = f"C0000202{7:04X}{1:08X}{elapsed_ms:08X}0005"
    origin = decoded(text, now_ms=month_ms + elapsed_ms + 60_000)
    assert origin.ip == "192.0.2.2"
    assert int(origin.date.timestamp() * 1000) == month_ms + elapsed_ms
    before = decoded(text, now_ms=month_ms + 1)  # otherwise it would be in the future
    assert before.date.month == (decoded_month().month - 2) % 12 + 1
    assert decoded("20010DB8" + "0" * 23 + "1" + "0" * 24, now_ms=NOW_MS).ip == "2001:db8::1"


def decoded_month():
    return decoded("00" * 16, now_ms=NOW_MS).date


def test_the_file_of_a_body_stays_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    message = MessageExt(
        *("T", b"body", None, (), {}, "../../etc/x", "id", MessageQueue("T", "b", 0)),
        *(0, 0, 0, 0, 0, 0, "1.2.3.4:1", 0, "1.2.3.4:2"),  # type: ignore[arg-type]
    )
    path = write_body(message)
    assert path == tmp_path / "rocketmq" / "msgbodys" / "______etc_x"
    assert path.read_bytes() == b"body"
    assert java_text.message(message).startswith("MessageExt [brokerName=b, queueId=0, ")


def test_the_progress_of_an_unknown_group_is_an_error_of_its_own(ask, topic):
    line = "no broker knows the consumer group nope: check the name"
    ask("consumerProgress", "-g", "nope").assert_refused(1, line)
    assert ask("group", "create", f"{topic}-idle").status == 0
    ask("consumerProgress", "-g", f"{topic}-idle").assert_refused(
        1, f"the group {topic}-idle has consumed nothing yet"
    )


def test_the_progress_of_a_broadcasting_group_is_not_taken_for_none(ask, topic, suite, tmp_path):
    """Brokers do not know it; "has consumed nothing yet" was wrong."""
    group = f"{topic}-all"
    options = PushOptions(message_model=MessageModel.BROADCASTING, offsets_dir=str(tmp_path))
    consumer = PushConsumer(group, suite.namesrv, listener=lambda _: None, options=options)
    consumer.subscribe(topic)
    with consumer:
        for command in (("consumerProgress", "-g", group), ("lag", group)):
            assert f"{group} consumes in broadcasting mode: each member" in ask(*command).err
        reset = ("group", "reset", group, topic, "--to", "first", "--dry-run", "--json")
        planned = ask(*reset)
        assert (planned.json["read_again"], planned.json["skipped"]) == (None, None)
        assert "connected ones continue there" in planned.err
        ask(*reset, "--backwards").assert_refused(2, f"the members of {group} keep their own")
        source = f"{topic}-source"
        assert ask("group", "create", source).status == 0
        assert ask("group", "reset", source, topic, "--to", "first", "--yes").status == 0
        cloned = ask("group", "clone", source, group, topic, "--yes")
        cloned.assert_refused(1, f"{group} consumes in broadcasting mode")
