# SPDX-License-Identifier: Apache-2.0
"""Behaviour that all mqadmin commands share, tested without a server."""

import asyncio
import json
from typing import Any

import pytest
import typer

from cometmq.cli.mqadmin.frame import (
    Column,
    Reply,
    Target,
    ask_each,
    local_time,
    table,
    time_column,
)
from cometmq.remoting.errors import ConnectFailed, RequestTimeout

COLUMNS = (
    Column("broker", "#Broker Name", "%-6.4s  "),
    Column("queue", "#QID", "%-4d  "),
    Column("tps", "#TPS", "%8.2f ", data=round),
    time_column("last", "#Last", with_ms=True),
)


@pytest.fixture
def zone(monkeypatch):
    """Set the local time zone to one that differs from UTC."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    __import__("time").tzset()
    yield
    monkeypatch.undo()
    __import__("time").tzset()


def test_a_table_reads_as_mqadmins_for_people(zone, capsys):
    rows = [("broker-a", 7, 1.005, 1_700_000_000_123), (None,) * 4]
    table(COLUMNS, rows).print(as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "#Broker Name  #QID      #TPS #Last",
        "brok    7         1.00 2023-11-15 06:13:20,123",
        "",
    ]


def test_a_table_is_a_list_of_objects_for_scripts(capsys):
    table(COLUMNS, [("broker-a", 7, 1.5, 1_700_000_000_123)]).print(as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"broker": "broker-a", "queue": 7, "tps": 2, "last": "2023-11-14T22:13:20.123Z"}
    ]


def test_a_heading_can_be_left_out(capsys):
    table(COLUMNS[:2], [("b", 1)], has_heading=False).print(as_json=False)
    assert capsys.readouterr().out == "b       1\n"


def test_an_unknown_moment_is_blank(zone):
    assert local_time(0) == ""
    assert local_time(1_700_000_000_123) == "2023-11-15 06:13:20"


def test_the_result_is_printed_once(capsys):
    Reply("done", {"topic": "T"}).print(as_json=False)
    Reply("", {}).print(as_json=False)
    assert capsys.readouterr().out == "done\n"
    Reply("done", {"topic": "T"}).print(as_json=True)
    assert json.loads(capsys.readouterr().out) == {"topic": "T"}


@pytest.mark.parametrize(
    ("broker", "cluster", "text"),
    [
        (None, None, "the target is missing: give -c with the name of a cluster, "),
        ("b", "c", "there are two targets: give either -b (one broker) or -c "),
    ],
)
def test_a_target_is_a_broker_or_a_cluster(broker, cluster, text, capsys):
    with pytest.raises(typer.Exit) as caught:
        Target(broker=broker, cluster=cluster)
    assert caught.value.exit_code == 2
    assert capsys.readouterr().err.startswith(f"cometmq: {text}")


class Broker:
    def __init__(self, address, error=None):
        self.address = address
        self.error = error

    async def facts(self):
        if self.error is not None:
            raise self.error
        return {"a": "b"}


def test_all_brokers_are_asked_whichever_fail(capsys):
    gone, slow = ConnectFailed("gone"), RequestTimeout("z:1: slow")
    brokers: list[Any] = [Broker("x:1"), Broker("y:1", gone), Broker("z:1", slow)]
    answers, failed = asyncio.run(ask_each(brokers, Broker.facts))
    assert answers == {"x:1": {"a": "b"}}
    with pytest.raises(typer.Exit) as caught:
        Reply(failed=failed).print(as_json=False)
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == "cometmq: y:1: gone\ncometmq: z:1: slow\n"


class Cluster:
    """The answers of an admin client about one master and one slave."""

    def broker(self, address):
        return Broker(address)

    async def masters(self, cluster):
        return {"a": Broker("m:1")}

    async def broker_groups(self, cluster):
        return {"a": {0: Broker("m:1"), 1: Broker("s:1")}}


@pytest.mark.parametrize(
    ("broker", "with_slaves", "asked"),
    [
        (None, False, {"m:1"}),
        (None, True, {"m:1", "s:1"}),
        ("x:1", True, {"x:1"}),
    ],
)
def test_slaves_are_asked_when_a_command_wants_them(broker, with_slaves, asked):
    target = Target(broker=broker, cluster=None if broker else "c")
    admin: Any = Cluster()
    facts: Any = Broker.facts
    answers, _ = asyncio.run(target.ask(admin, facts, with_slaves=with_slaves))
    assert answers.keys() == asked
