# SPDX-License-Identifier: Apache-2.0
"""`dlq` against a running suite."""

import asyncio
import errno
import json
import re

import pytest

from cometmq.cli.verbs.dlq import _opened
from cometmq.client import ConsumeFrom, ConsumeResult, PushConsumer, PushOptions
from cometmq.client.errors import ClientError
from cometmq.insight import times
from cometmq.insight.life import REPLAYS_MAX
from cometmq.peers.processes import wait_until

from .on_terminal import OnTerminal


@pytest.fixture
def dead(ask, suite, topic):
    """Create a group with five dead letters; return its name."""
    group = f"{topic}-dead"
    for number in range(5):
        keys = ("--key", f"k{number}", "--tag", "odd" if number % 2 else "even")
        ask("produce", topic, f"body {number}", *keys)
    bury(ask, suite, topic, group)
    return group


def bury(ask, suite, topic, group):
    """Turn the topic's five messages into dead letters of the group."""
    asyncio.run(_give_up(suite.namesrv, topic, group, 5))

    def buried():
        rows = ask("dlq", "list", "--json").json
        return [row for row in rows if row["group"] == group and row["messages"] == 5]

    wait_until(buried, 300, "dead letters")


async def _give_up(namesrv, topic, group, count):
    seen = []
    is_done = asyncio.Event()

    async def listen(messages):
        seen.extend(messages)
        if len(seen) == count:
            is_done.set()
        return ConsumeResult.DEAD_LETTER

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, max_reconsume_times=0)
    consumer = PushConsumer(group, namesrv, listener=listen, options=options)
    consumer.subscribe(topic)
    async with asyncio.timeout(300), consumer:
        await is_done.wait()


def test_dead_letters_are_shown(ask, topic, dead):
    rows = ask("dlq", "show", dead, "--json").json
    assert sorted(row["body"] for row in rows) == [f"body {n}" for n in range(5)]
    assert {row["origin_topic"] for row in rows} == {topic}
    assert rows == sorted(rows, key=lambda row: row["store_timestamp"])
    table = ask("dlq", "show", dead).out.splitlines()
    assert len(table) == 6
    assert all(topic in line for line in table[1:])
    assert sorted(re.findall(r"body \d", "\n".join(table))) == [f"body {n}" for n in range(5)]
    assert dead in ask("dlq", "list").out
    (row,) = ask("dlq", "list", dead, "--json").json
    assert (row["group"], row["messages"]) == (dead, 5)


def test_a_dead_letter_and_its_original_lead_to_each_other(ask, topic, dead):
    letter = ask("dlq", "show", dead, "--key", "k1", "--json").json[0]
    shown = ask("message", "show", letter["offset_message_id"]).out
    origin = letter["origin_message_id"]
    assert f"cometmq message show {origin} -t {topic}" in shown
    ids = [it for name in ("offset_message_id", "message_id") for it in ("--id", letter[name])]
    other = ask("dlq", "show", dead, "--key", "k2", "--json").json[0]["offset_message_id"]
    chosen = ask("dlq", "show", dead, *ids, "--id", other, "--json").json
    assert {it["body"] for it in chosen} == {"body 1", "body 2"}
    (found,) = ask("message", "find", topic, "--key", "k1", "--json").json
    assert "original" not in ask("message", "show", found["offset_message_id"]).out

    def linked(name, of, wanted=letter["message_id"]):
        rows = ask("message", "trace", wanted, "-t", of, "--json").json
        return {it["copy"] for it in rows if it["event"] == name}

    assert linked("dead letter", topic) == {letter["offset_message_id"]}
    by_offset = linked("dead letter", topic, found["offset_message_id"])
    assert by_offset == {letter["offset_message_id"]}
    assert found["offset_message_id"] in linked("stored", f"%DLQ%{dead}")
    assert (
        letter["offset_message_id"]
        in ask("message", "trace", letter["message_id"], "-t", topic).out
    )


def test_the_help_says_what_older_dead_letters_show(ask):
    text = " ".join(ask("dlq", "show", "--help").out.split())
    assert f"Only the newest {REPLAYS_MAX} dead letters are looked up" in text
    assert "the older ones show unknown" in text


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_list_that_is_cut_says_so(ask, dead, form):
    cut = ask("dlq", "show", dead, "--max", 4, *form)
    assert cut.err == "cometmq: only 4 dead letters are shown: give --max, --since or --key\n"
    assert (len(cut.json) if form else cut.out.count("body ")) == 4
    assert ask("dlq", "show", dead, "--max", 5, *form).err == ""


