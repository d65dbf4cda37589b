# SPDX-License-Identifier: Apache-2.0
"""`cometmq topic` against a running suite."""

import asyncio

import pytest

from cometmq.client import AdminClient, InvalidArgument, NoRoute
from cometmq.remoting.bodies import topic_config
from cometmq.remoting.bodies.topic_config import TopicConfig


def listed(ask, topic):
    (row,) = [row for row in ask("topic", "list", "--json").json if row["topic"] == topic]
    return row


def test_topics_are_created_listed_changed_and_deleted(ask):
    created = ask("topic", "create", "Orders", "--queues", 3, "--perm", "r", "--json").json
    assert (created["queues"], created["permission"]) == (3, "r")
    row = listed(ask, "Orders")
    assert (row["kind"], row["read_queues"], row["permission"]) == ("messages", 3, "r")
    (row,) = ask("topic", "alter", "Orders", "--queues", 4, "--json").json
    assert (row["read_queues"], row["write_queues"], row["permission"]) == (4, 4, "r")
    (row,) = ask("topic", "alter", "Orders", "--perm", "rw", "--json").json
    assert (row["read_queues"], row["permission"]) == (4, "rw")
    row = listed(ask, "Orders")
    assert (row["read_queues"], row["permission"]) == (4, "rw")
    assert ask("topic", "delete", "Orders", "--yes").status == 0
    assert "Orders" not in ask("topic", "list").out
    gone = ask("topic", "delete", "Orders", "--yes")
    gone.assert_refused(
        1, "no broker has the topic Orders: check the name; if a broker is down, start it"
    )
    assert "create" not in gone.err


def test_a_topic_that_clients_would_refuse_is_not_made(ask, topic, monkeypatch):
    monkeypatch.setattr(topic_config, "QUEUES_MAX", 4)
    text = "would have 5 queues at all brokers, and clients refuse more than 4"
    assert text in ask("topic", "create", f"{topic}-wide", "--queues", 5).err
    assert text in ask("topic", "alter", topic, "--queues", 5).err
    assert ask("topic", "alter", topic, "--perm", "r", "--yes").status == 0


def test_a_delayed_message_outlives_its_topic_and_the_deletion_says_so(ask, topic):
    assert ask("produce", topic, "late", "--delay-level", 2).status == 0
    deleted = ask("topic", "delete", topic, "--yes")
    assert "delayed messages are waiting (" in deleted.err
    assert deleted.err.endswith(f"when they are due, unless {topic} has been created again\n")
    assert ask("topic", "create", topic, "--queues", 4).status == 0
    read = ask("consume", topic, "--from", "first", "--max", 1, "--timeout", 60)
    assert (read.status, read.out) == (0, "late\n")


def test_the_client_refuses_to_delete_what_does_not_exist(ask, topic, suite):
    """The servers accept such requests, as RocketMQ's do, so a misspelt name would go unnoticed."""
    assert ask("group", "create", "deleted-group").status == 0

    async def delete():
        async with AdminClient(suite.namesrv) as admin:
            with pytest.raises(NoRoute, match="no broker has the topic Nowhere: nothing was del"):
                await admin.delete_topic("Nowhere")
            with pytest.raises(NoRoute, match=r"no broker has the topic \.\.: nothing was deleted"):
                await admin.delete_topic("..")
            await admin.delete_topic(topic, cluster="DefaultCluster")
            with pytest.raises(
                NoRoute, match=f"of the cluster DefaultCluster has the topic {topic}"
            ):
                await admin.delete_topic(topic, cluster="DefaultCluster")
            await admin.delete_topic(topic, is_missing_ok=True)

            unknown = "no broker knows the consumer group delete-group: nothing was deleted; did"
            with pytest.raises(InvalidArgument, match=unknown):
                await admin.delete_group("delete-group", remove_offsets=True)
            await admin.delete_group("deleted-group")
            with pytest.raises(InvalidArgument, match="no broker knows the consumer group deleted"):
                await admin.delete_group("deleted-group")
            await admin.delete_group("deleted-group", is_missing_ok=True)

    asyncio.run(delete())


def test_a_topic_cannot_have_the_name_of_a_broker(ask):
    (member,) = ask("cluster", "--json").json
    refused = ask("topic", "create", member["broker"])
    refused.assert_refused(1, f"{member['broker']} is the name of a broker, which has a topic")


@pytest.mark.parametrize(("prefix", "purpose"), [("%RETRY%", "retries"), ("%DLQ%", "dead letters")])
def test_create_says_that_a_topic_belongs_to_a_group(ask, prefix, purpose):
    created = ask("topic", "create", f"{prefix}buyers", "--queues", 1)
    assert created.status == 0
    assert created.err.startswith(f"cometmq: {prefix}buyers is the topic of the {purpose} of the")
    assert created.err.endswith("cometmq group create buyers\n")


