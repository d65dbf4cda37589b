# SPDX-License-Identifier: Apache-2.0
"""The same rows are printed as a table for users and as JSON for scripts."""

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO

import msgspec
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.cli import tables
from cometmq.cli.failures import print_error
from cometmq.cli.mqadmin.frame import Column, Reply, failures, table
from cometmq.cli.outcome import DAMAGES, note_damage
from cometmq.cli.output import print_facts, print_notes, print_rows
from cometmq.cli.say import say
from cometmq.remoting.errors import ServerError

COLUMNS = ("Topic", "Queue id", "Lag", "Ordered")
ROWS = [("T", 0, 1234567, True), ("[red]U[/red]", 1, None, False)]


def test_rows_are_a_table(capsys):
    print_rows(COLUMNS, ROWS, as_json=False, title="Lag")
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert title.strip() == "Lag"
    assert head.split() == ["Topic", "Queue", "id", "Lag", "Ordered"]
    assert first.split() == ["T", "0", "1,234,567", "yes"]
    assert second.split() == ["[red]U[/red]", "1", "-", "no"]


def test_a_title_is_one_line_even_if_it_is_wider_than_the_columns(capsys):
    title = "a [red] group: " + "1,234 messages in 4 queues, " * 4
    print_rows(("A",), [("x",)], as_json=False, title=title)
    assert capsys.readouterr().out.splitlines() == [title.rstrip(), "A", "x"]
    print_facts({"a": 1}, as_json=False, title=title)
    assert capsys.readouterr().out.splitlines() == [title.rstrip(), "a  1"]


def test_rows_are_json_with_plain_keys(capsys):
    print_rows(COLUMNS, ROWS, as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"topic": "T", "queue_id": 0, "lag": 1234567, "ordered": True},
        {"topic": "[red]U[/red]", "queue_id": 1, "lag": None, "ordered": False},
    ]


def test_no_rows_are_an_empty_list(capsys):
    print_rows(COLUMNS, [], as_json=True)
    assert json.loads(capsys.readouterr().out) == []


def test_a_pipe_is_neither_cut_to_a_width_nor_padded(capsys):
    print_rows(("Name", "Rate"), [("x" * 500, 1234.56), ("y", None)], as_json=False)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "x" * 500 + "  1,234.6",
        "y" + " " * 501 + "-",
    ]


CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.lists(st.integers(0, 9), max_size=3),
    st.text(max_size=12), st.text("a \n\t[]日\u0301:", max_size=12),
)  # fmt: skip


def printed(show, *args):
    """Return the output of a plain table, and that of rich."""
    outputs = []
    for is_plain in (True, False):
        with redirect_stdout(StringIO()) as output, pytest.MonkeyPatch.context() as patch:
            if not is_plain:
                patch.setattr(tables, "_print_plain", lambda *_: False)
            show(*args)
        outputs.append(output.getvalue())
    return outputs


@settings(max_examples=50)
@given(rows=st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=5), title=st.text(max_size=30))
def test_a_pipe_gets_the_bytes_that_rich_prints(rows, title):
    plain, rich = printed(tables.print_rows, ("Name", "Read queues", "Lag"), rows, title)
    assert plain == rich
    facts = {str(name): value for name, value, _ in rows}
    plain, rich = printed(tables.print_facts, facts, title)
    assert plain == rich


def test_facts_are_names_and_values(capsys):
    print_facts({"broker_name": "broker-a", "messages": 1000}, as_json=False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["broker", "name", "broker-a"],
        ["messages", "1,000"],
    ]
    print_facts({"broker_name": "broker-a"}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"broker_name": "broker-a"}


WIDE = ("Cluster", "Address", "Read queues", "Write queues", "Permission", "Message id")
SHOWN = """
import sys
from cometmq.cli.output import print_rows
columns, row = eval(sys.argv[1])
print_rows(columns, [row, row], as_json=False, title="Title")
"""


