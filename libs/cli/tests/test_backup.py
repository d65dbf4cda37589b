# SPDX-License-Identifier: Apache-2.0
"""`backup` and `restore` against a running suite."""

import fcntl
import gzip
import hashlib
import json
import signal
import subprocess

import msgspec
import pytest

from cometmq.cli.archives import backup, segments, sending
from cometmq.cli.archives.copying import Reader
from cometmq.peers.comet import PROGRAM
from cometmq.peers.processes import wait_until

DEADLINE_S = 120
COUNT = 40


@pytest.fixture
def filled(ask, topic, tmp_path):
    """Store messages of all kinds in a topic; return what `consume --json` prints of them."""
    lines = [
        {"body": f"body {n}", "tag": "odd" if n % 2 else "even", "keys": [f"k{n}", "all"],
         "properties": {"n": str(n), "umlaut": "ä ö"}, "flag": n}
        for n in range(COUNT - 2)
    ]  # fmt: skip
    lines += [{"body_base64": "/wD+"}, {"body": "x" * 300_000}]
    file = tmp_path / "lines"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert ask("produce", topic, "--json-lines", "-f", file).status == 0
    return messages(ask, topic)


def messages(ask, topic):
    args = ("--from", "first", "--no-follow", "--json")
    return ask("consume", topic, *args).lines


def essence(rows):
    """Return what a restore keeps, by queue in order."""
    names = ("message_id", "body", "body_base64", "tag", "keys", "properties", "flag")
    found: dict[int, list[object]] = {}
    for row in rows:
        found.setdefault(row["queue_id"], []).append([row.get(name) for name in names])
    return found


def new_topic(ask, topic, queues=2):
    name = f"{topic}-copy"
    assert ask("topic", "create", name, "--queues", queues).status == 0
    return name


def test_messages_return_with_all_that_senders_chose(ask, topic, filled, tmp_path):
    folder = tmp_path / "backup"
    facts = ask("backup", folder, topic, "--json").json
    assert (facts["messages"], facts["queues"], facts["damaged"]) == (COUNT, 2, 0)
    assert folder.stat().st_mode & 0o777 == 0o700
    checked = ask("backup", folder, "--verify", "--json").json
    assert (checked["messages"], checked["verified"]) == (COUNT, True)

    copy = f"{topic}-copy"
    (row,) = ask("restore", folder, "--to", copy, "--yes", "--json").json
    assert (row["restored"], row["left_out"]) == (COUNT, 0)
    assert (row["verified"], row["differ"]) == (COUNT, 0)
    assert essence(messages(ask, copy)) == essence(filled)
    assert len(ask("topic", "describe", copy, "--json").json) == 2


def test_the_files_are_lines_that_produce_reads(ask, topic, filled, tmp_path):
    assert ask("backup", tmp_path / "b", topic).status == 0
    copy = new_topic(ask, topic)
    for file in sorted((tmp_path / "b").glob("*.jsonl.gz")):
        plain = tmp_path / "plain"
        plain.write_bytes(gzip.decompress(file.read_bytes()))
        assert ask("produce", copy, "--json-lines", "-f", plain).status == 0
    assert len(messages(ask, copy)) == len(filled)


def test_several_topics_of_different_queues(ask, topic, filled, tmp_path):
    other = new_topic(ask, topic, queues=3)
    for body in "abcdef":
        assert ask("produce", other, body).status == 0
    folder = tmp_path / "b"
    assert ask("backup", folder, topic, other, "--json").json["messages"] == COUNT + 6
    assert ask("restore", folder, "--to", "X", "--yes").status == 2
    narrow = f"{topic}-narrow"
    assert ask("topic", "create", narrow, "--queues", 1).status == 0
    found = ask("restore", folder, other, "--to", narrow, "--yes")
    assert "has 1 queue, the backup of" in found.err
    assert sorted(row["body"] for row in messages(ask, narrow)) == list("abcdef")