def test_create_refuses_an_existing_topic(ask, topic):
    before = ask("topic", "list", "--json").json
    (member,) = ask("cluster", "--json").json
    refused = ask("topic", "create", topic, "--queues", 1)
    settings = f"{member['broker']} (2 read and 2 write queues, rw)"
    line = f"the topic {topic} exists at {settings}; to change it, use cometmq topic alter {topic}"
    refused.assert_refused(1, line)
    assert ask("topic", "list", "--json").json == before
    ask("topic", "alter", topic).assert_refused(2, "nothing to change: ")
    ask("topic", "alter", "Nowhere", "--queues", 1).assert_refused(1, "no broker has the topic")


def test_queues_are_taken_away_only_by_force_and_with_their_names(ask, topic):
    ask("produce", topic, *range(5), "--in-flight", 1)
    counts = {it["queue"]: it["messages"] for it in ask("topic", "describe", topic, "--json").json}
    (member,) = ask("cluster", "--json").json
    lost = f"Consumers lose {member['broker']}:1 ({counts[1]} messages)"
    refused = ask("topic", "alter", topic, "--queues", 1)
    refused.assert_refused(1, lost)
    assert "give --force" in refused.err
    question = f"Change the topic {topic}? {lost}"
    ask("topic", "alter", topic, "--queues", 1, "--force").assert_refused(2, question)
    assert listed(ask, topic)["read_queues"] == 2
    (row,) = ask("topic", "alter", topic, "--write-queues", 1, "--json").json  # no message is lost
    assert (row["read_queues"], row["write_queues"]) == (2, 1)
    assert ask("topic", "alter", topic, "--queues", 1, "--force", "--yes").status == 0
    assert listed(ask, topic)["read_queues"] == 1


def test_clients_are_cut_off_only_after_a_question(ask, topic):
    (member,) = ask("cluster", "--json").json
    at = f"its queues at {member['broker']}"
    sends, reads = f"Producers can no longer send to {at}.", f"Consumers can no longer read {at}."
    for perm, cut_off in (("r", sends), ("w", reads), ("none", f"{sends} {reads}")):
        change = ("topic", "alter", topic, "--perm", perm)
        ask(*change).assert_refused(2, f"Change the topic {topic}? {cut_off}")
        assert listed(ask, topic)["permission"] == "rw"
        assert ask(*change, "--yes").status == 0
        assert listed(ask, topic)["permission"] == perm
        assert ask("topic", "alter", topic, "--perm", "rw").status == 0  # cuts off nobody


def test_queues_that_nobody_would_read_are_refused_and_named(ask, topic, tmp_path):
    (member,) = ask("cluster", "--json").json
    queues = f"{member['broker']}:2 to {member['broker']}:3"
    line = f"Producers would send to {queues}, which no consumer reads; to change read and write"
    more = ("topic", "alter", topic, "--write-queues", 4)
    ask(*more).assert_refused(1, line)
    ask(*more, "--force").assert_refused(2, f"Change the topic {topic}? {line}")
    assert listed(ask, topic)["write_queues"] == 2
    assert ask(*more, "--force", "--yes").status == 0
    assert ask("topic", "alter", topic, "--perm", "rw").status == 0  # creates no such queue
    group = f"readers-of-{topic}"
    assert ask("produce", topic, *range(8), "--in-flight", 1).status == 0
    assert ask("consume", topic, "-g", group, "--from", "first", "--max", 1).status == 0
    rows = ask("topic", "describe", topic, "--json").json
    unread = sum(row["messages"] for row in rows if row["queue"] >= 2)
    assert unread
    note = (
        f"cometmq: {topic}: no consumer reads {queues}, so {unread} messages wait there;"
        f" to have them read: cometmq topic alter {topic} --read-queues 4\n"
    )
    page = tmp_path / "lag.html"
    for command in [
        *(("topic", "describe", topic), ("lag", group), ("lag", "-t", topic)),
        *(("lag", group, "--report", page), ("group", "describe", group)),
    ]:
        result = ask(*command)
        assert (result.status, result.err) == (0, note), command
    assert ask("topic", "alter", topic, "--queues", 4).status == 0
    for command in ("topic", "describe", topic), ("lag", group):
        assert ask(*command).err == ""
    # Queues that are removed altogether, and added again.
    before = ask("lag", group, "--json").json
    assert ask("topic", "alter", topic, "--queues", 2, "--force", "--yes").status == 0
    for command in ("lag", group), ("group", "describe", group):
        assert ask(*command).err == note
    assert ask("lag", group, "--json").json["lag"] == before["lag"]
    assert ask("topic", "alter", topic, "--queues", 4).status == 0
    after = ask("lag", group, "--json").json["queues"]
    assert [it["committed"] for it in after] == [it["committed"] for it in before["queues"]]


