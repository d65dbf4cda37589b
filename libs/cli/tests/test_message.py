# SPDX-License-Identifier: Apache-2.0
"""`message` against a running suite, and the commands of mqadmin that find messages by key."""

import asyncio

import msgspec
import pytest

from cometmq.client import AdminClient, IllegalOperation, Message, Producer
from cometmq.peers.processes import wait_until
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.send import SendMessageV2


@pytest.fixture
def sent(ask, topic):
    """Send three messages; return them as JSON, in the order of their bodies."""
    for number in range(3):
        ask("produce", topic, f"body {number}", "-k", "k", "-k", f"k{number}", "--tag", "T")
    found = ask("consume", topic, "--from", "first", "--max", 3, "--timeout", 60, "--json").lines
    return sorted(found, key=lambda message: message["body"])


def test_a_message_is_shown_by_both_ids(ask, topic, sent):
    one = sent[1]
    by_offset = ask("message", "show", one["offset_message_id"])
    by_id = ask("message", "show", one["message_id"], "--topic", topic)
    assert by_id.out == by_offset.out
    facts = dict(line.split(maxsplit=1) for line in by_id.out.splitlines())
    assert (facts["body"], facts["keys"], facts["tag"]) == ("body 1", "k,k1", "T")
    place = f"{one['broker']}:{one['queue_id']}, offset {one['queue_offset']}"
    assert facts["position"] == place
    shown = ask("message", "show", one["offset_message_id"], "-t", topic, "--json").json
    assert shown.pop("groups") == []
    assert shown == one


def test_a_blank_separates_keys(ask, topic):
    assert ask("produce", topic, "body", "-k", "red blue", "-k", "green").status == 0

    def is_found():
        found = [ask("message", "find", topic, "-k", key) for key in ("red", "blue", "green")]
        return all(one.status == 0 for one in found)

    wait_until(is_found, 30, "the index")


def test_the_groups_of_a_message_are_shown(ask, topic, sent):
    group = f"{topic}-group"
    args = ("-g", group, "--from", "first", "--max", 3, "--timeout", 60)
    assert ask("consume", topic, *args).status == 0
    shown = ask("message", "show", sent[0]["message_id"], "-t", topic)
    assert shown.out.splitlines()[-1].split() == [group, "NOT_ONLINE"]
    found = ask("message", "show", sent[0]["message_id"], "-t", topic, "--json").json
    assert found["groups"] == [{"group": group, "state": "NOT_ONLINE"}]


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ('"body":"a\\u001b[2Jb"', "a\\x1b[2Jb"),
        ('"body":"one\\r\\ntwo"', "one\n" + 19 * " " + "two"),
        ('"body":"12\u00a0000\u3000\u4ef6"', "12\u00a0000\u3000\u4ef6"),
        ('"body_base64":"gP4="', "2 bytes that are no text; --json prints them"),
    ],
    ids=["control characters", "Windows lines", "wide spaces", "no text"],
)
def test_a_body_is_shown_as_text_that_cannot_control_the_terminal(ask, pipe, topic, field, body):
    line = f"{{{field}}}\n".encode()
    assert pipe("produce", topic, "--json-lines", stdin=line).status == 0
    (one,) = ask("consume", topic, "--from", "first", "--max", 1, "--json").lines
    shown = ask("message", "show", one["message_id"], "-t", topic)
    assert "\x1b" not in shown.out
    assert shown.out.endswith(f"{body}\n")


@pytest.mark.parametrize("name", ["7F00000100007AD80000000000000000", "nonsense"])
def test_an_unknown_id_is_one_line_that_names_the_topic_option(ask, topic, name):
    refused = ask("message", "show", name)
    refused.assert_refused(1, f"no stored message has the offset message id {name}; if produce")
    assert refused.err.endswith(f"cometmq message show {name} -t TOPIC\n")
    refused = ask("message", "show", name, "-t", topic)
    refused.assert_refused(1, "nothing was found: ")
    assert f"{topic} has the id {name}" in refused.err


def test_a_resent_message_is_shown_once_with_a_note(ask, topic, sent):
    one = sent[0]
    assert ask("queryMsgById", "-i", one["offset_message_id"], "-s", "true").status == 0
    shown = ask("message", "show", one["message_id"], "-t", topic)
    assert "body 0" in shown.out
    assert shown.err.startswith("cometmq: this id has 1 further message, as after a retry")


def test_messages_are_found_by_key(ask, topic, sent):
    found = ask("message", "find", topic, "--key", "k", "--json")
    assert sorted(found.json, key=lambda it: it["body"]) == sent
    assert found.err == ""
    head, row = ask("message", "find", topic, "-k", "k2").out.splitlines()
    assert " ".join(head.split()) == "Message id Broker Queue Offset Tag Keys Stored Bytes"
    assert row.split()[0] == sent[2]["message_id"]
    assert row.split()[4:6] == ["T", "k,k2"]
    none = ask("message", "find", topic, "-k", "nokey")
    none.assert_refused(1, f"no message of the topic {topic} has the key nokey\n")
    before = ask("message", "find", topic, "-k", "k", "--until", "1h")
    before.assert_refused(1, f"no message of the topic {topic} has the key k and was stored in")


