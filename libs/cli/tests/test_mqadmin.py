# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands for topics, brokers, name servers and exports, against a running suite.

tests/compat compares their text output with mqadmin's; this file covers JSON output and refusals.
"""

import json

import pytest

from cometmq.cli.mqadmin.group_settings import BROKER, NAMESRV, refuse_unknown
from cometmq.client.admin.broker import parse_settings
from cometmq.peers.comet import PROGRAM
from cometmq.peers.paths import ROOT
from cometmq.peers.processes import Child

CLUSTER = "DefaultCluster"


@pytest.fixture
def name(suite, ask):
    (member,) = ask("clusterList", "--json").json
    return member["broker"]


# -- topics -----------------------------------------------------------------------------------


def test_topics_are_created_changed_and_deleted(ask, suite):
    made = ask("updateTopic", "-t", "MqA", "-b", suite.broker, "-r", 3, "-w", 2, "--json").json
    assert made == {"topic": "MqA", "brokers": [suite.broker], "order_config": None}
    changed = ask("updateTopicPerm", "-topic", "MqA", "-c", CLUSTER, "-p", 4, "--json").json
    assert changed == [{"broker": suite.broker, "perm": 4, "old_perm": 6}]
    (queue,) = ask("topicRoute", "-t", "MqA", "--json").json["queueDatas"]
    assert (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) == (3, 2, 4)
    assert "MqA" in ask("topicList", "--json").json
    assert ask("topicClusterList", "-t", "MqA", "--json").json == [CLUSTER]
    gone = ask("deleteTopic", "-t", "MqA", "-c", CLUSTER, "--json").json
    assert gone == {"topic": "MqA", "cluster": CLUSTER}
    assert "MqA" not in ask("topicList", "--json").json


def test_ordered_topics_are_known_to_the_name_servers(ask, suite, name):
    made = ask("updateTopic", "-t", "MqO", "-b", suite.broker, "-o", "true", "-w", 5, "--json").json
    assert made["order_config"] == f"{name}:5"
    got = ask("updateOrderConf", "-t", "MqO", "-m", "get", "--json").json
    assert got == {"topic": "MqO", "order_config": f"{name}:5"}
    assert "orderConf=[a:1]" in ask("updateOrderConf", "-t", "MqO", "-m", "put", "-v", "a:1").out
    assert ask("updateOrderConf", "-t", "MqO", "-m", "delete").status == 0
    assert "orderConf=[null]" in ask("updateOrderConf", "-t", "MqO", "-m", "get").out
    ask("updateOrderConf", "-t", "MqO", "-m", "put").assert_refused(2, "please set orderConf")


def test_queues_are_described_and_shared(ask, topic, name):
    ask("sendMessage", "-t", topic, "-p", "x", "-b", name, "-i", 1)
    first, second = ask("topicStatus", "-t", topic, "--json").json
    assert (first["queue"], first["max_offset"], first["last_updated"]) == (0, 0, None)
    assert (second["max_offset"], second["last_updated"][-1]) == (1, "Z")
    shares = ask("allocateMQ", "-t", topic, "-i", "a,b", "--json").json["result"]
    assert [[queue["queueId"] for queue in share] for share in shares.values()] == [[0], [1]]


def test_topics_are_listed_with_their_groups(ask, topic):
    ask("consume", topic, "-g", "MqReaders", "--from", "first", "--max", 1, "--timeout", 1)
    rows = ask("topicList", "-c", "--json").json
    (row,) = [row for row in rows if row["topic"] == topic]
    assert row["cluster"] == CLUSTER


@pytest.mark.parametrize(
    ("args", "status", "line"),
    [
        (("updateTopic", "-t", "X"), 2, "the target is missing: give -c with the name"),
        (
            ("updateTopic", "-t", "a b", "-c", CLUSTER),
            2,
            "the name 'a b' of a topic contains",
        ),
        (("updateTopic", "-t", "X", "-c", "Nowhere"), 1, "there is no cluster Nowhere"),
        (("updateTopicPerm", "-t", "NoTopic", "-c", CLUSTER, "-p", 4), 1, "127.0.0.1:"),
        (("topicRoute", "-t", "NoTopic"), 1, "no broker has the topic NoTopic"),
        (("topicStatus", "-t", "NoTopic"), 1, "no broker has the topic NoTopic"),
        (("deleteTopic", "-t", "X", "-c", "Nowhere"), 1, "there is no cluster Nowhere"),
        (("getBrokerConfig", "-b", "127.0.0.1:1"), 1, "127.0.0.1:1: no connection to 127.0.0.1:1"),
        (("sendMessage", "-t", "X", "-p", "x", "-i", 1), 2, "Broker name must be set"),
        (("exportMetadata", "-c", CLUSTER, "-t", "-g"), 2, "give -t or -g, not both"),
        (("exportConfigs", "-c", CLUSTER, "-f", "/dev/null/x"), 2, "cannot write /dev/null/x/"),
    ],
)
def test_errors_are_one_line(ask, args, status, line):
    ask(*args).assert_refused(status, line)


# -- brokers ----------------------------------------------------------------------------------


def test_settings_of_brokers_are_shown_and_changed(ask, suite):
    changed = ask(
        *("updateBrokerConfig", "-b", suite.broker, "-k", "waitTimeMillsInSendQueue"),
        *("-v", "321", "--json"),
    ).json
    assert changed["brokers"] == [suite.broker]
    for target in (("-b", suite.broker), ("-c", CLUSTER)):
        config = ask("getBrokerConfig", *target, "--json").json[suite.broker]
        assert config["waitTimeMillsInSendQueue"] == "321"
    heading = ask("getBrokerConfig", "-c", CLUSTER).out.splitlines()[0]
    assert heading == f"============Master: {suite.broker}============"
    before = ("-k", "waitTimeMillsInSendQueue", "-v", "200")
    assert ask("updateBrokerConfig", "-b", suite.broker, *before).status == 0


def test_an_unknown_setting_needs_force(ask, suite):
    def change(command, key, *args, value="72"):
        return ask(command, "-k", key, "-v", value, *args)

    at = ("-b", suite.broker)
    wrong = change("updateBrokerConfig", "fileReservdTime", *at)
    line = (
        f"{suite.broker} has no setting fileReservdTime; to send it anyway, give --force; "
        "did you mean"
    )
    wrong.assert_refused(2, f"{line} fileReservedTime?")
    assert change("updateBrokerConfig", "fileReservdTime", *at, "--force").status == 0
    assert change("updateBrokerConfig", "fileReservedTime", *at).status == 0
    for value in ("72", "3"):
        changed = change("updateBrokerConfig", "serverSelectorThreads", *at, value=value)
        assert changed.status == 0
    wrong = change("updateNamesrvConfig", "clusterTes")
    wrong.assert_refused(
        2, f"{suite.namesrv} has no setting clusterTes; to send it anyway, give --force"
    )
    for value in ("72", "8"):
        changed = change("updateNamesrvConfig", "serverWorkerThreads", value=value)
        assert changed.status == 0


@pytest.mark.parametrize("kind", [BROKER, NAMESRV])
def test_settings_of_rocketmq_are_known(kind):
    """The commands know RocketMQ's settings even if a server reports none."""
    code = {BROKER: "026-GET_BROKER_CONFIG", NAMESRV: "319-GET_NAMESRV_CONFIG"}[kind]
    lines = (ROOT / "tests/golden/wire" / f"{code}.jsonl").read_text().splitlines()
    texts = [json.loads(line)["response"]["body_text"] for line in lines]
    keys = {key for text in texts for key in parse_settings(text.encode())}
    assert len(keys) > 10
    for key in keys:
        refuse_unknown(key, "here", {}, kind)


