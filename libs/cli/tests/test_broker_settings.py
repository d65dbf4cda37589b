# SPDX-License-Identifier: Apache-2.0
"""Settings of running brokers: value, default, source, and where the brokers of a cluster differ"""

import json

import pytest

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.remoting.errors import ServiceNotAvailable

OPTION = "command line --file-reserved-time"


@pytest.fixture(scope="module")
def cluster(running_cluster, tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("settings")) as cluster:
        cluster.start_broker("broker-a", **{"file-reserved-time": "48"})
        cluster.start_broker("broker-b", **{"secret-key": "hush", "access-key": "inner"})
        yield cluster


@pytest.fixture
def run(call, cluster):
    return lambda *args: call(*args, "-n", cluster.namesrv)


def test_the_brokers_of_a_cluster_are_compared(run, cluster):
    shown = run("config", "diff").out.splitlines()
    assert shown[0].split() == ["Setting", "broker-a:0", "broker-b:0"]
    assert ["fileReservedTime", "48", "72"] in [line.split() for line in shown]
    assert "listenPort" not in "".join(shown)
    rows = {it["setting"]: it for it in run("config", "diff", "--json").json}
    assert rows["fileReservedTime"]["cluster"] == "DefaultCluster"
    assert rows["fileReservedTime"]["brokers"] == {
        "broker-a:0": {"value": "48", "default": "72", "source": OPTION},
        "broker-b:0": {"value": "72", "default": "72", "source": "default"},
    }
    assert rows["secretKey"]["brokers"]["broker-b:0"]["value"] == "******"
    assert "hush" not in json.dumps(rows)


def test_settings_are_shown_with_their_defaults_and_sources(run, cluster):
    found = run("config", "show", "broker-a", "--json").json
    assert len(found) > 100
    assert {
        "broker": "broker-a:0", "setting": "fileReservedTime", "value": "48", "default": "72",
        "source": OPTION,
    } in found  # fmt: skip
    changed = run("config", "show", cluster.addresses["broker-a"], "--changed").out
    assert "fileReservedTime" in changed
    assert "flushDiskType" not in changed
    assert run("updateBrokerConfig", "-b", cluster.addresses["broker-b"], "-k", "deleteWhen", "-v",
               "05").status == 0  # fmt: skip
    assert "changed while running" in run("config", "show", "broker-b:0", "--changed").out


def test_an_unknown_broker_is_named_with_those_that_exist(run):
    done = run("config", "show", "broker-q")
    assert done.status == 2
    assert done.err.startswith(
        "cometmq: there is no broker broker-q; the brokers are: broker-a:0, broker-b:0"
    )
    assert run("config", "diff", "-c", "Other").err.startswith("cometmq: there is no cluster Other")


@pytest.mark.parametrize("verb", [["show", "--changed"], ["show", "--json"], ["diff"]])
def test_brokers_that_refuse_have_not_told_their_settings(run, monkeypatch, verb):
    async def refuse(_):
        raise ServiceNotAvailable("it is starting")

    monkeypatch.setattr(BrokerAdmin, "settings", refuse)
    done = run("config", *verb)
    done.assert_named("no broker has answered with its settings")
    done.assert_named("broker broker-b (")
    assert done.out == ""


def test_one_broker_differs_from_none(ask):
    done = ask("config", "diff")
    assert (done.status, done.out) == (0, "")
    assert "has one broker that tells its settings" in done.err
    assert "cometmq config show --changed" in done.err
    assert ask("config", "diff", "--json").json == []


def test_a_suite_names_the_options_that_decide_its_settings(ask):
    rows = {it["setting"]: it for it in ask("config", "show", "--json").json}
    assert rows["brokerName"]["default"] == rows["brokerName"]["value"]
    names = ("adminHttpPort", "haListenPort", "namesrvAddr")
    assert {name: rows[name]["source"] for name in names} == {
        "adminHttpPort": "command line --http-port",
        "haListenPort": "derived from listenPort",
        "namesrvAddr": "command line --namesrv-port",
    }
    changed = ask("config", "show", "--changed", "--json").json
    assert not [it for it in changed if it["source"] == "default"]
