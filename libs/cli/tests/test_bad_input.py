# SPDX-License-Identifier: Apache-2.0
"""Hostile names, large bodies and tables, colours: nothing reaches a terminal as it is."""

import json
import os
import pty
import re
import subprocess
import sys
import time

import pytest

from cometmq.cli.output import Cell, print_rows

EVIL = [
    "\x1b[2J\x1b]0;owned\x07",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    "日本語",
    "a\nb\rc",
]
BODY_BYTES = 4 * 1024 * 1024 - 1024


def test_properties_and_keys_of_clients_are_shown_escaped(ask, topic):
    for number, text in enumerate(EVIL):
        sent = ask("produce", topic, f"b{number}", "-p", f"x={text}", "--in-flight", 1)
        assert sent.status == 0, sent.err
    lines = ask("consume", topic, "--last", len(EVIL), "--json").lines
    assert {line["properties"]["x"] for line in lines} == set(EVIL), "JSON and pipes keep them"
    for line in lines:
        shown = ask("message", "show", line["offset_message_id"])
        assert shown.status == 0, shown.err
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown.out)
        raw = ask("message", "show", line["offset_message_id"], "--json").out
        assert json.loads(raw)["properties"]["x"] in EVIL


@pytest.mark.parametrize("name", EVIL)
def test_names_that_no_topic_can_have_are_refused_in_one_safe_line(ask, name):
    for command in (("topic", "create"), ("group", "create"), ("topic", "describe"), ("consume",)):
        refused = ask(*command, name)
        assert refused.status in {1, 2}
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", refused.err)
        assert "Traceback" not in refused.err


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "T", "--from"),
        ("topic", "trim", "T", "--yes", "--before"),
        ("explain",),
        ("mqadmin", "printMsg", "-t", "T", "-b"),
        ("mqadmin", "resetOffsetByTime", "-g", "g", "-t", "T", "-s"),
    ],
)
def test_a_number_of_thousands_of_digits_is_refused_in_one_line(call, suite, topic, words):
    """Python does not convert it."""
    words = [topic if word == "T" else word for word in words]
    namesrv = () if words == ["explain"] else ("-n", suite.namesrv)
    refused = call(*words, "1" * 5000, *namesrv)
    assert refused.status in {1, 2}
    assert (refused.err.count("\n"), "Traceback" in refused.err) == (1, False), refused.err[-300:]


@pytest.mark.parametrize("offset", ["1" * 5000, "²", "-1"])
def test_a_transaction_at_no_offset_is_refused(ask, offset):
    refused = ask("txn", "show", f"b:{offset}")
    assert (refused.status, "is neither a message id nor" in refused.err) == (2, True)


def test_a_body_of_4_mb_is_sent_read_and_decoded(ask, topic, tmp_path):
    body = "x" * BODY_BYTES
    (tmp_path / "body").write_text(body)
    assert ask("produce", topic, "-f", tmp_path / "body").status == 0
    assert ask("consume", topic, "--last", 1).out == f"{body}\n"
    shown = ask("consume", topic, "--last", 1, "--decode", "hex").out
    assert shown.endswith("...\n")
    assert len(shown) < 1_000_000


@pytest.mark.parametrize(
    ("form", "body", "shown"),
    [
        ("json", '{"a":1}', '{\n  "a": 1\n}'),
        ("auto", "plain", "plain"),
        ("hex", "AB", "41 42"),
        ("text", "\x1b[31m", "\\x1b[31m"),
    ],
)
def test_bodies_are_decoded(ask, topic, form, body, shown):
    assert ask("produce", topic, body).status == 0
    found = ask("consume", topic, "--last", 1, "--decode", form)
    assert shown in found.out
    assert ask("consume", topic, "--last", 1, "--decode", "xml").status == 2


def test_ten_thousand_rows_are_printed_in_a_moment(capsys):
    begin = time.process_time()
    rows: list[list[Cell]] = [
        [f"Topic{number}", "messages", ["b"], 4, 4, "rw"] for number in range(10_000)
    ]
    print_rows(("Topic", "Kind", "Brokers", "Read", "Write", "Permission"), rows, as_json=False)
    assert time.process_time() - begin < 60
    assert capsys.readouterr().out.count("\n") == 10_001


COLOURED = """
from cometmq.cli.output import print_rows
print_rows(("Broker", "State"), [["a", "ok"], ["b", "takes no messages: disk-full"]], as_json=False)
"""


def on_terminal(**env):
    master, slave = pty.openpty()
    hidden = {"NO_COLOR", "TERM"}
    clean = {name: text for name, text in os.environ.items() if name not in hidden}  # noqa: TID251
    child = subprocess.Popen(
        [sys.executable, "-c", COLOURED], stdout=slave, env={**clean, "TERM": "xterm", **env}
    )
    os.close(slave)
    assert child.wait(120) == 0
    text = os.read(master, 65536)
    os.close(master)
    return text


def test_states_have_colours_on_a_terminal_only_and_not_if_the_user_wants_none(capsys):
    assert b"\x1b[32mok" in on_terminal()
    assert b"\x1b[31mtakes no messages" in on_terminal()
    assert b"\x1b[3" not in on_terminal(NO_COLOR="1")
    exec(COLOURED, {})
    assert "\x1b" not in capsys.readouterr().out


def test_the_brokers_fit_on_80_columns(ask):
    assert max(map(len, ask("cluster").out.splitlines())) <= 80
    assert max(map(len, ask("cluster", "--wide").out.splitlines())) > 80


def test_a_command_to_copy_has_names_as_single_words(call, suite):
    done = call("lag", "-n", suite.namesrv, "--", "--yes")
    assert done.status == 1
    assert done.err.endswith("create it: cometmq group create -- --yes\n"), done.err


@pytest.mark.parametrize("group", ["$(id)", "my group"])
def test_no_group_is_to_be_created_with_a_name_that_would_be_refused(ask, group):
    done = ask("lag", group)
    done.assert_named(f"no broker knows the consumer group {group}, and none can have this name: ")
    assert "group create" not in done.err


def test_a_misspelt_group_or_topic_is_answered_with_the_right_one(ask, topic, tmp_path):
    assert ask("group", "create", f"{topic}-settle").status == 0
    for group in (f"{topic}-settl", f"{topic.upper()}-SETTLE"):
        assert f"{group}; did you mean {topic}-settle?" in ask("lag", group).err
    misspelt: list[tuple[object, ...]] = [
        ("topic", "describe", f"{topic}x"),
        ("topic", "route", topic.swapcase()),
        ("topic", "alter", f"{topic}x", "--perm", "r"),
        ("consume", topic.swapcase(), "--last", 1),
        ("consume", topic.swapcase(), "--max", 1),
        ("consume", topic.swapcase(), "--max", 1, "-g", f"{topic}-settle"),
        ("backup", tmp_path / "backup", topic.swapcase()),
    ]
    for words in misspelt:
        done = ask(*words)
        assert f"; did you mean {topic}?" in done.err, done.err