def test_brokers_tell_about_themselves(ask, suite, name):
    assert ask("brokerStatus", "-b", suite.broker, "--json").json[suite.broker]["bootTimestamp"]
    lines = ask("brokerStatus", "-c", CLUSTER).out.splitlines()
    assert all(line.startswith(suite.broker) for line in lines)
    (row,) = ask("clusterList", "--json").json
    assert (row["cluster"], row["id"], row["address"]) == (CLUSTER, 0, suite.broker)
    assert row["incoming"].keys() == {"tps", "waiting", "wait_ms"}
    (row,) = ask("clusterList", "-m", "--json").json
    assert row["in_today"] >= 0


def test_the_list_of_brokers_is_printed_again_and_again(suite, tmp_path):
    command = [str(PROGRAM), "clusterList", "-i", "1", "-n", suite.namesrv]
    log = tmp_path / "log"
    child = Child("clusterList", command, log_path=log)
    try:
        child.wait_until(lambda: log.read_text().count("#BID") == 2, 60, "a second list")
    finally:
        assert child.stop(60) == 130


def test_progress_of_groups_and_producers_are_shown(ask, suite, topic):
    found = ask("brokerConsumeStats", "-b", suite.broker, "--json").json
    assert found.keys() == {"queues", "diff_total"}
    assert "Diff Total: " in ask("brokerConsumeStats", "-b", suite.broker).out
    assert isinstance(ask("producer", "-b", suite.broker, "--json").json, dict)


@pytest.mark.parametrize(
    "command", ["cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"]
)
def test_expired_data_is_cleaned(ask, suite, command):
    assert ask(command, "--json").json == {"brokers": [suite.broker]}
    assert ask(command, "-b", suite.broker).out == "success\n"
    ask(command, "-c", "Nowhere").assert_refused(1, "there is no cluster Nowhere")


# -- sending ----------------------------------------------------------------------------------


def test_messages_are_sent(ask, topic, name):
    (sent,) = ask(
        *("sendMessage", "-t", topic, "-p", "grün", "-k", "k1 k2", "-c", "A"),
        *("-b", name, "-i", 1, "--json"),
    ).json
    assert (sent["broker"], sent["queue"], sent["status"]) == (name, 1, "SEND_OK")
    timed = ask("checkMsgSendRT", "-t", topic, "-a", 3, "--json").json
    assert [send["queue"] for send in timed["sends"]] == [0, 1, 0]
    assert timed["avg_rt_ms"] >= 0
    assert ask("checkMsgSendRT", "-t", topic, "-a", 1).out.splitlines()[-1] == "Avg RT: -"
    attempts = ask("sendMsgStatus", "-b", name, "-c", 2, "--json").json
    assert [attempt["status"] for attempt in attempts] == ["SEND_OK", "SEND_OK"]