def test_a_topic_that_consumers_may_not_read_is_named(ask, topic):
    (member,) = ask("cluster", "--json").json
    group = f"readers-of-{topic}"
    assert ask("produce", topic, *range(4)).status == 0
    assert ask("consume", topic, "-g", group, "--from", "first", "--max", 1).status == 0
    assert ask("topic", "alter", topic, "--perm", "w", "--yes").status == 0
    note = (
        f"cometmq: {topic}: consumers may not read its queues at {member['broker']}, and get none"
        f" of their messages; to allow it: cometmq topic alter {topic} --broker {member['broker']}"
        " --perm rw (or, if the setting brokerPermission of a broker forbids it, change"
        " that)\n"
    )
    for command in ("topic", "describe", topic), ("lag", group), ("lag", "-t", topic):
        result = ask(*command)
        assert (result.status, result.err) == (0, note), command
    assert ask("topic", "alter", topic, "--perm", "rw").status == 0
    assert ask("lag", group).err == ""


def test_topics_of_the_system_are_listed_only_if_asked_for(ask, topic):
    names = {row["topic"]: row["kind"] for row in ask("topic", "list", "--all", "--json").json}
    assert (names["TBW102"], names[topic]) == ("system", "messages")
    assert names["DefaultCluster"] == "system"
    assert {row["kind"] for row in ask("topic", "list", "--json").json} == {"messages"}


def test_a_topic_is_described_by_queue(ask, topic):
    ask("produce", topic, *range(5))
    rows = ask("topic", "describe", topic, "--json").json
    assert [row["queue"] for row in rows] == [0, 1]
    assert sum(row["messages"] for row in rows) == 5
    assert all(row["last_message"].endswith("Z") for row in rows)
    text = ask("topic", "describe", topic).out.splitlines()
    assert text[0].strip() == f"{topic}: 2 queues, 5 messages"
    assert text[1].split() == ["Broker", "Queue", "Min", "Max", "Messages", "Last", "message"]


def test_attributes_are_shown_and_survive_a_change_and_a_clone(ask, suite):
    async def create():
        async with AdminClient(suite.namesrv) as admin:
            (master,) = (await admin.masters()).values()
            fifo = TopicConfig(topic_name="InOrder", attributes={"message.type": "FIFO"})
            await master.create_topic(fifo, is_new=True)

    asyncio.run(create())
    assert ask("topic", "alter", "InOrder", "--queues", 32).status == 0
    assert ask("topic", "clone", "InOrder", "AlsoInOrder").status == 0
    for topic in ("InOrder", "AlsoInOrder"):
        described = ask("topic", "describe", topic)
        assert len(described.out.splitlines()) == 34
        assert "message.type=FIFO" in described.err


def test_a_route_names_the_broker(ask, suite, topic):
    (row,) = ask("topic", "route", topic, "--json").json
    assert (row["cluster"], row["id"], row["address"]) == ("DefaultCluster", 0, suite.broker)
    assert (row["read_queues"], row["write_queues"], row["permission"]) == (2, 2, "rw")


def test_sending_to_the_topic_of_a_broker_is_noted(ask):
    (broker,) = ask("cluster", "--json").json
    sent = ask("produce", broker["broker"], "x")
    assert sent.status == 0
    assert "SEND_OK" in sent.out
    assert sent.err.startswith(f"cometmq: {broker['broker']} is the name of a broker, which has a")
    assert sent.err.count("\n") == 1


def test_a_topic_has_eight_queues_and_one_that_its_first_message_creates_four(ask):
    assert "queues      8" in ask("topic", "create", "EightQueues").out.splitlines()
    assert ask("topic", "create", "AlsoEight", "--json").json["queues"] == 8
    sent = ask("produce", "AutoCreated", "x")
    assert "created with default settings (at most 4 queues per broker)" in sent.err
    assert len(ask("topic", "describe", "AutoCreated", "--json").json) == 4


def test_a_topic_that_takes_no_messages_says_so(ask, topic):
    assert ask("topic", "describe", topic).err == ""
    assert ask("topic", "alter", topic, "--perm", "r", "--yes").status == 0
    (line,) = ask("topic", "describe", topic).err.splitlines()
    assert line.startswith(f"cometmq: {topic}: producers may not send to it at ")
    assert f"cometmq topic alter {topic} --broker " in line