def test_a_folder_with_what_file_systems_keep_counts_as_empty(ask, topic, filled, tmp_path):
    folder = tmp_path / "disk"
    (folder / "lost+found").mkdir(parents=True)
    (folder / ".DS_Store").write_text("")
    assert ask("backup", folder, topic).status == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("")
    assert "is no backup" in ask("backup", other, topic).err


def test_a_part_of_a_topic(ask, topic, filled, tmp_path):
    broker = filled[0]["broker"]
    counts = [sum(row["queue_id"] == number for row in filled) for number in (0, 1)]

    def counted(name, *args):
        return ask("backup", tmp_path / name, topic, *args, "--json").json["messages"]

    assert counted("one", "--queue", f"{broker}:0") == counts[0]
    assert counted("range", "--queue", f"{broker}:0=1:4", "--queue", f"{broker}:1=2") == (
        3 + counts[1] - 2
    )
    assert counted("new", "--since", "1h") == COUNT
    assert counted("old", "--until", "1h") == 0
    middle = sorted(row["store_timestamp"] for row in filled)[COUNT // 2]
    before = sum(row["store_timestamp"] < middle for row in filled)
    assert counted("until", "--until", middle) == before
    assert counted("since", "--since", middle) == COUNT - before


def test_a_dry_run_counts_and_writes_nothing(ask, topic, filled, tmp_path):
    folder = tmp_path / "b"
    found = ask("backup", folder, topic, "--dry-run", "--json").json
    assert (found["messages_max"], found["changed"]) == (COUNT, False)
    assert not folder.exists()
    assert ask("backup", folder, topic).status == 0
    before = sorted(it.name for it in folder.iterdir())
    dry = ask("restore", folder, "--to", f"{topic}-new", "--dry-run", "--json").json
    assert (dry["messages"], dry["new_topics"]) == (COUNT, [f"{topic}-new"])
    assert ask("topic", "describe", f"{topic}-new").status == 1
    assert sorted(it.name for it in folder.iterdir()) == before
    ask("restore", folder).assert_refused(2, f"Send {COUNT} messages to {topic}? Standard input")


def test_a_backup_that_failed_goes_on_where_it_ended(ask, topic, filled, tmp_path, monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 500)
    answers = []
    original = Reader.pull

    async def pulled(self, key, at):
        answers.append(key)
        if len(answers) == 2:
            raise OSError(28, "No space left on device")
        return await original(self, key, at)

    folder = tmp_path / "b"
    with monkeypatch.context() as patch:
        patch.setattr(Reader, "pull", pulled)
        failed = ask("backup", folder, topic)
    assert failed.status == 1
    assert "No space left on device; repeat the command to go on" in failed.err
    ask("restore", folder, "--yes").assert_refused(1, f"{folder} is unfinished")
    ask("backup", folder, "Other").assert_refused(
        2, f"{folder} has an unfinished backup of {topic}"
    )
    with (folder / "segments.jsonl").open("ab") as file:
        file.write(b'{"file":"torn')
    assert ask("backup", folder, "--json").json["messages"] == COUNT
    ask("backup", folder, topic).assert_refused(1, f"{folder} has a complete backup")
    assert ask("restore", folder, "--to", f"{topic}-copy", "--yes").status == 0
    assert essence(messages(ask, f"{topic}-copy")) == essence(filled)


def killed(suite, number, until, *args):
    """Run a command slowly as a process, and kill it."""
    command = [str(PROGRAM), *map(str, args), "--rate", "5", "-n", suite.namesrv]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            wait_until(until, DEADLINE_S, "some work")
        finally:
            child.send_signal(number)
        child.wait(DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_restore_that_is_killed_goes_on_and_stores_nothing_twice(
    ask, suite, topic, filled, tmp_path, number
):
    folder, copy = tmp_path / "b", new_topic(ask, topic)
    assert ask("backup", folder, topic).status == 0
    some = ("restore", folder, "--to", copy)

    def is_begun():
        return len(messages(ask, copy)) > 0

    killed(suite, number, is_begun, *some, "--yes")
    (left,) = [it for it in folder.iterdir() if it.name.startswith("restore-")]
    if number == signal.SIGKILL:  # the last batch is stored, but not noted
        lines = left.read_bytes().splitlines(keepends=True)
        left.write_bytes(b"".join(lines[: max(1, len(lines) - 1)]) + b'{"file')
    (row,) = ask(*some, "--yes", "--json").json
    assert (row["restored"], row["verified"], row["differ"]) == (COUNT, COUNT, 0)
    assert essence(messages(ask, copy)) == essence(filled)
    ask(*some, "--yes").assert_refused(1, f"{topic} was restored to {copy} before")
    assert ask(*some, "--yes", "--again").status == 0
    assert len(messages(ask, copy)) == 2 * COUNT


def test_groups_stand_where_they_stood(ask, topic, filled, tmp_path):
    group, folder, copy = f"{topic}-readers", tmp_path / "b", f"{topic}-copy"
    read = ("consume", topic, "-g", group, "--from", "first", "--max", 15, "--timeout", DEADLINE_S)
    assert ask(*read).status == 0

    def lag(of):
        rows = ask("lag", group, "-t", of, "--json").json["queues"]
        return {row["queue"]: row["lag"] for row in rows}

    before = lag(topic)
    assert sum(before.values()) == COUNT - 15
    facts = ask("backup", folder, topic, "--group", group, "--json").json
    assert facts["group_offsets"] == 2
    (row,) = ask("restore", folder, "--to", copy, "--groups", "--yes", "--json").json
    assert row["group_offsets"] == 2
    assert lag(copy) == before
    (row,) = ask("restore", folder, "--to", copy, "--groups", "--yes", "--again", "--json").json
    assert row["group_offsets"] == sum(not it for it in before.values()), "it would skip messages"


def test_a_damaged_file_is_found_before_anything_is_sent(ask, topic, filled, tmp_path):
    folder = tmp_path / "b"
    assert ask("backup", folder, topic).status == 0
    file = folder / "000001.jsonl.gz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    for command in (("backup", folder, "--verify"), ("restore", folder, "--yes")):
        ask(*command).assert_refused(1, f"{file} is damaged: its SHA-256 is another one")
    assert len(messages(ask, topic)) == COUNT
    file.unlink()
    ask("backup", folder, "--verify").assert_refused(1, f"{file} cannot be read")


def rewritten(folder, change):
    """Change the lines of the only file of a backup as somebody would who can compute hashes."""
    table = folder / "segments.jsonl"
    (segment,) = [json.loads(it) for it in table.read_text().splitlines()[:-1]]
    file = folder / segment["file"]
    lines = change(gzip.decompress(file.read_bytes()).splitlines(keepends=True))
    file.write_bytes(gzip.compress(b"".join(lines)))
    segment["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    segment["messages"], segment["plain_bytes"] = len(lines), sum(map(len, lines))
    first = json.dumps(segment).encode() + b"\n"
    end = {"ended": "now", "messages": len(lines), "sha256": hashlib.sha256(first).hexdigest()}
    table.write_bytes(first + json.dumps({"end": end}).encode() + b"\n")


@pytest.fixture
def small(ask, tmp_path, topic):
    """Make a backup of three messages in one queue; return its folder."""
    name = f"{topic}-one"
    assert ask("topic", "create", name, "--queues", 1).status == 0
    for body in "abc":
        assert ask("produce", name, body).status == 0
    assert ask("backup", tmp_path / "b", name).status == 0
    return tmp_path / "b"


def test_messages_that_cannot_be_stored_are_left_out_and_named(ask, topic, small):
    def change(lines):
        rows = [json.loads(line) for line in lines]
        rows[0]["damaged"] = True
        rows[1] |= {"message_id": "EMPTY", "body": ""}
        return [json.dumps(row).encode() + b"\n" for row in rows]

    rewritten(small, change)
    found = ask("restore", small, "--to", f"{topic}-copy", "--yes", "--json")
    assert found.status == 1
    (row,) = json.loads(found.out)
    assert (row["messages"], row["restored"], row["left_out"], row["verified"]) == (3, 1, 2, 1)
    assert "left out, its body is damaged" in found.err
    assert "EMPTY: left out" in found.err
    assert [it["body"] for it in messages(ask, f"{topic}-copy")] == ["c"]


@pytest.mark.parametrize("line", [b"\xff\n", b"[]\n", b'{"queue_offset":"x"}\n', b"{}\n"])
def test_lines_that_are_no_messages_end_the_restore(ask, topic, small, line):
    rewritten(small, lambda lines: [*lines[:2], line])
    found = ask("restore", small, "--to", f"{topic}-copy", "--yes")
    found.assert_named("line 3 of a backup's file is no message")


def test_a_difference_is_found_by_reading_back(ask, topic, small, monkeypatch):
    original = sending.difference_of

    def altered(wanted, found):
        if found.queue_offset == 1:
            found = msgspec.structs.replace(found, body=b"other", properties={"TAGS": "t"})
        return original(wanted, found)

    with monkeypatch.context() as patch:
        patch.setattr(sending, "difference_of", altered)
        found = ask("restore", small, "--to", f"{topic}-copy", "--yes", "--json")
    assert "offset 1: body" in found.err
    again = ask("restore", small, "--to", f"{topic}-copy", "--yes", "--json")
    for done in (found, again):
        (row,) = json.loads(done.out)
        assert (done.status, row["restored"], row["verified"], row["differ"]) == (1, 3, 3, 1)


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        ("backup.json", '"version": 1', '"version": 9', "of version 9"),
        ("backup.json", "{", "", "cannot be read"),
        ("segments.jsonl", '"messages":3', '"messages":2', "were changed (SHA-256)"),
        ("segments.jsonl", "000001.jsonl.gz", "../../etc/passwd", "names no file of messages"),
        ("segments.jsonl", '"next":3', '"next":9', "its offsets are outside"),
        ("segments.jsonl", '"file"', '"fil"', "is damaged"),
    ],
)
def test_tables_that_were_changed_are_refused(ask, small, file, old, new, line):
    path = small / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    refused = ask("restore", small, "--yes")
    assert (refused.status, refused.out) == (2, "")
    assert line in refused.err


def test_the_progress_of_another_restore_is_refused(ask, topic, small, tmp_path):
    progress, copy = tmp_path / "progress", f"{topic}-copy"
    some = ("restore", small, "--to", copy, "--yes", "--progress", progress)
    assert ask(*some).status == 0
    lines = progress.read_text().splitlines(keepends=True)
    progress.write_text("".join(lines[:-1]).replace(".jsonl.gz", ".other"))
    assert "another queue or backup" in ask(*some).err
    progress.write_text("nonsense\n")
    assert f"line 1 of {progress} is no progress" in ask(*some).err
    progress.write_text(lines[0])
    other = ("restore", small, "--to", f"{copy}2", "--yes", "--progress", progress)
    ask(*other).assert_refused(2, f"{progress} belongs to another restore")


def test_wrong_usage_is_named(ask, topic, filled, tmp_path, small):
    assert ask("backup", tmp_path / "new").status == 2
    assert ask("backup", tmp_path / "new", topic, "--queue", "x").status == 2
    ask("backup", tmp_path / "new", topic, "--queue", "x:0").assert_refused(1, "the topic")
    ask("backup", tmp_path, topic).assert_refused(1, f"{tmp_path} exists and is no backup")
    assert ask("backup", tmp_path / "new", "NoSuchTopic").status == 1
    assert ask("backup", tmp_path / "new", topic, "-g", "nobody").status == 1
    assert not (tmp_path / "new").exists()
    ask("restore", tmp_path / "none", "--yes").assert_refused(
        2, f"{tmp_path / 'none'} is no backup"
    )
    ask("restore", small, "Other", "--yes").assert_refused(2, f"{small} has no topic Other")
    ask("restore", small, "--to", "%RETRY%x", "--yes").assert_refused(2, "%RETRY%x belongs to the")
    ask("restore", small, "--groups", "--yes").assert_refused(
        1, f"{small} has no offsets of groups"
    )


def test_a_refused_repetition_leaves_the_restore_done(ask, topic, small):
    some = ("restore", small, "--to", f"{topic}-copy")
    assert ask(*some, "--yes").status == 0
    ask(*some, "--again").assert_refused(2, "Send 3 messages to")
    ask(*some, "--yes").assert_refused(1, f"{topic}-one was restored to {topic}-copy before")
    assert ask(*some, "--yes", "--again").status == 0
    assert len(messages(ask, f"{topic}-copy")) == 6


def test_a_repeated_restore_of_topics_goes_on_with_those_that_are_left(ask, topic, small, tmp_path):
    first, other, folder = f"{topic}-one", new_topic(ask, topic, 1), tmp_path / "both"
    assert ask("produce", other, "d").status == 0
    assert ask("backup", folder, first, other).status == 0
    assert ask("restore", folder, first, "--yes").status == 0
    found = ask("restore", folder, "--yes", "--json")
    assert [row["topic"] for row in found.json] == [other]
    assert f"{first} was restored to {first} before" in found.err
    ask("restore", folder, "--yes").assert_refused(1, f"{first} was restored to {first} before")
    assert ask("restore", folder, "--yes", "--again").status == 0
    assert [len(messages(ask, it)) for it in (first, other)] == [9, 3]


def test_the_preview_counts_the_groups_of_the_chosen_topics(ask, topic, small, tmp_path):
    first, other, folder = f"{topic}-one", new_topic(ask, topic, 1), tmp_path / "both"
    for name in (first, other):
        assert ask("produce", name, "d").status == 0
        read = ("--from", "first", "--max", 1, "--timeout", DEADLINE_S)
        assert ask("consume", name, "-g", f"{topic}-readers", *read).status == 0
    assert ask("backup", folder, first, other, "--groups").status == 0
    dry = ask("restore", folder, other, "--groups", "--dry-run", "--json").json
    assert dry["group_offsets"] == 1


def interrupted(ask, folder, *args):
    """Begin a backup that fails before it has read anything."""

    async def pulled(_self, _key, _at):
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "pull", pulled)
        assert ask("backup", folder, *args).status == 1


