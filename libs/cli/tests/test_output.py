# SPDX-License-Identifier: Apache-2.0
"""The same rows are a table for people and JSON for scripts."""

import json

from cometmq.cli.output import print_facts, print_rows

COLUMNS = ("Topic", "Queue id", "Lag", "Ordered")
ROWS = [("T", 0, 1234567, True), ("[red]U[/red]", 1, None, False)]


def test_rows_are_a_table(capsys):
    print_rows(COLUMNS, ROWS, as_json=False, title="Lag")
    title, head, first, second = capsys.readouterr().out.splitlines()
    assert title.strip() == "Lag"
    assert head.split() == ["Topic", "Queue", "id", "Lag", "Ordered"]
    assert first.split() == ["T", "0", "1,234,567", "yes"]
    assert second.split() == ["[red]U[/red]", "1", "-", "no"]


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


def test_facts_are_names_and_values(capsys):
    print_facts({"broker_name": "broker-a", "messages": 1000}, as_json=False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["broker", "name", "broker-a"],
        ["messages", "1,000"],
    ]
    print_facts({"broker_name": "broker-a"}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"broker_name": "broker-a"}
