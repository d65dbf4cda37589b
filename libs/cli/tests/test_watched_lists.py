# SPDX-License-Identifier: Apache-2.0
"""`--watch` on every list."""

import json

import pytest

from cometmq.cli import watching
from cometmq.cli.lazy import load_command
from cometmq.cli.main import COMMANDS


class EndOfTest(Exception):
    pass


LISTS = [("topic", "list"), ("group", "list"), ("cluster",), ("dlq", "list"), ("txn", "list")]


@pytest.mark.parametrize("path", [*LISTS, ("lag",)])
def test_every_list_can_be_watched(path):
    command = load_command(path[0], COMMANDS[path[0]])
    for name in path[1:]:
        command = command.commands[name]
    assert "--watch" in {option for param in command.params for option in param.opts}


@pytest.mark.parametrize("path", LISTS)
def test_a_watched_list_prints_a_document_in_each_round(ask, capfdbinary, monkeypatch, path):
    rounds = []

    def pause(waiting):
        waiting.close()
        rounds.append(waiting)
        if len(rounds) == 2:
            raise EndOfTest

    monkeypatch.setattr(watching, "run", pause)
    with pytest.raises(EndOfTest):
        ask(*path, "--watch", 1, "--json")
    text = capfdbinary.readouterr().out.decode()
    first, end = json.JSONDecoder().raw_decode(text)
    second = json.loads(text[end:])
    assert _lasting(second) == _lasting(first) or path == ("cluster",)


def _lasting(rows):
    """Return the rows without the times to loss, which become shorter between two rounds."""
    return [
        {key: value for key, value in row.items() if not key.startswith("time_to_loss")}
        for row in rows
    ]


def test_a_watched_lag_is_plotted(ask, topic, capfdbinary, monkeypatch):
    group, rounds = f"{topic}_group", []
    assert ask("produce", topic, "a", "b").status == 0
    taken = ask("consume", topic, "-g", group, "--from", "first", "--max", 1, "--timeout", 60)
    assert taken.status == 0

    def pause(waiting):
        waiting.close()
        rounds.append(waiting)
        if len(rounds) == 3:
            raise EndOfTest

    monkeypatch.setattr(watching, "run", pause)
    with pytest.raises(EndOfTest):
        ask("lag", group, "-t", topic, "--watch", 1)
    assert "Lag, 3 looks: ███ 1\n" in capfdbinary.readouterr().out.decode()


def test_the_group_that_is_most_behind_comes_first(ask, topic):
    assert ask("produce", topic, "a", "b", "c").status == 0
    for name, count in (("a", 2), ("b", 1), ("c", 2)):
        read = ("consume", topic, "-g", f"{topic}_{name}", "--from", "first", "--max", count)
        assert ask(*read, "--timeout", 60).status == 0

    def names(*options):
        rows = ask("lag", "-t", topic, *options, "--json").json
        return [row["group"].removeprefix(f"{topic}_") for row in rows]

    assert names() == ["b", "a", "c"]
    assert names("--sort", "group") == ["a", "b", "c"]
    queues = ask("lag", f"{topic}_b", "--sort", "LAG", "--json").json["queues"]
    assert [it["lag"] for it in queues] == sorted((it["lag"] for it in queues), reverse=True)


@pytest.mark.parametrize("words", [("lag",), ("lag", "g"), ("top",), ("top", "groups")])
def test_an_unknown_column_to_sort_by_is_refused(ask, words):
    refused = ask(*words, "--sort", "lags")
    refused.assert_refused(2, "Invalid value: --sort lags: the columns are ")