def test_a_backup_goes_on_only_with_its_own_options(ask, topic, filled, tmp_path):
    folder = tmp_path / "b"
    interrupted(ask, folder, topic, "--since", "1h")
    for other in (["--since", "2h"], ["--until", "1h"], ["--groups"], ["-g", "g"], ["--all"]):
        ask("backup", folder, *other).assert_refused(
            2, f"{folder} has an unfinished backup of {topic}, begun with other --"
        )
    assert ask("backup", folder, topic, "--since", "1h", "--json").json["messages"] == COUNT


def test_a_backup_of_all_topics_is_repeated_as_it_was(ask, topic, small, tmp_path, monkeypatch):
    async def own(_admin):  # the suite has topics of other tests
        return [f"{topic}-one"]

    monkeypatch.setattr(backup, "_own_topics", own)
    interrupted(ask, tmp_path / "all", "--all")
    assert ask("backup", tmp_path / "all", "--all", "--json").json["messages"] == 3


def test_a_backup_or_restore_that_runs_is_not_disturbed(ask, topic, small, tmp_path):
    folder, state = tmp_path / "running", tmp_path / "progress"
    interrupted(ask, folder, f"{topic}-one")
    torn = b'{"file":"half of a line'
    (folder / "segments.jsonl").write_bytes(torn)
    restore = ("restore", small, "--to", f"{topic}-copy", "--yes", "--progress", state)
    with (folder / "backup.json").open("rb") as one, state.open("wb") as two:
        for file in (one, two):
            fcntl.flock(file, fcntl.LOCK_EX)
        ask("backup", folder).assert_refused(1, f"{folder / 'backup.json'} is in use by another")
        ask(*restore).assert_refused(1, f"{state} is in use by another restore")
        ask("backup", folder, "--verify").assert_refused(1, f"{folder} is unfinished")
    assert (folder / "segments.jsonl").read_bytes() == torn
    assert ask("backup", folder).status == 0
    assert ask("backup", folder, "--verify").status == 0
    assert ask(*restore).status == 0
