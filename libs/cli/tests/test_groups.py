# SPDX-License-Identifier: Apache-2.0
"""`group` against a running suite."""

import asyncio
import json

import pytest

from cometmq.cli.consuming import groups, lag
from cometmq.insight.members import Owners
from cometmq.insight.times import shown
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import Child, wait_until
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.names import CHECK_GROUP, DLQ_REPLAY_GROUP

from .heartbeats import heartbeat


@pytest.fixture
def member(suite, topic, tmp_path):
    """Start a connected member of a group; return the group's name."""
    group = f"{topic}-members"
    args = ["consume", topic, "-g", group, "--tag", "A", "--from", "first"]
    command = [str(PROGRAM), *args, "-n", suite.namesrv]
    child = Child("consume", command, log_path=tmp_path / "log")
    yield group
    child.stop(60)


def test_groups_are_created_listed_and_deleted(ask):
    assert ask("group", "create", "payers", "--retries", 3, "--json").json["retries"] == 3
    (row,) = [row for row in ask("group", "list", "--json").json if row["group"] == "payers"]
    assert (row["members"], row["retries"], row["enabled"]) == (0, 3, True)
    assert "TOOLS_CONSUMER" not in ask("group", "list").out
    assert "TOOLS_CONSUMER" in ask("group", "list", "--all").out
    assert "No member is connected." in ask("group", "describe", "payers").out
    assert ask("group", "delete", "payers", "--yes", "--json").json["deleted"] == "payers"
    gone = ask("group", "describe", "payers")
    line = "no broker knows the consumer group payers: check the name, or create it: "
    gone.assert_refused(1, line)


def test_members_with_the_same_client_id_are_pointed_out(suite, ask):
    ask("group", "create", "twins")
    with asyncio.Runner() as runner:
        ids = ("10.0.0.1@same", "10.0.0.1@same", "10.0.0.1@other")
        clients = [runner.run(heartbeat(suite.broker, it, "twins")) for it in ids]
        shown = ask("group", "describe", "twins")
        for client in clients:
            runner.run(client.close())
    silent, note = shown.err.splitlines()  # these members only send heartbeats
    assert silent == (
        "cometmq: 2 members did not say which queues they have: 10.0.0.1@other, 10.0.0.1@same"
    )
    assert "2 members have the client id 10.0.0.1@same (127.0.0.1:" in note
    assert "instance_name" in note
    assert shown.out.count("10.0.0.1@same") == 2


def test_create_refuses_an_existing_group(ask):
    (member,) = ask("cluster", "--json").json
    assert ask("group", "create", "payees", "--retries", 3).status == 0
    refused = ask("group", "create", "payees")
    found = f"{member['broker']} (3 retries, enabled); to change it, use cometmq group alter"
    refused.assert_refused(1, f"the consumer group payees exists at {found}")
    (row,) = ask("group", "alter", "payees", "--no-enabled", "--json").json
    assert (row["retries"], row["enabled"], row["broadcast_enabled"]) == (3, False, True)
    ask("group", "alter", "payees").assert_refused(2, "nothing to change: ")
    assert ask("group", "delete", "payees", "--yes").status == 0, "a name like it is suggested"
    ask("group", "alter", "nobody", "--retries", 1).assert_refused(
        1, "no broker knows the consumer"
    )


def test_a_group_is_described_with_its_members(ask, topic, member):
    def described():
        result = ask("group", "describe", member, "--json")
        return result.json if result.status == 0 else {"members": []}

    wait_until(lambda: described()["members"], 60, "a member")
    found = described()
    (connection,) = found["members"]
    assert connection["address"].startswith("127.0.0.1:")
    wanted = {row["topic"]: row["expression"] for row in found["subscriptions"]}
    assert wanted == {topic: "A", f"%RETRY%{member}": "*"}
    (row,) = [row for row in ask("group", "list", "--json").json if row["group"] == member]
    assert (row["members"], row["model"]) == (1, "CLUSTERING")
    text = ask("group", "describe", member).out
    assert "Members" in text
    assert "Subscriptions" in text


def test_a_client_is_disconnected(ask, member):
    def connections():
        found = ask("group", "describe", member, "--json")
        return found.json["members"] if found.status == 0 else []

    wait_until(lambda: bool(connections()), 60, "a member")
    (before,) = connections()
    client = before["client"]
    ask("group", "disconnect", client).assert_refused(2, "Close the connections of")
    assert ask("group", "disconnect", client, "--dry-run").status == 0
    assert connections() == [before]
    (done,) = ask("group", "disconnect", client, "--yes", "--json").json
    assert done["closed"] == 1
    wait_until(lambda: connections() not in ([], [before]), 60, "another connection")
    nobody = ask("group", "disconnect", "nobody", "--yes")
    nobody.assert_refused(1, "no client nobody is connected")