def on_terminal(columns, row):
    """Return the output on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", SHOWN, repr((columns, row))]
    command = ["env", "COLUMNS=80", "TERM=xterm", *program]
    with subprocess.Popen(command, stdout=theirs) as child:
        os.close(theirs)
        chunks = []
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux reports this when the other end is closed
                break
            if not chunk:
                break
            chunks.append(chunk)
    os.close(ours)
    assert child.returncode == 0
    text = b"".join(chunks).decode()
    return [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]


@pytest.mark.parametrize(
    ("row", "is_table"),
    [
        (("DefaultCluster", "127.0.0.1:10911", 4, 4, "rw", "id"), True),
        (("DefaultCluster", "127.0.0.1:10911", 4, 4, "rw", "C" * 20), True),
        (("DefaultCluster", "127.0.0.1:10911", 4, 4, "rw", "C" * 90), True),
        (("A-cluster-with-a-long-name", "127.0.0.1:10911", 4, 4, "rw", "C" * 32), False),
    ],
)
def test_tables_fit_a_terminal_of_80_columns_and_lose_nothing(row, is_table):
    lines = on_terminal(WIDE, row)
    assert max(map(len, lines)) <= 80
    assert lines[0] == "Title"
    assert "".join("".join(lines).split()).count("C" * row[5].count("C") or "id") >= 2
    assert any(line.startswith("Cluster  ") and "Address" in line for line in lines) == is_table
    assert sum(line.count(row[0]) for line in lines) == 2
    assert sum(line.count(row[1]) for line in lines) == 2


def test_sentences_share_the_width():
    """No column becomes a tower of single words because another one comes first."""
    lines = on_terminal(("Level", "What", "Advice"), ("warning", "what is " * 15, "to do so " * 15))
    assert len(lines) <= 2 + 2 * 5


HOSTILE = "\x1b[2J\x9b1mred\x07\u202e"
WRITTEN_OUT = "\\x1b[2J\\x9b1mred\\x07\\u202e"


def test_control_characters_of_messages_do_not_reach_the_terminal(capsys):
    """Clients choose names, keys and properties, which administrators list."""
    print_rows(("Key",), [(HOSTILE + "\nrow",), ([HOSTILE],)], as_json=False, title=HOSTILE)
    title, _, first, second = capsys.readouterr().out.splitlines()
    assert (title, first, second) == (WRITTEN_OUT, WRITTEN_OUT + "\\nrow", WRITTEN_OUT)
    print_facts({HOSTILE: f"{HOSTILE}\nnext"}, as_json=False)
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == [WRITTEN_OUT, WRITTEN_OUT]
    assert second == " " * (len(WRITTEN_OUT) + 2) + "next"
    print_error(ServerError(HOSTILE))
    print_notes([HOSTILE])
    error, note = capsys.readouterr().err.splitlines()
    assert WRITTEN_OUT in error
    assert note == f"cometmq: {WRITTEN_OUT}"
    print_rows(("Key",), [(HOSTILE,)], as_json=True)
    out = capsys.readouterr().out
    assert json.loads(out) == [{"key": HOSTILE}]
    assert not set("\x1b\x9b\x07") & set(out)


def test_mqadmin_prints_no_control_characters(capsys):
    """Whoever reaches a name server chooses the names in the routes."""
    evil = "T\x1b]0;title\x07\x9b2J\u2028\u200f\x7f"
    columns = [Column("name", "#Name", "%-20s"), Column("text", "#Text", "%s")]
    table(columns, [(f"{evil}\nfaked", evil)]).print(as_json=False)
    with pytest.raises(typer.Exit):
        Reply(f"deleted {evil}", {}, failures({evil: ServerError(evil)})).print(as_json=False)
    note_damage(evil)
    DAMAGES.clear()
    say(msgspec.json.encode([evil]))
    said = capsys.readouterr()
    lines = (said.out + said.err).split("\n")
    assert len(lines) == 6 + 1
    assert all(it.isprintable() for it in lines)
    assert json.loads(lines[3]) == [evil]