def test_the_list_of_one_group_tells_no_dead_letters_from_no_group(ask, topic):
    group = f"{topic}-alive"
    assert ask("group", "create", group).status == 0
    none = ask("dlq", "list", group)
    assert (none.status, none.err) == (0, f"cometmq: {group} has no dead letters\n")
    ask("dlq", "list", "nobody").assert_refused(1, "no broker knows the consumer group nobody")


@pytest.mark.parametrize("command", [("show",), ("export",), ("replay", "-y")])
def test_a_group_without_dead_letters_is_told_from_no_group(ask, topic, command):
    name, *options = command
    group = f"{topic}-sound"
    assert ask("group", "create", group).status == 0
    sound = ask("dlq", name, group, *options)
    assert (sound.status, sound.err) == (0, f"cometmq: {group} has no dead letters\n")
    missing = ask("dlq", name, "nobody", *options)
    assert missing.status == 1
    assert missing.err.startswith("cometmq: no broker knows the consumer group nobody: ")


def test_dead_letters_are_chosen(ask, topic, dead):
    def bodies(*options):
        return sorted(row["body"] for row in ask("dlq", "show", dead, *options, "--json").json)

    (third,) = ask("dlq", "show", dead, "--key", "k3", "--json").json
    assert third["body"] == "body 3"
    assert bodies("--tag", "odd") == ["body 1", "body 3"]
    assert bodies("--id", third["message_id"]) == ["body 3"]
    assert bodies("--id", third["origin_message_id"]) == ["body 3"]
    assert bodies("--origin", topic) == bodies()
    assert bodies("--origin", "Other") == []
    assert bodies("--since", "1h") == bodies()
    assert bodies("--until", "1h") == []
    assert len(bodies("--max", 2)) == 2
    ask("dlq", "show", dead, "--since", "soon").assert_refused(2, "soon is not a time")


def test_dead_letters_are_exported(ask, topic, dead, tmp_path):
    file = tmp_path / "dead.jsonl"
    assert "messages  5" in ask("dlq", "export", dead, file).out
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {line["body"] for line in lines} == {f"body {n}" for n in range(5)}
    assert len(ask("dlq", "export", dead).lines) == 5
    before = file.read_text()
    ask("dlq", "export", dead, file, "--max", 1).assert_refused(2, f"Overwrite {file}? Standard")
    assert file.read_text() == before
    assert ask("dlq", "export", dead, file, "--max", 5, "--yes").status == 0
    other = f"{topic}-copy"
    assert ask("topic", "create", other).status == 0
    assert ask("produce", other, "--json-lines", "-f", file).status == 0
    assert ask("printMsg", "-t", other).out.count("MSGID: ") == 5
    ask("dlq", "export", dead, tmp_path).assert_refused(1, f"{tmp_path} cannot be written")
    ask("dlq", "export", "nobody", file).assert_refused(
        1, "no broker knows the consumer group nobody"
    )


def test_dead_letters_are_replayed_to_their_group(ask, topic, dead):
    dry = ask("dlq", "replay", dead, "--dry-run", "--json").json
    assert (dry["messages"], dry["changed"]) == (5, False)
    found = ask("dlq", "replay", dead, "--tag", "odd", "--rate", 1000, "--yes", "--json").json
    assert (found["messages"], found["to"]) == (2, f"the group {dead}")

    args = ("-g", dead, "--max", 2, "--timeout", 30, "--json")
    again = ask("consume", topic, *args).lines
    assert {line["body"] for line in again} == {"body 1", "body 3"}
    assert {line["topic"] for line in again} == {topic}
    before = {row["body"]: row for row in ask("dlq", "show", dead, "--json").json}
    for line in again:
        assert line["keys"] == before[line["body"]]["keys"]
        assert line["message_id"] == before[line["body"]]["message_id"]
    ask("dlq", "replay", "nobody", "-y").assert_refused(
        1, "no broker knows the consumer group nobody"
    )