def test_each_queue_has_its_owner(ask, member, topic):
    def owners(name):
        found = [it for it in ask(*name, "--json").json["queues"] if it["topic"] == topic]
        return {tuple(it["owners"] or ()) for it in found}

    ask("produce", topic, "a")
    wait_until(lambda: ask("group", "describe", member).status == 0, 60, "the group")
    wait_until(lambda: owners(("lag", member)) not in (set(), {()}), 60, "the owners")
    (connection,) = ask("group", "describe", member, "--json").json["members"]
    for name in (("lag", member), ("group", "describe", member)):
        assert owners(name) == {(connection["client"],)}
        assert connection["client"] in ask(*name).out
    wait_until(lambda: "without an owner" not in ask("lag", member).out, 60, "the retry queue")


def test_a_queue_that_no_member_has_is_named(ask, topic, monkeypatch):
    """As while two members have one client id, which both take for the first."""
    group = f"{topic}-left"
    ask("produce", topic, "a")
    assert ask("group", "create", group).status == 0
    assert ask("group", "reset", group, topic, "--to", "first", "--yes").status == 0
    queues = ask("lag", group, "-t", topic, "--json").json["queues"]
    own = MessageQueue(topic, queues[0]["broker"], 0)

    async def told(*_):
        return Owners({own: ["c-1"]}, is_online=True)

    for module in (lag, groups):
        monkeypatch.setattr(module, "owners_of", told)
    (first, second) = ask("lag", group, "-t", topic, "--json").json["queues"]
    assert (first["owners"], second["owners"]) == (["c-1"], [])
    title, _, first, second = ask("lag", group, "-t", topic).out.splitlines()
    assert title.endswith(", 1 queue without an owner")
    assert (first.split()[-1], second.split()[-1]) == ("c-1", "nobody")
    described = ask("group", "describe", group, "--json").json["queues"]
    assert [it["owners"] for it in described if it["topic"] == topic] == [["c-1"], []]
    assert " nobody\n" in ask("group", "describe", group).out


def test_without_members_no_queue_lacks_an_owner(ask, topic):
    ask("produce", topic, "a")
    assert ask("group", "create", f"{topic}-new").status == 0
    assert ask("group", "reset", f"{topic}-new", topic, "--to", "first", "--yes").status == 0
    found = ask("lag", f"{topic}-new", "--json").json["queues"]
    assert {it["owners"] for it in found} == {None}


def test_a_group_in_use_is_deleted_only_by_force(ask, member):
    def members():
        rows = {row["group"]: row["members"] for row in ask("group", "list", "--json").json}
        return rows.get(member)

    wait_until(lambda: members() == 1, 60, "a member")
    ask("group", "delete", member, "--yes").assert_refused(
        1, f"the consumer group {member} is in use with 1 connected member; stop them first"
    )
    assert members() == 1
    question = f"Delete the consumer group {member} with 1 connected member? Standard input"
    ask("group", "delete", member, "--force").assert_refused(2, question)
    assert ask("group", "delete", member, "--force", "--yes").status == 0


def test_names_are_checked_before_a_question_is_asked(ask, topic):
    for group in ("movers", "followers"):
        assert ask("group", "create", group).status == 0
    question = f"Move the consumer group movers in {topic} to the end?"
    for args, status, line in [
        (("group", "delete", "movers"), 2, "Delete the consumer group movers? Standard input is"),
        (("topic", "delete", topic), 2, f"Delete the topic {topic} with all its messages?"),
        (("group", "reset", "movers", topic, "--to", "last"), 2, question),
        (("group", "reset", "movers", "Nowhere", "--to", "last"), 1, "no broker has the topic"),
        (("group", "clone", "movers", "nobody", topic), 1, "no broker knows the consumer group n"),
        (("group", "clone", "movers", "followers", "Nowhere"), 1, "no broker has the topic No"),
        (
            ("group", "clone", "movers", "followers", topic),
            1,
            f"the consumer group movers has no offsets in {topic}",
        ),
    ]:
        ask(*args).assert_refused(status, line)


def test_offsets_that_outlive_their_topic_are_named(ask, topic, tmp_path):
    group = f"{topic}-readers"
    ask("produce", topic, *range(6))
    ask("consume", topic, "-g", group, "--from", "first", "--max", 6, "--timeout", 60)
    (row,) = [it for it in ask("group", "list", "--json").json if it["group"] == group]
    assert topic in row["topics"]  # even though no member is connected
    fix = f"cometmq group reset {group} {topic} --to first"
    deleted = ask("topic", "delete", topic, "--yes")
    assert f"the offsets of {group} in {topic} stay" in deleted.err
    assert fix in deleted.err
    created = ask("topic", "create", topic, "--queues", 2)
    assert f"groups have offsets from an earlier topic {topic}" in created.err
    assert f"{group} (up to 3)" in created.err
    ask("produce", topic, "a", "b")
    for args in (("lag",), ("lag", group), ("group", "describe", group)):
        shown = ask(*args)
        line = f"{group} in {topic}: the committed offset is beyond the end of 2 queues"
        assert line in shown.err
        assert "will skip the 2 messages there" in shown.err
        assert fix in shown.err
    assert ask("lag", group, "--json").json["skips"] == 2
    page = tmp_path / "lag.html"
    ask("lag", group, "--report", page)
    assert "skips</td>" in page.read_text()
    assert ask(*fix.split()[1:], "--yes").status == 0
    healthy = ask("lag", group)
    assert (healthy.status, healthy.err) == (0, "")
    assert healthy.out.startswith(f"{group}: 2 messages in ")


