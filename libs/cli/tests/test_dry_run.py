# SPDX-License-Identifier: Apache-2.0
"""Dry runs check everything and change nothing; offsets of groups in files."""

import pytest

from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS


@pytest.fixture
def group(ask, topic):
    """Create a group that has consumed two of the five messages of the topic's first queue."""
    name = f"G{topic}"
    assert ask("group", "create", name).status == 0
    broker = ask("topic", "describe", topic, "--json").json[0]["broker"]
    for body in "12345":
        assert ask("produce", topic, body).status == 0
    assert ask("group", "reset", name, topic, "--to", "last", "--yes").status == 0
    return name, broker


def offsets(ask, group, topic):
    queues = ask("lag", group, "-t", topic, "--json").json["queues"]
    return {row["queue"]: row["committed"] for row in queues}


def test_a_topic_is_neither_created_nor_changed_nor_deleted(ask, topic):
    created = ask("topic", "create", "DryTopic", "--queues", 3, "--dry-run", "--json").json
    assert (created["would"], created["changed"]) == ("create the topic DryTopic", False)
    assert ask("topic", "describe", "DryTopic").status == 1
    altered = ask("topic", "alter", topic, "--queues", 5, "--dry-run")
    assert "read queues 2 -> 5, write queues 2 -> 5" in altered.out
    same = ask("topic", "alter", topic, "--perm", "rw", "--dry-run")
    assert f"change nothing of the topic {topic}" in same.out
    assert "unchanged" in same.out
    assert ask("topic", "delete", topic, "--dry-run").status == 0
    assert len(ask("topic", "describe", topic, "--json").json) == 2


def test_a_dry_run_finds_the_mistakes_of_a_real_one(ask, topic):
    assert ask("topic", "create", topic, "--dry-run").status == 1
    assert ask("topic", "alter", "Missing", "--queues", 5, "--dry-run").status == 1
    assert ask("group", "delete", "Missing", "--dry-run").status == 1
    assert ask("group", "reset", "Missing", topic, "--to", "first", "--dry-run").status == 1


def test_a_group_is_not_moved_and_the_preview_counts_what_would_be_read_again(ask, topic, group):
    name, _ = group
    before = offsets(ask, name, topic)
    moved = ask("group", "reset", name, topic, "--to", "first", "--dry-run", "--json").json
    assert (moved["read_again"], moved["skipped"], moved["changed"]) == (5, 0, False)
    assert offsets(ask, name, topic) == before
    for command in (("delete", name), ("alter", name, "--retries", 1), ("create", f"{name}x")):
        assert ask("group", *command, "--dry-run").status == 0
    assert ask("group", "describe", name, "--json").json["retries"] == 16
    assert ask("group", "describe", f"{name}x").status == 1


def test_offsets_are_saved_and_restored(ask, topic, group, tmp_path):
    name, _ = group
    file, before = tmp_path / "offsets.txt", offsets(ask, name, topic)
    assert ask("group", "seek", name, "--to-file", file).status == 0
    assert ask("group", "reset", name, topic, "--to", "first", "--yes").status == 0
    assert offsets(ask, name, topic) != before
    preview = ask("group", "seek", name, "--from-file", file, "--dry-run", "--json").json
    assert preview["skipped"] == 5
    assert offsets(ask, name, topic) != before
    rows = ask("group", "seek", name, "--from-file", file, "--yes", "--json").json
    assert sum(row["skipped"] for row in rows) == 5
    assert offsets(ask, name, topic) == before
    printed = ask("group", "seek", name, "--to-file", "-", "-t", topic).out
    assert printed == file.read_text()


def test_a_file_is_overwritten_only_if_confirmed(ask, group, tmp_path):
    file = tmp_path / "kept.txt"
    file.write_text("mine\n")
    assert ask("group", "seek", group[0], "--to-file", file).status == 2
    assert file.read_text() == "mine\n"


@pytest.mark.parametrize(
    ("text", "status", "line"),
    [
        ("{topic} {broker} 0 99999\n", 2, "offset 99999"),
        ("{topic} {broker} 77 0\n", 2, "has no queue 77"),
        ("{topic} nowhere 0 0\n", 2, "has no queue 0 at nowhere"),
        ("Missing {broker} 0 0\n", 1, "Missing"),
        ("{topic} {broker} 1 0\n", 2, "line 2"),
        ("{topic} {broker} 0 -1\n", 2, "line 2"),
        ("\x1b[31m\n", 2, "line 2"),
    ],
)
def test_a_wrong_line_is_named_and_no_line_is_applied(
    ask, topic, group, tmp_path, text, status, line
):
    name, broker = group
    before = offsets(ask, name, topic)
    file = tmp_path / "wrong.txt"
    file.write_text(f"{topic} {broker} 1 0\n" + text.format(topic=topic, broker=broker))
    refused = ask("group", "seek", name, "--from-file", file, "--yes")
    assert refused.status == status
    assert line in refused.err
    assert "\x1b" not in refused.err
    assert offsets(ask, name, topic) == before


def test_a_file_without_offsets_is_refused(call, tmp_path):
    (tmp_path / "empty").write_text("# nothing\n")
    refused = call("group", "seek", "G", "--from-file", tmp_path / "empty")
    assert (refused.status, "has no offsets" in refused.err) == (2, True)


def test_every_command_that_asks_before_a_change_has_a_dry_run():
    without = []
    for verb in ("topic", "group", "txn", "dlq", "ha", "k8s"):
        command = load_command(verb, COMMANDS[verb])
        for name, child in command.commands.items():
            options = {option for param in child.params for option in param.opts}
            is_change = "--yes" in options or name == "switchover"
            if is_change and "--dry-run" not in options:
                without.append(f"{verb} {name}")
    assert without == ["dlq export"], "it only overwrites a file"
