# SPDX-License-Identifier: Apache-2.0
"""`cluster` shows what keeps a broker from being healthy."""

import json

import pytest

from cometmq.cli.verbs import brokers
from cometmq.client.admin import ClusterMember
from cometmq.client.admin.figures import read_figures

UNLISTED = "not registered with 10.0.0.9:9876: limit reached"


@pytest.mark.parametrize(
    ("fact", "value", "state", "line"),
    [
        ("accountsMisspelt", "/a.yml", "ok", "does not know keys or words of its account file /a"),
        ("accountsBroken", "/a.yml", "account file broken: /a.yml", "cannot use its account file"),
        ("routesMissing", UNLISTED, UNLISTED, f"is {UNLISTED}: clients that"),
        ("electorMissing", "true", "no elector", ""),
        ("slaveMissing", "lost", "no second copy: slave lost", "is a SYNC_MASTER, but its slave"),
    ],
)
def test_a_fault_is_named(call, monkeypatch, fact, value, state, line):
    member = ClusterMember("c", "broker-a", 0, "127.0.0.1:1", read_figures({fact: value}), None)
    monkeypatch.setattr(brokers, "ask", lambda *_: ([member], {}))
    shown = call("cluster", "--json")
    assert [row["state"] for row in json.loads(shown.out)] == [state]
    assert shown.status == (state != "ok")
    assert f"broker broker-a (127.0.0.1:1){line and f' {line}'}" in shown.err