def test_lists_tell_which_dead_letters_were_sent_again(ask, dead):
    def sent_again():
        return {
            row["body"] for row in ask("dlq", "show", dead, "--json").json if row["replayed_ms"]
        }

    assert sent_again() == set()
    assert [line.split()[1] for line in ask("dlq", "show", dead).out.splitlines()[1:]] == ["-"] * 5
    assert ask("dlq", "replay", dead, "--tag", "odd", "--yes").status == 0
    wait_until(lambda: len(sent_again()) == 2, 60, "the index of keys")
    assert sent_again() == {"body 1", "body 3"}
    (row,) = ask("dlq", "list", dead, "--json").json
    assert row["sent_again"] == 0, "a selection does not move the position"
    rest = ask("dlq", "replay", dead, "--yes", "--json").json
    assert (rest["messages"], rest["replayed_before"]) == (3, 2)
    (row,) = ask("dlq", "list", dead, "--json").json
    assert (row["messages"], row["sent_again"]) == (5, 5)
    wait_until(lambda: len(sent_again()) == 5, 60, "the index of keys")
    at_ms = ask("dlq", "show", dead, "--key", "k1", "--json").json[0]["replayed_ms"]
    assert times.shown(at_ms) in ask("dlq", "show", dead, "--key", "k1").out


def test_a_dead_letter_that_was_sent_again_alone_is_left_out_afterwards(ask, dead):
    def replay(*options):
        found = ask("dlq", "replay", dead, "--yes", "--json", *options)
        return found.json["messages"], found.json["replayed_before"], found.err

    def is_sent():
        return ask("dlq", "show", dead, "--key", "k1", "--json").json[0]["replayed_ms"]

    assert replay("--key", "k1") == (1, 0, "")
    wait_until(is_sent, 60, "the index of keys")
    assert replay("--dry-run") == (4, 1, "")
    count, before, note = replay("--key", "k1")
    assert (count, before) == (0, 1)
    assert "earlier replays have sent 1 selected dead letter of" in note
    assert "give --from-start" in note
    assert replay("--key", "k1", "--from-start") == (1, 0, "")
    assert replay() == (4, 1, "")


def test_a_second_replay_continues_where_the_first_ended(ask, topic, dead):
    def replay(*options):
        found = ask("dlq", "replay", dead, "--topic", other, "-y", "--json", *options)
        assert found.status == 0, found.err
        return found.json["messages"], found.json["replayed_before"], found.err

    other = f"{topic}-other"
    ask("topic", "create", other, "--queues", 1)
    assert replay("--dry-run") == (5, 0, "")
    assert replay("--key", "k0") == (1, 0, ""), "a selection does not move the position"
    assert replay("--max", 2) == (2, 0, "")
    assert replay() == (3, 2, "")
    none, before, note = replay()
    assert (none, before) == (0, 5)
    assert "5 selected dead letters" in note
    assert note.endswith("to send them again, give --from-start\n")
    assert replay("--tag", "odd")[:2] == (0, 2)
    assert replay("--tag", "odd", "--from-start") == (2, 0, "")
    assert replay("--from-start", "--max", 1) == (1, 0, "")
    assert replay()[:2] == (0, 5), "a repetition does not move the position back"
    assert ask("printMsg", "-t", other).out.count("MSGID: ") == 9
    assert "DLQ_REPLAY" not in ask("group", "list").out + ask("lag").out


@pytest.mark.parametrize(
    "command",
    [
        ("group", "delete", "{}", "--topics", "--yes"),
        ("deleteSubGroup", "-g", "{}", "-c", "DefaultCluster", "-r", "true"),
        ("topic", "delete", "%DLQ%{}", "--yes"),
    ],
)
def test_dead_letters_that_follow_a_deletion_are_new_to_a_replay(ask, suite, topic, dead, command):
    replay = ("dlq", "replay", dead, "--topic", f"{topic}-other", "-y", "--json")
    ask("topic", "create", f"{topic}-other", "--queues", 1)
    assert ask(*replay).json["messages"] == 5
    deleted = ask(*(word.format(dead) for word in command))
    assert deleted.status == 0
    assert "DLQ_REPLAY" not in deleted.out + deleted.err
    reset = ("group", "reset", dead, topic, "--to", "first", "--yes")
    if command[0] == "topic":
        assert ask(*reset).status == 0
    bury(ask, suite, topic, dead)
    again = ask(*replay).json
    assert (again["messages"], again["replayed_before"]) == (5, 0)


def test_dead_letters_are_replayed_to_a_topic(ask, topic, dead):
    other = f"{topic}-other"
    missing = ask("dlq", "replay", dead, "--topic", other, "-y")
    missing.assert_refused(1, f"no broker has the topic {other}: check the name")
    ask("topic", "create", other, "--queues", 1)
    assert ask("dlq", "replay", dead, "--topic", other, "--max", 3, "-y").status == 0
    assert ask("printMsg", "-t", other).out.count("MSGID: ") == 3


