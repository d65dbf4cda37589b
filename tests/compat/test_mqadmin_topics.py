# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's mqadmin on topics, groups and the name server: every answer is checked."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.cluster import CLUSTER_NAME, Cluster
from cometmq.peers.wire import call

pytestmark = pytest.mark.compat

GET_KV_CONFIG = 101
QUERY_NOT_FOUND = 22


def _route_queue(mqadmin: MqAdmin, topic: str) -> dict[str, object]:
    output = mqadmin.run("topicRoute", "-t", topic).output
    # This dialect does not quote integer keys.
    route = json.loads(re.sub(r"([{,])(\d+):", r'\1"\2":', output))
    (queue,) = route["queueDatas"]
    return dict(queue)


def test_cluster_list_shows_the_broker(cluster: Cluster, mqadmin: MqAdmin) -> None:
    (row,) = mqadmin.run("clusterList").rows()

    assert row[:5] == [
        CLUSTER_NAME,
        cluster.broker_names[0],
        "0",
        cluster.broker_addrs[0],
        "V4_9_4",
    ]


def test_cluster_list_with_totals(cluster: Cluster, mqadmin: MqAdmin) -> None:
    (row,) = mqadmin.run("clusterList", "-m").rows()

    assert row[:2] == [CLUSTER_NAME, cluster.broker_names[0]]
    assert all(count.isdigit() for count in row[2:6])


def test_topic_list(mqadmin: MqAdmin, topic: str) -> None:
    listed = {row[0] for row in mqadmin.run("topicList").rows()}
    assert {topic, "TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", CLUSTER_NAME} <= listed

    assert mqadmin.run("topicClusterList", "-t", topic).output.split() == [CLUSTER_NAME]


def test_topic_route_in_both_forms(cluster: Cluster, mqadmin: MqAdmin, topic: str) -> None:
    queue = _route_queue(mqadmin, topic)
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


def test_a_topic_is_created_changed_and_deleted(
    cluster: Cluster, mqadmin: MqAdmin, fresh_name: Callable[[str], str]
) -> None:
    """The commands send codes 17, 105, 215 and 216."""
    topic, address = fresh_name("AdminTopic"), cluster.broker_addrs[0]

    created = mqadmin.run("updateTopic", "-b", address, "-t", topic, "-r", "3", "-w", "2")
    assert f"create topic to {address} success." in created.output
    queue = _route_queue(mqadmin, topic)
    assert (queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]) == (3, 2, 6)

    changed = mqadmin.run("updateTopicPerm", "-b", address, "-t", topic, "-p", "4")
    assert f"update topic perm from 6 to 4 in {address} success." in changed.output
    assert _route_queue(mqadmin, topic)["perm"] == 4

    deleted = mqadmin.run("deleteTopic", "-c", CLUSTER_NAME, "-t", topic)
    assert f"delete topic [{topic}] from NameServer success." in deleted.output
    assert "command failed" in mqadmin.run("topicRoute", "-t", topic).errors
    assert topic not in {row[0] for row in mqadmin.run("topicList").rows()}


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


def test_namesrv_config_is_shown_and_changed(cluster: Cluster, mqadmin: MqAdmin) -> None:
    """getNamesrvConfig sends code 319, and updateNamesrvConfig sends code 318."""
    config = _properties(mqadmin.run("getNamesrvConfig").output)
    assert config["listenPort"] == cluster.namesrv_addr.rpartition(":")[2]
    assert config["orderMessageEnable"] == "false"

    changed = mqadmin.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
    assert "update name server config success!" in changed.output
    config = _properties(mqadmin.run("getNamesrvConfig").output)
    assert config["orderMessageEnable"] == "true"
    mqadmin.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")


def _properties(output: str) -> dict[str, str]:
    """Parse lines of the form `key = value`."""
    pairs = (line.split("=", 1) for line in output.splitlines() if " = " in line)
    return {key.strip(): value.strip() for key, value in pairs}


def test_key_values(cluster: Cluster, mqadmin: MqAdmin) -> None:
    """The commands send codes 100 and 102; a client reads the effect with GET_KV_CONFIG (101)."""
    names = {"namespace": "CompatSpace", "key": "colour"}

    mqadmin.run("updateKvConfig", "-s", "CompatSpace", "-k", "colour", "-v", "grün 绿")
    answer = call(cluster.namesrv_addr, GET_KV_CONFIG, names)
    assert (answer.code, answer.fields["value"]) == (0, "grün 绿")

    mqadmin.run("deleteKvConfig", "-s", "CompatSpace", "-k", "colour")
    assert call(cluster.namesrv_addr, GET_KV_CONFIG, names).code == QUERY_NOT_FOUND


def test_order_configuration(mqadmin: MqAdmin, topic: str) -> None:
    put = mqadmin.run("updateOrderConf", "-t", topic, "-m", "put", "-v", "broker-a:4")
    got = mqadmin.run("updateOrderConf", "-t", topic, "-m", "get")
    deleted = mqadmin.run("updateOrderConf", "-t", topic, "-m", "delete")

    assert f"update orderConf success. topic=[{topic}], orderConf=[broker-a:4]" in put.output
    assert f"get orderConf success. topic=[{topic}], orderConf=[broker-a:4]" in got.output
    assert f"delete orderConf success. topic=[{topic}]" in deleted.output


@contextmanager
def _without_write_permission(mqadmin: MqAdmin, broker: str) -> Iterator[str]:
    """Wipe the write permission and yield the command's output; always restore the permission."""
    try:
        yield mqadmin.run("wipeWritePerm", "-b", broker).output
    finally:
        mqadmin.run("addWritePerm", "-b", broker)


def test_write_permission_is_wiped_and_added(
    cluster: Cluster, mqadmin: MqAdmin, topic: str
) -> None:
    """wipeWritePerm (205) and addWritePerm (327) change the name server's routes."""
    broker = cluster.broker_names[0]
    wiped = f"wipe write perm of broker[{broker}] in name server[{cluster.namesrv_addr}] OK, "

    with _without_write_permission(mqadmin, broker) as output:
        assert wiped in output
        assert int(output.split(wiped)[1].split()[0]) > 0
        assert _route_queue(mqadmin, topic)["perm"] == 4

    assert _route_queue(mqadmin, topic)["perm"] == 6