def test_a_message_that_cannot_be_decompressed_hides_no_other(ask, suite, topic, sent):
    """Anyone who may send can add such a message to a key."""
    properties = "KEYS\x01k\x02UNIQ_KEY\x01BROKEN\x02"
    header = SendMessageV2("p", topic, "TBW102", 4, 0, 1, 0, 0, properties)

    async def send():
        async with AdminClient(suite.namesrv) as admin:
            await admin.broker(suite.broker).invoke(RequestCode.SEND_MESSAGE_V2, header, b"broken")

    asyncio.run(send())
    key = ("message", "find", topic, "-k", "k", "--json")
    wait_until(lambda: len(ask(*key).json) == 4, 60, "the message is not found")
    ids = {it["message_id"] for it in ask(*key).json}
    assert ids == {*(it["message_id"] for it in sent), "BROKEN"}
    shown = dict(
        line.split(maxsplit=1)
        for line in ask("message", "show", "BROKEN", "-t", topic).out.splitlines()
    )
    assert (shown["damaged"], shown["body"]) == ("yes", "broken")


def test_the_id_of_a_message_is_not_one_of_its_keys(ask, topic, sent):
    name = sent[0]["message_id"]
    for command in (
        ("message", "find", topic, "-k", name),
        ("queryMsgByKey", "-t", topic, "-k", name),
    ):
        refused = ask(*command)
        refused.assert_refused(1, f"{name} is the id of a message, not one of its keys: cometmq")
        assert refused.err.endswith(f" cometmq message show {name} -t {topic}\n")


@pytest.fixture
def limit(ask, suite):
    """Set the maximum number of messages that a broker returns."""

    def limit(count):
        setting = ("-b", suite.broker, "-k", "maxMsgsNumBatch", "-v", count)
        assert ask("updateBrokerConfig", *setting).status == 0

    yield limit
    limit(64)


def test_more_messages_than_a_broker_returns_at_once_are_found(ask, topic, limit):
    assert ask("produce", topic, "x", "-k", "many", "--count", 970, "--in-flight", 4).status == 0
    limit(300)  # more than the broker stores in a millisecond
    search = ("message", "find", topic, "-k", "many", "--json")
    wait_until(lambda: len(ask(*search).json) == 970, 30, "the index")
    found = ask(*search)
    assert len({it["offset_message_id"] for it in found.json}) == 970
    assert found.err == ""
    few = ask(*search, "--max", 2)
    assert few.json == found.json[-2:]
    assert few.err.startswith("cometmq: only the newest 2 messages are shown; to see older ones")


def test_a_search_of_mqadmin_says_that_there_may_be_more(ask, topic, limit):
    assert ask("produce", topic, "x", "-k", "many", "--count", 70).status == 0
    for count in (64, 5):
        limit(count)
        found = ask("queryMsgByKey", "-t", topic, "-k", "many", "--json")
        assert len(found.json) == count
        assert found.err.count("\n") == 1
        assert f"({count}): there may be older ones; to find them: cometmq message" in found.err
        assert found.err.endswith(f"cometmq message find {topic} --key many\n")


def test_a_delayed_message_is_recalled(ask, topic):
    _, row = ask("produce", topic, "later", "--delay-level", 18).out.splitlines()
    sent = row.split()[0]
    command = ("message", "recall", sent, "-t", topic)
    assert ask(*command).status == 2, "nobody confirms"
    planned = ask(*command, "--dry-run", "--json").json
    assert (planned["would"], planned["changed"]) == (f"recall the message {sent}", False)
    (done,) = ask(*command, "--yes", "--json").json
    assert (done["message_id"], done["topic"], done["delay_level"]) == (sent, topic, 18)
    ask(*command, "--yes").assert_refused(
        1, f"the message {sent} is recalled already: nobody gets it"
    )
    waiting = ask("message", "delayed", "-t", topic, "--json")
    assert waiting.json == []
    missing = ask("message", "recall", "ABC", "-t", topic, "--yes")
    missing.assert_refused(1, f"no delayed message of the topic {topic} with the id ABC waits")


def test_delayed_messages_are_listed_by_due_time(ask, topic):
    for body, level in (("late", 18), ("soon", 16)):
        assert ask("produce", topic, body, "--delay-level", level).status == 0
    rows = ask("message", "delayed", "-t", topic, "--json").json
    assert [(it["topic"], it["bytes"]) for it in rows] == [(topic, 4), (topic, 4)]
    assert rows[0]["due"] < rows[1]["due"]
    level = rows[0]["level"]
    counted = ask("message", "delayed", "--levels", "--level", level, "--json").json
    assert [it["level"] for it in counted] == [level]
    assert counted[0]["waiting"] >= 1
    cut = ask("message", "delayed", "-t", topic, "--max", 1)
    assert rows[0]["message_id"] in cut.out
    assert rows[1]["message_id"] not in cut.out
    assert cut.err == "cometmq: more messages wait: the next 1 are shown\n"
    none = ask("message", "delayed", "-t", f"{topic}-none")
    assert none.err == f"cometmq: no message for {topic}-none waits\n"
    refused = ask("message", "delayed", "--levels", "-t", topic)
    refused.assert_refused(2, "message delayed --levels has no --topic")
    ask("message", "delayed", "-b", "nobody").assert_refused(1, "there is no master nobody")


async def test_a_producer_recalls_its_message(suite, topic):
    async with (
        Producer("recalling", suite.namesrv) as producer,
        AdminClient(suite.namesrv) as admin,
    ):
        sent, kept = [
            await producer.send(Message(topic, b"later", delay_level=17)) for _ in range(2)
        ]
        await producer.recall(sent)
        await producer.recall(sent)
        unknown = msgspec.structs.replace(sent, message_id="ABC")
        with pytest.raises(IllegalOperation, match="no delayed message"):
            await producer.recall(unknown)
        master = (await admin.masters())[sent.queue.broker_name]
        table = (await master.invoke(RequestCode.GET_ALL_DELAY_OFFSET)).body.decode()
    assert sent.message_id in table
    assert kept.message_id not in table
