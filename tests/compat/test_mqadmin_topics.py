# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's mqadmin on topics, groups and settings: every answer is checked."""

import pytest

from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.cluster import CLUSTER_NAME, Cluster
from cometmq.peers.dialect import parse

pytestmark = pytest.mark.compat


def test_topic_route_in_both_forms(cluster: Cluster, mqadmin: MqAdmin, topic: str) -> None:
    (queue,) = parse(mqadmin.run("topicRoute", "-t", topic).output)["queueDatas"]
    row = mqadmin.run("topicRoute", "-t", topic, "-l").rows()[0]

    assert queue == {
        "brokerName": cluster.broker_names[0],
        "perm": 6,
        "readQueueNums": 4,
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }
    assert row[:2] == [CLUSTER_NAME, cluster.broker_names[0]]
    assert row[-3:] == ["4", "4", "6"]


def test_a_group_is_created_changed_and_deleted(
    cluster: Cluster, mqadmin: MqAdmin, group: str
) -> None:
    """The commands send codes 200, 201 and 207; without -m and -d, both flags are set to false."""
    address = cluster.broker_addrs[0]

    created = mqadmin.run("updateSubGroup", "-b", address, "-g", group, "-r", "3", "-q", "2")
    assert f"create subscription group to {address} success." in created.output
    assert _group_config(mqadmin, group) == {
        "groupName": group,
        "consumeEnable": "true",
        "consumeFromMinEnable": "false",
        "consumeBroadcastEnable": "false",
        "retryQueueNums": "2",
        "retryMaxTimes": "3",
        "brokerId": "0",
        "whichBrokerWhenConsumeSlowly": "1",
        "notifyConsumerIdsChangedEnable": "true",
    }

    mqadmin.run("updateSubGroup", "-b", address, "-g", group, "-s", "false", "-d", "true")
    config = _group_config(mqadmin, group)
    assert (config["consumeEnable"], config["consumeBroadcastEnable"]) == ("false", "true")

    deleted = mqadmin.run("deleteSubGroup", "-b", address, "-g", group)
    assert f"delete subscription group [{group}] from broker [{address}]" in deleted.output
    assert _group_config(mqadmin, group) == {}


def _group_config(mqadmin: MqAdmin, group: str) -> dict[str, str]:
    output = mqadmin.run("getConsumerConfig", "-g", group).output
    return {
        words[0]: words[2]
        for words in (line.split() for line in output.splitlines())
        if len(words) == 3 and words[1] == "="
    }


def test_broker_config_is_shown_and_changed(cluster: Cluster, mqadmin: MqAdmin) -> None:
    """getBrokerConfig sends code 26, and updateBrokerConfig sends code 25."""
    address = cluster.broker_addrs[0]
    config = _properties(mqadmin.run("getBrokerConfig", "-b", address).output)
    assert config["brokerName"] == cluster.broker_names[0]
    assert config["listenPort"] == address.rpartition(":")[2]
    assert config["storePathRootDir"] == str(cluster.store_dir)
    assert config["messageDelayLevel"].startswith("1s 5s 10s 30s 1m")

    changed = mqadmin.run(
        "updateBrokerConfig", "-b", address, "-k", "waitTimeMillsInSendQueue", "-v", "321"
    )
    assert f"update broker config success, {address}" in changed.output
    config = _properties(mqadmin.run("getBrokerConfig", "-b", address).output)
    assert config["waitTimeMillsInSendQueue"] == "321"


def _properties(output: str) -> dict[str, str]:
    """Parse lines of the form `key = value`."""
    pairs = (line.split("=", 1) for line in output.splitlines() if " = " in line)
    return {key.strip(): value.strip() for key, value in pairs}
