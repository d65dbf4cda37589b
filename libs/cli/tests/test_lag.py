# SPDX-License-Identifier: Apache-2.0
"""`lag` against a running suite."""

import asyncio

from cometmq.cli.consuming.lag import GROUP_COLUMNS, RARE_COLUMNS
from cometmq.cli.tables import _layout
from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    PushConsumer,
    PushOptions,
)
from cometmq.insight.queue_states import QueueState, missed_notes
from cometmq.peers.processes import wait_until
from cometmq.peers.suite import running_suite
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.names import DLQ_REPLAY_GROUP

from .heartbeats import heartbeat


def test_lag_by_queue_and_by_group(ask, topic):
    ask("produce", topic, *range(10), "--in-flight", 1)
    group = f"{topic}-late"
    args = ("-g", group, "--from", "first", "--timeout", 60)
    assert ask("consume", topic, "--max", 4, *args).status == 0
    found = ask("lag", group, "-t", topic, "--json").json
    assert (found["group"], found["lag"]) == (group, 6)
    assert 0 < found["seconds_behind"] < 600
    assert sum(queue["committed"] for queue in found["queues"]) == 4
    for queue in found["queues"]:
        assert queue["lag"] == queue["max"] - queue["committed"]
        assert (queue["seconds_behind"] > 0) == (queue["lag"] > 0)
    described = ask("group", "describe", group, "--json").json
    assert (described["unread_messages"], described["oldest_unread"]) == (6, found["oldest_unread"])
    assert found["oldest_unread"].startswith("20")
    (row,) = [row for row in ask("lag", "--json").json if row["group"] == group]
    assert (row["lag"], row["oldest_unread"]) == (6, found["oldest_unread"])
    (listed,) = [row for row in ask("group", "list", "--json").json if row["group"] == group]
    for it in (found, described, row, listed):
        assert it["time_to_loss"] == "2 d 23 h"
        assert 71 * 3_600 < it["time_to_loss_s"] < 72 * 3_600
    text = ask("lag", group).out
    assert f"{group}: 6 messages in " in text
    since = found["oldest_unread"][:19].replace("T", " ")
    assert (
        f" behind, oldest unread {since}Z, time to loss 2 d 23 h, no member is connected\n" in text
    )
    (line,) = [it for it in ask("lag").out.splitlines() if it.startswith(f"{group} ")]
    assert line.endswith(f"{since}Z  2 d 23 h")
    (line,) = [it for it in ask("group", "list").out.splitlines() if it.startswith(f"{group} ")]
    assert line.endswith("2 d 23 h")


def test_groups_that_have_never_read_anything_are_shown_and_named(call, tmp_path):
    def ask(*args):
        return call(*args, "-n", suite.namesrv)

    topic = "News"
    fresh, online, news = (f"{topic}-{name}" for name in ("fresh", "online", "news"))
    # A suite of its own: a note names five groups, and other tests leave more that read nothing.
    with running_suite(tmp_path) as suite, asyncio.Runner() as runner:
        assert ask("topic", "create", topic, "--queues", 2).status == 0
        assert ask("produce", topic, "a").status == 0
        assert ask("group", "create", fresh).status == 0
        clients = [
            runner.run(heartbeat(suite.broker, "10.0.0.1@one", online, topic)),
            runner.run(heartbeat(suite.broker, "10.0.0.1@two", news, topic, "BROADCASTING")),
        ]
        found, text, listed = ask("lag", "--json"), ask("lag"), ask("group", "list", "--json").json
        of_topic = ask("lag", "-t", topic, "--json")
        for client in clients:
            runner.run(client.close())
    rows = {row["group"]: row for row in found.json}
    assert rows.keys() == {row["group"] for row in listed}
    assert [(rows[it]["members"], rows[it]["lag"]) for it in (fresh, online, news)] == [
        (0, 0), (1, 0), (1, None),
    ]  # fmt: skip
    assert {it: rows[it]["time_to_loss"] for it in rows} == {
        row["group"]: row["time_to_loss"] for row in listed
    }
    for err in (found.err, text.err):
        (line,) = [it for it in err.splitlines() if " never read anything" in it]
        assert (fresh in line, online in line, news in line) == (True, True, False)
        assert "so brokers have no offset of them" in line
    assert [it.split()[0] for it in text.out.splitlines() if it.startswith(f"{fresh} ")] == [fresh]
    rows = {row["group"]: row["lag"] for row in of_topic.json}
    assert rows == {online: 1, news: None}
    assert of_topic.err == (
        f"cometmq: 1 group has never read {topic}, so brokers have no offset of it: {online}\n"
    )


