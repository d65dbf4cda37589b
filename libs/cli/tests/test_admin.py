# SPDX-License-Identifier: Apache-2.0
"""`cluster` against a running suite, errors, times and speed."""

import json
import resource
import subprocess
import sys

import pytest

from cometmq.cli.mqadmin.java_text import parsed_moment as moment
from cometmq.client import (
    InvalidArgument,
)
from cometmq.client.admin import AdminClient, ClusterMember
from cometmq.client.admin.broker_consumers import END
from cometmq.client.admin.figures import read_figures
from cometmq.insight.times import parsed, shown
from cometmq.peers.comet import PROGRAM
from cometmq.peers.ports import free_port
from cometmq.remoting.errors import ServerError

COMMAND_CPU_S_MAX = 3.0  # measured: 0.2 s, or 0.4 s without cached byte code


# -- cluster ----------------------------------------------------------------------------------


def test_a_cluster_is_shown_with_roles_and_rates(ask, suite):
    (row,) = ask("cluster", "--json").json
    assert (row["address"], row["role"], row["state"]) == (suite.broker, "master", "ok")
    assert row["version"] == "V4_9_4"
    assert 0 < row["disk_percent"] <= 100
    assert row["messages_today"] >= 0
    head, line = ask("cluster").out.splitlines()
    assert head.split()[:3] == ["Broker", "Role", "Address"]
    assert suite.broker in line
    assert ask("cluster", "--wide").out.split()[:3] == ["Cluster", "Broker", "Id"]


def group_of_copies(*told, silent=()):
    """Return a group with failover as its name server lists it: the id of a slave is 1 higher."""
    return [
        ClusterMember("C", "orders", broker_id, f"10.0.0.{broker_id}:10911", None, ServerError("?"))
        for broker_id in silent
    ] + [
        ClusterMember(
            "C", "orders", broker_id, f"10.0.0.{broker_id}:10911",
            read_figures({"groupBrokerId": str(member), "commitLogMaxOffset": f"{end}000000"}),
            None,
        )
        for broker_id, member, end in told
    ]  # fmt: skip


def test_copies_of_a_group_have_the_ids_of_their_settings(ask, monkeypatch):
    async def members(self, cluster=None):
        return group_of_copies((0, 2, 6), (1, 0, 3), (2, 1, 6))

    monkeypatch.setattr(AdminClient, "members", members)
    lines = ask("cluster").out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["orders:2", "orders:0", "orders:1"]
    assert ["2.9 MiB" in line for line in lines] == [False, True, False]
    rows = ask("cluster", "--json").json
    assert [(it["id"], it["member"]) for it in rows] == [(0, 2), (1, 0), (2, 1)]

    async def some(self, cluster=None):
        return group_of_copies((1, 0, 1), silent=(0, 2))

    monkeypatch.setattr(AdminClient, "members", some)
    out = ask("cluster", "--json").out
    assert [(it["id"], it["member"]) for it in json.loads(out)] == [(0, None), (2, 1), (1, 0)]


# -- errors, times, speed ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status", "line"),
    [
        (("topic", "describe", "Nowhere"), 1, "no broker has the topic Nowhere"),
        (("topic", "route", "Nowhere"), 1, "no broker has the topic Nowhere"),
        (("topic", "create", "a/b"), 2, "the name 'a/b' of a topic contains illegal characters"),
        (("topic", "create", "T", "--perm", "x"), 2, "Invalid value for '--perm': 'x'"),
        (("topic", "create", "T", "-b", "broker-z"), 1, "there is no master broker-z"),
        (("topic", "list", "-c", "Other"), 1, "there is no cluster Other"),
        (("cluster", "-c", "Other"), 1, "there is no cluster Other"),
        (("txn", "list", "-b", "broker-z"), 1, "there is no master broker-z"),
        (("txn", "list", "--until", "then"), 2, "then is not a time"),
        (("dlq", "show", "g", "--since", "then"), 2, "then is not a time"),
        (("dlq", "show", "nobody"), 1, "no broker knows the consumer group nobody: check the"),
        (("dlq", "replay", "nobody", "-y"), 1, "no broker knows the consumer group nobody: check"),
        (("group", "create", "a b"), 2, "the name 'a b' of a group contains illegal characters"),
        (("topic", "delete", "T"), 1, "no broker has the topic T"),
        (("group", "reset", "g", "T", "--to", "last"), 1, "no broker knows the consumer group g"),
        (("group", "clone", "g", "h", "T"), 1, "no broker knows the consumer group g"),
        (("topic", "list", "-n", "h:99999"), 2, "not a name server address: 'h:99999'; "),
        (("topic", "list", "-n", "9876"), 2, "not a name server address: '9876'; "),
        (("group", "delete", "nobody", "-y"), 1, "no broker knows the consumer group nobody"),
        (("lag", "nobody"), 1, "no broker knows the consumer group nobody"),
    ],
)
def test_errors_are_one_line(ask, call, args, status, line):
    (call if "-n" in args else ask)(*args).assert_refused(status, line)


@pytest.mark.parametrize("command", [("topic", "list"), ("group", "list"), ("lag",), ("cluster",)])
def test_a_dead_name_server_is_one_line(call, command):
    port = free_port()
    result = call(*command, "-n", f"127.0.0.1:{port}")
    assert result.status == 1
    assert result.err.startswith("cometmq: no name server answers: ")
    assert f"127.0.0.1:{port}" in result.err
    assert result.err.count("\n") == 1


def test_the_environment_names_the_name_server(call, suite, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", suite.namesrv)
    (row,) = call("cluster", "--json").json
    assert row["address"] == suite.broker


def test_json_does_not_pay_for_tables(suite):
    code = (
        "import sys\n"
        "from cometmq.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "sys.stderr.write(repr('rich' in sys.modules))\n"
    )
    for option, is_loaded in ((["--json"], "False"), ([], "True")):
        command = [sys.executable, "-c", code, "cluster", "-n", suite.namesrv, *option]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == is_loaded


def test_moments_are_read_and_shown():
    assert shown(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert shown(0) is None
    for text in ("2023-11-14T22:13:20.123Z", "2023-11-14T23:13:20.123+01:00", "1700000000123"):
        assert parsed(text, now_ms=5) == 1_700_000_000_123
    assert parsed("2m", now_ms=1_000_000) == 880_000
    with pytest.raises(InvalidArgument, match="soon is not a time"):
        parsed("soon", now_ms=5)
    for text in ("9" * 20, "90d", "1969-12-31T00:00Z"):
        with pytest.raises(InvalidArgument, match="is out of range: give a time from 1970"):
            parsed(text, now_ms=5)


def test_small_numbers_mean_the_first_message_in_mqadmins_commands():
    assert moment("1") == moment("0") == 0
    assert moment("1700000000123") == 1_700_000_000_123
    assert moment("now") == moment("-1") == END


@pytest.mark.load
def test_a_command_starts_quickly(suite):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(PROGRAM), "cluster", "--json", "-n", suite.namesrv]
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert cpu_s < COMMAND_CPU_S_MAX
