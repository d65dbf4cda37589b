# SPDX-License-Identifier: Apache-2.0
"""`cometmq topic trim`: delete messages before an offset or a time, and purge dead letters."""

import asyncio

import pytest

from cometmq.client import Message, MessageQueue, Producer


@pytest.fixture
def filled(ask, topic, suite):
    """Store five messages in the first queue and three in the second; return the broker."""
    broker = ask("topic", "describe", topic, "--json").json[0]["broker"]

    async def run():
        async with Producer("trims", suite.namesrv) as producer:
            for number in range(8):
                message = Message(topic, b"m%d" % number, keys=[f"key{number}"])
                await producer.send(message, queue=MessageQueue(topic, broker, number // 5))

    asyncio.run(run())
    return broker


def bounds(ask, topic):
    rows = ask("topic", "describe", topic, "--json").json
    return [(row["min"], row["max"]) for row in rows]


def texts(ask, topic):
    read = ask("consume", topic, "--from", "first", "--no-follow")
    return sorted(read.out.split())


def test_messages_before_an_offset_of_a_queue_are_deleted(ask, topic, filled):
    queue = ("--queue", f"{filled}:0")
    done = ask("topic", "trim", topic, "--before", 3, *queue, "--yes", "--json").json
    (row,) = done["queues"]
    assert (row["from"], row["to"], row["messages"], done["messages"]) == (0, 3, 3, 3)
    assert done["bytes"] == row["bytes"] > 300
    assert bounds(ask, topic) == [(3, 5), (0, 3)]
    assert texts(ask, topic) == ["m3", "m4", "m5", "m6", "m7"]
    assert ask("message", "find", topic, "-k", "key2").status == 1
    assert ask("message", "find", topic, "-k", "key3").status == 0
    again = ask("topic", "trim", topic, "--before", 3, *queue, "--yes")
    assert "there are no such messages" in again.out + again.err


def test_all_messages_are_deleted_and_later_ones_stay(ask, topic, filled):
    assert ask("topic", "trim", topic, "--before", "end", "--yes").status == 0
    assert bounds(ask, topic) == [(5, 5), (3, 3)]
    assert ask("produce", topic, "late").status == 0
    assert texts(ask, topic) == ["late"]


def test_messages_stored_before_a_time_are_deleted(ask, topic, filled):
    assert ask("topic", "trim", topic, "--before", "@1h", "--yes").status == 0
    assert bounds(ask, topic) == [(0, 5), (0, 3)]
    printed = ask("consume", topic, "--from", "first", "--no-follow", "--format", "%d %v\n").out
    stored = sorted((int(line.split()[0]), line.split()[1]) for line in printed.splitlines())
    last_ms = stored[-1][0]
    assert ask("topic", "trim", topic, "--before", f"@{last_ms}", "--yes").status == 0
    assert texts(ask, topic) == [text for at_ms, text in stored if at_ms >= last_ms]


def test_a_dry_run_names_the_groups_that_lose_messages_and_deletes_nothing(ask, topic, filled):
    group = f"G{topic}"
    assert ask("group", "create", group).status == 0
    assert ask("group", "reset", group, topic, "--to", "first", "--yes").status == 0
    move = ("--queue", f"{filled}:0", "--offset", 2)
    assert ask("group", "reset", group, topic, *move, "--yes").status == 0
    preview = ask("topic", "trim", topic, "--before", "end", "--dry-run", "--json").json
    assert (preview["messages"], preview["changed"]) == (8, False)
    assert preview["losses"] == [f"the group {group} has not read 6 messages of these"]
    assert bounds(ask, topic) == [(0, 5), (0, 3)]
    done = ask("topic", "trim", topic, "--before", "end", "--yes")
    assert f"the group {group} has not read 6 messages of these" in done.err
    assert ask("lag", group, "-t", topic, "--json").json["lag"] == 0


def test_the_dead_letters_of_a_group_are_purged(ask, topic, suite):
    """Consumers may not read such a topic; tools do."""
    group = f"D{topic}"
    dead = f"%DLQ%{group}"
    assert ask("topic", "create", dead, "--queues", 1, "--perm", "w").status == 0
    broker = ask("topic", "describe", dead, "--json").json[0]["broker"]
    for number in range(3):
        assert ask("produce", dead, f"d{number}").status == 0
    queue = ("--queue", f"{broker}:0")
    assert ask("topic", "trim", dead, "--before", 1, *queue, "--yes").status == 0
    assert bounds(ask, dead) == [(1, 3)]
    assert ask("topic", "trim", dead, "--before", "end", "--yes").status == 0
    assert bounds(ask, dead) == [(3, 3)]


@pytest.mark.parametrize(
    ("options", "status", "reason"),
    [
        (("--before", "tomorrow"), 2, "tomorrow is no place in a queue: give an offset, @TIME"),
        (("--before", "@2999-01-01"), 2, "is in the future: to delete all messages, give end"),
        (("--before", "3"), 2, "an offset belongs to one queue"),
        (("--before", "end", "--queue", "0"), 2, "must be BROKER:NUMBER"),
        (("--before", "end", "--queue", "nowhere:0"), 1, "has no queue nowhere:0"),
    ],
)
def test_wrong_places_are_refused(ask, topic, filled, options, status, reason):
    refused = ask("topic", "trim", topic, *options, "--yes")
    assert refused.status == status
    assert reason in refused.err
    assert bounds(ask, topic) == [(0, 5), (0, 3)]


def test_an_offset_beyond_the_end_and_a_topic_of_the_brokers_are_refused(ask, topic, filled):
    beyond = ask("topic", "trim", topic, "--before", 6, "--queue", f"{filled}:0", "--yes")
    assert beyond.status == 2
    assert "give one from 0 to 5" in beyond.err
    own = ask("topic", "trim", "SCHEDULE_TOPIC_XXXX", "--before", "end", "--yes")
    assert own.status == 1
    assert ask("topic", "trim", topic, "--before", "end").status == 2  # without a terminal
    assert bounds(ask, topic) == [(0, 5), (0, 3)]