def test_the_list_of_groups_fits_on_80_columns():
    since = "2026-11-20 10:00:00Z"
    row = ["payments-billing-eu", "12", "1", "16", "1,234,567", "86,400.0", since, "2 d 23 h"]
    columns = [it for it in GROUP_COLUMNS if it not in RARE_COLUMNS]
    assert _layout([list(it) for it in zip(columns, row, strict=True)], 80) is not None


def test_a_group_that_has_read_all_loses_nothing(ask, topic):
    ask("produce", topic, "a")
    group = f"{topic}-read"
    args = ("-g", group, "--from", "first", "--timeout", 60)
    assert ask("consume", topic, "--max", 1, *args).status == 0
    rows = ask("lag", "--sort", "time to loss", "--json").json
    (row,) = [row for row in rows if row["group"] == group]
    for it in (
        row,
        next(row for row in ask("group", "list", "--json").json if row["group"] == group),
        ask("lag", group, "--json").json,
        ask("group", "describe", group, "--json").json,
    ):
        assert (it["time_to_loss"], it["time_to_loss_s"]) == ("never", None)
    known_s = [it["time_to_loss_s"] for it in rows if it["time_to_loss_s"] is not None]
    assert known_s == sorted(known_s)


def test_messages_that_wait_to_be_tried_again_count_as_lag(ask, suite, topic):
    ask("produce", topic, "unlucky")
    group = f"{topic}-retry"
    asyncio.run(_refuse_one(suite.namesrv, topic, group))
    retry_topic = f"%RETRY%{group}"

    def waiting():
        found = ask("lag", group, "--json").json
        return {queue["topic"]: queue["lag"] for queue in found["queues"]}

    wait_until(lambda: waiting().get(retry_topic) == 1, 60, "a message to try again")
    assert waiting()[topic] == 0
    deleted = ask("group", "delete", group, "--topics", "--yes", "--json").json
    assert deleted["topics_deleted"] == [retry_topic]
    assert retry_topic not in ask("topic", "list", "--all").out


async def _refuse_one(namesrv, topic, group):
    refused = asyncio.Event()

    async def listen(_messages):
        refused.set()
        return ConsumeResult.later(delay_level=1)

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer(group, namesrv, listener=listen, options=options)
    consumer.subscribe(topic)
    async with asyncio.timeout(60), consumer:
        await refused.wait()


def test_lag_refuses_a_topic_that_does_not_exist(ask, topic, tmp_path):
    group = f"{topic}-readers"
    assert ask("group", "create", group).status == 0
    page = tmp_path / "lag.html"
    for args in ((), (group,), ("--report", page)):
        ask("lag", *args, "-t", "Nowhere").assert_refused(1, "no broker has the topic Nowhere: ")
    assert not page.exists()


def test_a_group_has_no_lag_in_a_topic_that_it_does_not_consume(ask, topic):
    group = f"{topic}-readers"
    assert ask("topic", "create", f"{topic}-other", "--queues", 1).status == 0
    ask("produce", f"{topic}-other", *range(4))
    ask("produce", topic, *range(4))
    ask("consume", topic, "-g", group, "--from", "first", "--max", 1, "--timeout", 60)
    (row,) = ask("lag", "-t", topic, "--json").json
    assert (row["group"], row["topics"]) == (group, 1)
    shown = ask("lag", group, "-t", f"{topic}-other")
    assert shown.err == f"cometmq: {group} has no offsets in {topic}-other yet\n"
    shown = ask("lag", "-t", f"{topic}-other")
    assert shown.err == f"cometmq: no consumer group has offsets in {topic}-other yet\n"


def test_nobody_is_told_to_create_the_group_of_dlq_replay(call, tmp_path):
    with running_suite(tmp_path) as suite:  # the group exists where other tests have replayed
        found = call("lag", DLQ_REPLAY_GROUP, "-n", suite.namesrv)
    assert "cannot be created" in found.err


def test_messages_deleted_before_a_group_read_them_are_counted():
    def state(topic, committed, min_offset):
        queue = MessageQueue(topic, "b", 0)
        return QueueState(queue, min_offset, committed, 100, 100 - committed, 1.0)

    states = [state("A", 10, 30), state("A", 5, 6), state("B", 0, 30), state("C", 30, 30)]
    (note,) = missed_notes("g", states)
    assert note.startswith("g in A: 21 messages were deleted before the group read them")