@pytest.mark.parametrize("retries", [0, -1])
@pytest.mark.parametrize("form", [(), ("--dry-run",), ("--key", "k3", "--rate", 10), "retry topic"])
def test_a_group_without_retries_is_not_sent_its_dead_letters(ask, topic, dead, retries, form):
    assert ask("group", "alter", dead, "--retries", retries).status == 0
    options = ("--topic", f"%RETRY%{dead}") if form == "retry topic" else form
    refused = ask("dlq", "replay", dead, *options, "--yes")
    refused.assert_refused(1, f"the consumer group {dead} allows {retries} retries at ")
    assert f"cometmq group alter {dead} --retries 1" in refused.err
    assert "--topic" in refused.err
    assert len(ask("dlq", "show", dead, "--json").json) == 5

    assert ask("dlq", "replay", dead, "--topic", topic, "--max", 1, "--yes").status == 0
    assert ask("group", "alter", dead, "--retries", 1).status == 0
    assert ask("dlq", "replay", dead, "--max", 1, "--yes").status == 0
    assert len(ask("dlq", "show", dead, "--json").json) == 5


@pytest.mark.parametrize("command", [("show",), ("export",), ("replay", "-y")])
def test_a_selection_without_dead_letters_is_told(ask, dead, command):
    name, *options = command
    none = ask("dlq", name, dead, *options, "--key", "nokey")
    assert none.status == 0
    assert none.err == f"cometmq: nothing matched: no dead letter of {dead} is selected\n"
    wrong = ask("dlq", name, dead, *options, "--id", "7F00")
    wrong.assert_refused(1, f"no dead letter of {dead} has the id 7F00, or it is not among those")


@pytest.mark.parametrize("before", [None, b""])
def test_an_export_that_writes_nothing_leaves_no_new_file(tmp_path, before):
    file = tmp_path / "letters"
    if before is not None:
        file.write_bytes(before)
    with pytest.raises(ClientError, match="cannot be written: disk full"), _opened(str(file)):
        raise OSError(errno.ENOSPC, "disk full")
    assert file.exists() == (before is not None)


def test_a_replay_shows_its_progress_on_a_terminal(suite, dead):
    replay = OnTerminal("dlq", "replay", dead, "--rate", 1, "--yes", "-n", suite.namesrv)
    replay.wait_for("sent 2 of 5 messages, ")
    replay.wait_for("per second")
    assert replay.end() == 0


def test_a_replay_asks_with_the_number_of_messages(ask, dead):
    ask("dlq", "replay", dead, "--tag", "odd").assert_refused(
        2, f"Send 2 dead letters of {dead} again to the group {dead}? Standard input"
    )


def test_an_interrupted_replay_names_the_command_that_goes_on(ask, suite, dead):
    replay = OnTerminal("dlq", "replay", dead, "--rate", 1, "--yes", "-n", suite.namesrv)
    replay.wait_for("sent 2 of 5 messages, ")
    running = f"a replay of {dead} by "
    assert running in ask("dlq", "replay", dead, "--dry-run").err
    assert replay.interrupt() == 130
    assert running not in ask("dlq", "replay", dead, "--dry-run").err
    line = replay.shown.splitlines()[-1].rpartition("\x1b[K")[2]
    sent = re.fullmatch(r"cometmq: interrupted: sent (\d) of 5 messages, (\d) left; .*", line)
    assert sent is not None, replay.shown
    assert int(sent[1]) + int(sent[2]) == 5
    command = f"to go on: cometmq dlq replay {dead} --rate 1 -n {suite.namesrv} --yes"
    assert line.endswith(f"; {command}")
    rest = ask("dlq", "replay", dead, "--rate", 1, "--yes", "--json").json
    assert (rest["messages"], rest["replayed_before"]) == (int(sent[2]), int(sent[1]))


def test_an_interrupted_repetition_names_the_messages_that_are_left(suite, ask, topic, dead):
    ask("topic", "create", f"{topic}-other", "--queues", 1)
    options = ("--from-start", "--topic", f"{topic}-other", "--rate", 1, "-n", suite.namesrv)
    replay = OnTerminal("dlq", "replay", dead, "--yes", *options)
    replay.wait_for("sent 4 of 5 messages, ")
    assert replay.interrupt() == 130
    left = re.search(r"to go on: cometmq (.* --from-start) -n \S+ --yes\r", replay.shown)
    assert left is not None, replay.shown
    assert ask(*left[1].split(), "--yes", "--json").json["messages"] == 1
