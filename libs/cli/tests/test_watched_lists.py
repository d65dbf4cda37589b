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
    assert json.loads(text[end:]) == first or path == ("cluster",)


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
