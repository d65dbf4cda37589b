# SPDX-License-Identifier: Apache-2.0
"""`cluster` shows what keeps a broker from being healthy."""

import json

from cometmq.cli.verbs import brokers
from cometmq.client.admin import ClusterMember
from cometmq.client.admin.figures import read_figures


def test_an_account_file_with_misspelt_words_is_named(call, monkeypatch):
    figures = read_figures({"accountsMisspelt": "/etc/accounts.yml"})
    member = ClusterMember("c", "broker-a", 0, "127.0.0.1:1", figures, None)
    monkeypatch.setattr(brokers, "ask", lambda *_: ([member], {}))
    shown = call("cluster", "--json")
    assert [row["state"] for row in shown.json] == ["ok"]
    assert shown.err.startswith(
        "cometmq: broker broker-a (127.0.0.1:1) does not know keys or words of its account file"
        " /etc/accounts.yml: unknown rights mean DENY"
    )


def test_a_broker_with_a_broken_account_file_is_not_ok(call, monkeypatch):
    figures = read_figures({"accountsBroken": "/etc/accounts.yml"})
    member = ClusterMember("c", "broker-a", 0, "127.0.0.1:1", figures, None)
    monkeypatch.setattr(brokers, "ask", lambda *_: ([member], {}))
    shown = call("cluster", "--json")
    (row,) = json.loads(shown.out)
    assert row["state"] == "account file broken: /etc/accounts.yml"
    assert shown.status == 1
    assert shown.err.startswith(
        "cometmq: broker broker-a (127.0.0.1:1) cannot use its account file /etc/accounts.yml: it"
    )


def test_a_broker_that_a_name_server_does_not_list_is_not_ok(call, monkeypatch):
    reason = "not registered with 10.0.0.9:9876: limit reached"
    figures = read_figures({"routesMissing": reason})
    member = ClusterMember("c", "broker-a", 0, "127.0.0.1:1", figures, None)
    monkeypatch.setattr(brokers, "ask", lambda *_: ([member], {}))
    shown = call("cluster", "--json")
    (row,) = json.loads(shown.out)
    assert row["state"] == reason
    assert shown.status == 1
    assert shown.err.startswith(f"cometmq: broker broker-a (127.0.0.1:1) is {reason}: clients that")


def test_a_member_of_a_group_without_an_elector_is_a_failure(monkeypatch):
    found: dict[str, str] = {}
    monkeypatch.setattr(brokers, "MISSING", found)
    figures = read_figures({"electorMissing": "true"})
    member = ClusterMember("C", "orders", 0, "10.0.0.1:10911", figures, None)
    brokers._note_faults(member)
    (text,) = found.values()
    assert "no elector looks after broker orders (10.0.0.1:10911)" in text
    assert brokers._state(member, is_read_only=False) == "no elector"


def test_a_sync_master_without_a_slave_is_not_ok(call, monkeypatch):
    figures = read_figures({"slaveMissing": "not connected"})
    member = ClusterMember("c", "broker-a", 0, "127.0.0.1:1", figures, None)
    monkeypatch.setattr(brokers, "ask", lambda *_: ([member], {}))
    shown = call("cluster", "--json")
    (row,) = json.loads(shown.out)
    assert (shown.status, row["state"]) == (1, "no second copy: slave not connected")
    assert shown.err.startswith(
        "cometmq: broker broker-a (127.0.0.1:1) is a SYNC_MASTER, but its slave is not connected:"
    )