def test_attempts_that_fail_are_counted(ask, suite, topic):
    ask("updateTopicPerm", "-t", topic, "-c", CLUSTER, "-p", 4)
    done = ask("sendMessage", "-t", topic, "-p", "x")
    assert (done.status, done.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("-a", "5"), "  5  "),
        (("-a", "5", "-p", "true", "-m", "room"), "|room|DefaultCluster|"),
        (("-a", "1"), f"  {'':8}  1  "),  # the first send also connects, so it does not count
        (("-a", "1", "-p", "true"), "|\n"),
        (("-a", "1", "--json"), '"rt_ms": null'),
    ],
)
def test_all_brokers_are_timed_until_stopped(suite, tmp_path, options, part):
    command = [str(PROGRAM), "clusterRT", "-i", "1", *options, "-n", suite.namesrv]
    log = tmp_path / "log"
    child = Child("clusterRT", command, log_path=log)
    try:
        child.wait_until(lambda: log.read_text().count(part) >= 2, 60, "two rounds")
    finally:
        assert child.stop(60) == 130


# -- name servers -----------------------------------------------------------------------------


def test_name_servers_keep_values_and_settings(ask, suite, name):
    put = ask("updateKvConfig", "-s", "MqSpace", "-k", "colour", "-v", "grün", "--json").json
    assert put == {"namespace": "MqSpace", "key": "colour", "value": "grün"}
    assert ask("deleteKvConfig", "-s", "MqSpace", "-k", "colour", "--json").status == 0
    ask("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    config = ask("getNamesrvConfig", "--json").json
    assert config[suite.namesrv]["orderMessageEnable"] == "true"
    ask("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
    (wiped,) = ask("wipeWritePerm", "-b", name, "--json").json
    (added,) = ask("addWritePerm", "-b", name, "--json").json
    assert wiped == added
    assert wiped["name_server"] == suite.namesrv
    assert wiped["topics"] > 0


def test_a_name_server_that_is_gone_does_not_hide_the_others(call, suite, name):
    namesrv = f"127.0.0.1:1;{suite.namesrv}"
    for args in (
        ("getNamesrvConfig",),
        ("wipeWritePerm", "-b", name),
        ("addWritePerm", "-b", name),
    ):
        done = call(*args, "-n", namesrv)
        assert done.status == 1
        assert suite.namesrv in done.out
        assert done.err.startswith("cometmq: 127.0.0.1:1: ")
        assert done.err.count("\n") == 1


# -- access control ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ("updateAclConfig", "-a", "Owner", "-s", "12345678", "-m", "true", "-t", "T=PUB"),
        ("deleteAclConfig", "-a", "Owner"),
        ("updateGlobalWhiteAddr", "-g", "10.*"),
        ("clusterAclConfigVersion",),
        ("getAclConfig",),
    ],
)
def test_a_broker_without_access_control_says_so(ask, suite, args):
    done = ask(*args, "-c", CLUSTER)
    done.assert_refused(1, f"{suite.broker}: ")
    assert "aclEnable" in done.err


# -- exports, statistics ----------------------------------------------------------------------


def test_a_cluster_is_exported(ask, topic, tmp_path, name):
    done = ask("exportMetadata", "-c", CLUSTER, "-f", tmp_path, "--json").json
    assert done == {"file": str(tmp_path / "metadata.json")}
    metadata = json.loads((tmp_path / "metadata.json").read_text())
    assert metadata["topicConfigTable"][topic]["readQueueNums"] == 2
    assert "TBW102" not in metadata["topicConfigTable"]
    assert "TOOLS_CONSUMER" not in metadata["subscriptionGroupTable"]

    for option, file in (("-t", "topic.json"), ("-g", "subscriptionGroup.json")):
        ask("exportMetadata", "-c", CLUSTER, "-f", tmp_path, option)
        found = json.loads((tmp_path / file).read_text())
        assert len(found) == 2
        assert found["exportTime"] > 0

    ask("exportConfigs", "-c", CLUSTER, "-f", tmp_path)
    assert json.loads((tmp_path / "configs.json").read_text())["brokerConfigs"][name]["brokerId"]
    ask("exportMetrics", "-c", CLUSTER, "-f", tmp_path)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["evaluateReport"][name]["runtimeQuota"]["topicSize"] > 0
    assert metrics["totalData"]["totalTps"].keys() == {
        *("totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps")
    }


def test_statistics_are_shown_by_topic(ask, topic):
    (row,) = ask("statsAll", "-t", topic, "--json").json
    assert (row["topic"], row["group"], row["accumulation"], row["out_24h"]) == (topic, "", 0, None)
    assert ask("statsAll", "-t", topic).out.split()[-1] == "NO_CONSUMER"
    assert ask("statsAll", "-t", "NoTopic", "--json").json == []