def test_deleting_a_topic_can_reset_its_groups(ask, topic):
    group = f"{topic}-readers"
    ask("produce", topic, *range(6))
    ask("consume", topic, "-g", group, "--from", "first", "--max", 6, "--timeout", 60)
    deleted = ask("topic", "delete", topic, "--reset-groups", "--yes")
    assert deleted.status == 0
    assert f"offsets reset  {group}" in deleted.out
    assert ask("topic", "create", topic, "--queues", 2).err == ""
    ask("produce", topic, "a", "b")
    shown = ask("lag", group, "--json")
    assert (shown.json["lag"], shown.json["skips"], shown.err) == (2, 0, "")


def test_a_clone_to_an_unknown_group_is_told_to_create_it(ask, topic):
    source = f"only-source-at-{topic}"
    assert ask("group", "create", source).status == 0
    refused = ask("group", "clone", source, f"{source}2", topic, "--yes")
    line = f"no broker knows the consumer group {source}2: check the name, or create it: cometmq"
    refused.assert_refused(1, line)


def test_a_clone_says_what_the_group_reads_again_and_skips(ask, topic):
    """A second clone takes a group back that has gone on since the first one."""
    source, copy = f"{topic}-readers", f"{topic}-copy"
    for group, to in ((source, "first"), (copy, "last")):
        assert ask("group", "create", group).status == 0
        ask("produce", topic, *range(10))
        assert ask("group", "reset", group, topic, "--to", to, "--yes").status == 0

    def previewed(*groups):
        dry = ask("group", "clone", *groups, topic, "--dry-run", "--json").json
        return dry["read_again"], dry["skipped"]

    assert previewed(source, copy) == (20, 0)
    assert previewed(copy, source) == (0, 20)
    done = ask("group", "clone", source, copy, topic)
    done.assert_refused(2, f"Move the consumer group {copy} in {topic} to")
    assert "20 messages are delivered again." in done.err

    ask("produce", topic, "later")
    assert ask("topic", "trim", topic, "--before", "end", "--yes").status == 0
    assert previewed(source, copy) == (0, 0)  # both stand before the first message


def test_a_reset_to_a_time_in_the_future_is_refused(ask, topic):
    """A future time is usually UTC, copied without its Z from the output of another command."""
    group = f"{topic}-readers"
    assert ask("group", "create", group).status == 0
    ask("produce", topic, *range(4))
    time = "2999-01-01T00:00"
    moved = ask("group", "reset", group, topic, "--to", time, "--yes")
    moved.assert_refused(2, f"{time} is in the future: it is 2")
    assert "for the end of each queue, give --to last" in moved.err


def test_numbers_that_are_no_times_are_refused(ask, topic):
    """Seconds or an offset, read as milliseconds, mean 1970 and rewind the group completely."""
    group = f"{topic}-readers"
    assert ask("group", "create", group).status == 0
    ask("produce", topic, *range(4))
    for number in ("7", "1700000000"):
        line = f"{number} milliseconds since 1970 are 1970-01-"
        ask("group", "reset", group, topic, "--to", number, "--yes").assert_refused(2, line)
        ask("consume", topic, "--from", number, "--timeout", 5).assert_refused(2, line)
    assert ask("group", "reset", group, topic, "--to", "0", "--yes").status == 0
    read = ask("consume", topic, "--from", "2999-01-01", "--max", 2, "--timeout", 60)
    assert "2999-01-01 is in the future: the last message of each queue is read" in read.err


@pytest.mark.parametrize(
    "words",
    [("group", "create"), ("group", "alter", "--retries", 3), ("group", "delete", "--yes"),
     ("consume", "T", "-g")],
)  # fmt: skip
@pytest.mark.parametrize("group", [CHECK_GROUP, DLQ_REPLAY_GROUP])
def test_system_groups_are_left_alone(ask, words, group):
    refused = ask(*words, group)
    assert refused.status == 1
    assert f"{group} is a system group" in refused.err


def test_a_group_that_moves_to_the_time_of_a_message_reads_it_again(ask, topic):
    group = f"{topic}-readers"
    # A second queue may have no message of that time, and then begins with an older one.
    topic = f"{topic}-one-queue"
    assert ask("topic", "create", topic, "--queues", 1).status == 0
    assert ask("produce", topic, *range(64)).status == 0  # several in the same millisecond
    read = ("consume", topic, "-g", group, "--json", "--timeout", 60, "--max")
    lines = ask(*read, 64, "--from", "first").out.splitlines()
    messages = [json.loads(line) for line in lines]
    stored_ms = messages[40]["store_timestamp"]
    assert ask("group", "reset", group, topic, "--to", shown(stored_ms), "--yes").status == 0
    expected = [it["message_id"] for it in messages if it["store_timestamp"] >= stored_ms]
    again = [json.loads(line)["message_id"] for line in ask(*read, len(expected)).out.splitlines()]
    assert again == expected
