# SPDX-License-Identifier: Apache-2.0
"""`cometmq`'s commands about topics, brokers, name servers and exports compared with mqadmin's.

Both tools query one cluster in the same way, and their output must contain the same facts.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import Producer
from cometmq.peers.cli import CometCli, heading_of, words_of
from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import CLUSTER_NAME, Cluster
from cometmq.peers.dialect import parse
from cometmq.peers.java import mqadmin_command
from cometmq.peers.processes import Child, wait_until
from cometmq.peers.settled import agreed, wait_for_dispatch, wait_for_offsets
from cometmq.peers.wire import call

pytestmark = pytest.mark.compat

GET_KV_CONFIG = 101
QUERY_NOT_FOUND = 22
DEADLINE_S = 120


@pytest.fixture(scope="session")
def ours(cluster: Cluster) -> CometCli:
    return CometCli(cluster.namesrv_addr)


def properties(output: str) -> dict[str, str]:
    """Parse lines of the form `key = value`."""
    pairs = (line.split("=", 1) for line in output.splitlines() if " = " in line or "=  " in line)
    return {key.strip(): value.strip() for key, value in pairs}


# -- topics -----------------------------------------------------------------------------------


def test_a_topic_is_created_changed_and_deleted(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin, fresh_name: Callable[[str], str]
) -> None:
    """After updateTopic, updateTopicPerm and deleteTopic, the other tool sees the change."""
    address, mine, theirs = cluster.broker_addrs[0], fresh_name("Cli"), fresh_name("Cli")
    options = ["-r", "3", "-w", "2", "-u", "true", "-s", "true"]
    printed = {
        topic: tool.run("updateTopic", "-t", topic, "-b", address, *options).output
        for topic, tool in ((mine, ours), (theirs, mqadmin))
    }
    assert f"create topic to {address} success." in printed[mine]
    assert words_of(printed[mine].replace(mine, "T")) == words_of(
        printed[theirs].replace(theirs, "T")
    )

    def queues(name: str) -> Any:
        """Return the queues of a route, or mqadmin's errors: requests may time out."""
        answer = mqadmin.run("topicRoute", "-t", name)
        return parse(answer.output)["queueDatas"] if answer.output else answer.errors

    (settings,) = agreed(lambda: queues(mine), lambda: queues(theirs))
    assert (settings["readQueueNums"], settings["writeQueueNums"]) == (3, 2)

    text = f"update topic perm from 6 to 4 in {address} success."
    assert text in ours.run("updateTopicPerm", "-t", mine, "-b", address, "-p", "4").output
    assert text in mqadmin.run("updateTopicPerm", "-t", theirs, "-b", address, "-p", "4").output
    assert ours.run("topicRoute", "-t", theirs).json["queueDatas"][0]["perm"] == 4

    gone = ours.run("deleteTopic", "-t", mine, "-c", CLUSTER_NAME).output.replace(mine, "T")
    also = mqadmin.run("deleteTopic", "-t", theirs, "-c", CLUSTER_NAME).output
    assert gone == also.replace(theirs, "T")
    assert not {mine, theirs} & {row[0] for row in ours.run("topicList").rows()}


def test_an_ordered_topic_is_kept_by_the_name_servers(
    ours: CometCli, mqadmin: MqAdmin, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("CliOrder")
    created = ours.run("updateTopic", "-t", topic, "-c", CLUSTER_NAME, "-o", "true", "-w", "5")
    assert "set cluster orderConf. isOrder=true, orderConf=[broker-a:5]" in created.output

    def order(tool: CometCli | MqAdmin, *words: str) -> str:
        return tool.run("updateOrderConf", "-t", topic, "-m", *words).output.strip()

    about = f"topic=[{topic}]"
    for tool in (ours, mqadmin):
        assert order(tool, "get") == f"get orderConf success. {about}, orderConf=[broker-a:5]"
    for tool, other in ((ours, mqadmin), (mqadmin, ours)):
        put = order(tool, "put", "-v", "broker-a:7")
        assert put == f"update orderConf success. {about}, orderConf=[broker-a:7]"
        assert "[broker-a:7]" in order(other, "get")
        assert order(tool, "delete") == f"delete orderConf success. {about}"


def test_routes_read_the_same(ours: CometCli, mqadmin: MqAdmin, topic: str) -> None:
    mine, theirs = ours.run("topicRoute", "-t", topic), mqadmin.run("topicRoute", "-t", topic)
    assert mine.json == parse(theirs.output)

    listed = [tool.run("topicRoute", "-t", topic, "-l").output for tool in (ours, mqadmin)]
    assert listed[0].split() == listed[1].split()


def test_the_state_of_queues_reads_the_same(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin, java: ClientProgram, topic: str
) -> None:
    """topicStatus shows the time of the last message to the millisecond."""
    java.run("send", namesrv=cluster.namesrv_addr, topic=topic, count=10)
    wait_for_dispatch(cluster)
    mine, theirs = ours.run("topicStatus", "-t", topic), mqadmin.run("topicStatus", "-t", topic)

    assert [heading_of(it.output) for it in (mine, theirs)] == [heading_of(theirs.output)] * 2
    assert mine.rows() == theirs.rows()
    assert (
        sum(row["max_offset"] for row in ours.run("topicStatus", "-t", topic, "--json").json) == 10
    )


def test_topics_are_listed_the_same(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin, java: ClientProgram, topic: str, group: str
) -> None:
    server = {"namesrv": cluster.namesrv_addr, "topic": topic, "group": group}
    java.run("send", namesrv=cluster.namesrv_addr, topic=topic, count=1)
    java.run("consume", count=1, **server)
    wait_for_offsets(cluster, topic, group, 1)

    def rows(tool: CometCli | MqAdmin, *options: str) -> list[list[str]]:
        return sorted(tool.run("topicList", *options).rows())

    assert [topic] in agreed(lambda: rows(ours), lambda: rows(mqadmin))
    with_groups = agreed(lambda: rows(ours, "-c"), lambda: rows(mqadmin, "-c"))
    assert [CLUSTER_NAME, topic, group] in with_groups
    mine, theirs = ours.run("topicList", "-c"), mqadmin.run("topicList", "-c")
    assert heading_of(mine.output) == heading_of(theirs.output)
    own = {"TBW102", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", CLUSTER_NAME}
    assert own <= {row[0] for row in rows(mqadmin)}
    for tool in (ours, mqadmin):
        assert tool.run("topicClusterList", "-t", topic).output.split() == [CLUSTER_NAME]


def test_queues_are_shared_the_same(ours: CometCli, mqadmin: MqAdmin, topic: str) -> None:
    """allocateMQ gives each member the same number of queues; Java leaves members unsorted."""
    arguments = ("allocateMQ", "-t", topic, "-i", "a,b,c")
    mine, theirs = (json.loads(tool.run(*arguments).output) for tool in (ours, mqadmin))

    def counts(found: Any) -> dict[str, int]:
        return {member: len(queues) for member, queues in found["result"].items()}

    assert counts(mine) == counts(theirs) == {"a": 2, "b": 1, "c": 1}
    assert [queue["queueId"] for queue in mine["result"]["a"]] == [0, 1]


# -- brokers ----------------------------------------------------------------------------------


def test_settings_of_brokers_read_the_same_and_are_changed(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin
) -> None:
    address = cluster.broker_addrs[0]
    for target in (("-b", address), ("-c", CLUSTER_NAME)):
        mine = ours.run("getBrokerConfig", *target).output
        theirs = mqadmin.run("getBrokerConfig", *target).output
        assert mine.splitlines()[0] == theirs.splitlines()[0]
        assert properties(mine) == properties(theirs)

    changed = ours.run("updateBrokerConfig", *target, "-k", "waitTimeMillsInSendQueue", "-v", "322")
    assert changed.output == f"update broker config success, {address}\n"
    config = properties(mqadmin.run("getBrokerConfig", "-b", address).output)
    assert config["waitTimeMillsInSendQueue"] == "322"


def test_figures_of_brokers_have_the_same_names(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin
) -> None:
    """Compares brokerStatus of a broker and of a cluster, but only names, because values change."""
    address = cluster.broker_addrs[0]
    mine = ours.run("brokerStatus", "-b", address).output.splitlines()
    theirs = mqadmin.run("brokerStatus", "-b", address).output.splitlines()
    assert [line.split(":")[0] for line in mine] == [line.split(":")[0] for line in theirs]

    whole = ours.run("brokerStatus", "-c", CLUSTER_NAME).output.splitlines()
    assert whole[0].split()[0] == address
    assert len(whole) == len(mine)


def test_the_list_of_brokers_reads_the_same(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin
) -> None:
    mine, theirs = ours.run("clusterList"), mqadmin.run("clusterList")
    assert heading_of(mine.output) == heading_of(theirs.output)
    told = [CLUSTER_NAME, "broker-a", "0", cluster.broker_addrs[0], "V4_9_4"]
    assert mine.rows()[0][:5] == theirs.rows()[0][:5] == told
    assert len(mine.rows()[0]) == len(theirs.rows()[0])

    mine, theirs = ours.run("clusterList", "-m"), mqadmin.run("clusterList", "-m")
    assert heading_of(mine.output) == heading_of(theirs.output)
    assert mine.rows()[0][:4] == theirs.rows()[0][:4]


def test_progress_of_all_groups_reads_the_same(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin, java: ClientProgram, topic: str, group: str
) -> None:
    """brokerConsumeStats shows the same rows for a group that has consumed."""
    server = {"namesrv": cluster.namesrv_addr, "topic": topic, "group": group}
    java.run("send", namesrv=cluster.namesrv_addr, topic=topic, count=9)
    java.run("consume", count=9, **server)
    arguments = ("brokerConsumeStats", "-b", cluster.broker_addrs[0])

    def rows(tool: CometCli | MqAdmin) -> list[list[str]]:
        return sorted(row for row in tool.run(*arguments).rows() if row[:2] == [topic, group])

    wait_for_offsets(cluster, topic, group, 9)
    assert sum(int(row[5]) for row in rows(mqadmin)) == 9
    assert rows(ours) == rows(mqadmin)
    mine, theirs = ours.run(*arguments).output, mqadmin.run(*arguments).output
    assert heading_of(mine) == heading_of(theirs)

    def of_all_groups(tool: CometCli | MqAdmin) -> str:
        return tool.run(*arguments).output.splitlines()[-1]

    assert "Diff Total" in agreed(lambda: of_all_groups(ours), lambda: of_all_groups(mqadmin))
    assert ours.run(*arguments, "-l", "1000000").rows()[:-1] == []


async def test_producers_read_the_same(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin, group: str
) -> None:
    """Compares every member of every group; only the last heartbeat differs."""

    def lines(tool: CometCli | MqAdmin) -> list[str]:
        output = tool.run("producer", "-b", cluster.broker_addrs[0]).output
        return sorted(line.rpartition(", ")[0] for line in output.splitlines())

    async with Producer(group, cluster.namesrv_addr):
        # A tool that takes longer than a second becomes a producer itself.
        told = await asyncio.to_thread(agreed, lambda: lines(ours), lambda: lines(mqadmin))

    assert any(line.startswith(f"producer group ({group}) instance : clientId=") for line in told)


@pytest.mark.parametrize(
    "command", ["cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"]
)
def test_expired_data_is_cleaned(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin, command: str
) -> None:
    for target in (("-b", cluster.broker_addrs[0]), ("-c", CLUSTER_NAME), ()):
        assert mqadmin.run(command, *target).output.strip() == "success"
        assert ours.run(command, *target).output.strip() == "success"


# -- sending ----------------------------------------------------------------------------------


def test_a_message_is_sent(cluster: Cluster, ours: CometCli, mqadmin: MqAdmin, topic: str) -> None:
    options = ("-t", topic, "-p", "grün", "-k", "cli", "-c", "TagA", "-b", "broker-a", "-i", "2")
    mine, theirs = ours.run("sendMessage", *options), mqadmin.run("sendMessage", *options)

    assert heading_of(mine.output) == heading_of(theirs.output)
    assert mine.rows()[0][:3] == theirs.rows()[0][:3] == ["broker-a", "2", "SEND_OK"]
    wait_for_dispatch(cluster)
    found = mqadmin.run("queryMsgByKey", "-t", topic, "-k", "cli").output
    assert mine.rows()[0][3] in found
    assert ours.run("sendMessage", "-t", topic, "-p", "x", "-i", "2").status == 2


def test_sending_is_timed(ours: CometCli, mqadmin: MqAdmin, topic: str) -> None:
    options = ("-t", topic, "-a", "6", "-s", "64")
    mine, theirs = ours.run("checkMsgSendRT", *options), mqadmin.run("checkMsgSendRT", *options)
    assert heading_of(mine.output) == heading_of(theirs.output)
    assert [row[:3] for row in mine.rows()[:-1]] == [row[:3] for row in theirs.rows()[:-1]]
    assert mine.rows()[-1][:2] == theirs.rows()[-1][:2] == ["Avg", "RT:"]

    pattern = (
        r"rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK, msgId=\w{32}, offsetMsgId=\w{32}, "
        r"messageQueue=MessageQueue \[topic=broker-a, brokerName=broker-a, queueId=0\], "
        r"queueOffset=\d+\]"
    )
    for tool in (ours, mqadmin):
        lines = tool.run("sendMsgStatus", "-b", "broker-a", "-c", "3").output.splitlines()
        assert len(lines) == 3
        assert all(re.fullmatch(pattern, line) for line in lines)


def test_all_brokers_are_timed_again_and_again(
    cluster: Cluster, ours: CometCli, tmp_path: Path
) -> None:
    """clusterRT runs until it is stopped, like mqadmin's."""
    options = ("clusterRT", "-a", "5", "-i", "1", "-c", CLUSTER_NAME)
    mine = _rounds(ours.command(*options), tmp_path / "mine")
    theirs = _rounds(mqadmin_command(options, cluster.namesrv_addr), tmp_path / "theirs")

    assert heading_of(mine) == heading_of(theirs)
    mine_row, their_row = (
        next(row for row in words_of(text) if row[0] == CLUSTER_NAME) for text in (mine, theirs)
    )
    assert mine_row[:2] + mine_row[3:] == their_row[:2] + their_row[3:]
    assert mine_row[3:] == ["5", "0"]


def _rounds(command: list[str], log_path: Path) -> str:
    """Return a tool's output once it has timed the cluster twice."""
    child = Child("clusterRT", command, log_path=log_path)
    try:
        child.wait_until(lambda: child.log().count(CLUSTER_NAME) >= 2, DEADLINE_S, "rounds")
        return child.log()
    finally:
        child.stop(DEADLINE_S)


# -- name servers -----------------------------------------------------------------------------


def test_values_of_name_servers(cluster: Cluster, ours: CometCli, mqadmin: MqAdmin) -> None:
    names = {"namespace": "CliSpace", "key": "colour"}
    options = ("-s", "CliSpace", "-k", "colour")
    for tool in (ours, mqadmin):
        put = tool.run("updateKvConfig", *options, "-v", "grün 绿")
        assert put.output == "create or update kv config to namespace success.\n"
        answer = call(cluster.namesrv_addr, GET_KV_CONFIG, names)
        assert (answer.code, answer.fields["value"]) == (0, "grün 绿")
        deleted = tool.run("deleteKvConfig", *options)
        assert deleted.output == "delete kv config from namespace success.\n"
        assert call(cluster.namesrv_addr, GET_KV_CONFIG, names).code == QUERY_NOT_FOUND


def test_settings_of_name_servers(ours: CometCli, mqadmin: MqAdmin) -> None:
    mine, theirs = ours.run("getNamesrvConfig").output, mqadmin.run("getNamesrvConfig").output
    assert mine.splitlines()[0] == theirs.splitlines()[0]
    assert properties(mine) == properties(theirs)

    changed = ours.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true").output
    also = mqadmin.run("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false").output
    assert changed.splitlines()[0].startswith("update name server config success!")
    assert changed.splitlines()[1:] == ["orderMessageEnable : true"]
    assert also.splitlines()[1:] == ["orderMessageEnable : false"]


@pytest.fixture
def writable(cluster: Cluster, mqadmin: MqAdmin) -> Iterator[str]:
    """Yield the broker's name; restore its write permission afterwards."""
    yield cluster.broker_names[0]
    mqadmin.run("addWritePerm", "-b", cluster.broker_names[0])


def test_write_permission_is_wiped_and_added(
    ours: CometCli, mqadmin: MqAdmin, topic: str, writable: str
) -> None:
    def perm() -> int:
        return int(ours.run("topicRoute", "-t", topic).json["queueDatas"][0]["perm"])

    theirs = mqadmin.run("wipeWritePerm", "-b", writable).output
    assert f"wipe write perm of broker[{writable}] in name server[" in theirs
    added = mqadmin.run("addWritePerm", "-b", writable).output
    assert ours.run("wipeWritePerm", "-b", writable).output == theirs
    assert perm() == 4
    assert ours.run("addWritePerm", "-b", writable).output == added
    assert perm() == 6


# -- exports, statistics ----------------------------------------------------------------------


def exported(tool: CometCli | MqAdmin, command: str, folder: Path, *options: str) -> Any:
    """Export to a folder; return the only document written."""
    output = tool.run(command, "-c", CLUSTER_NAME, "-f", str(folder), *options).output
    (path,) = folder.iterdir()
    assert output.strip() == f"export {path} success"
    return json.loads(path.read_text())


def test_topics_and_groups_are_exported_the_same(
    ours: CometCli, mqadmin: MqAdmin, topic: str, tmp_path: Path
) -> None:
    """exportMetadata exports everything, only topics, only groups, or special topics as well."""
    for number, options in enumerate([(), ("-t",), ("-g",), ("-s",)]):
        mine = exported(ours, "exportMetadata", tmp_path / f"mine{number}", *options)
        theirs = exported(mqadmin, "exportMetadata", tmp_path / f"theirs{number}", *options)
        assert mine.pop("exportTime") >= theirs.pop("exportTime") - DEADLINE_S * 1000
        assert mine == theirs
        assert ("topicConfigTable" in mine) == (options != ("-g",))
        assert topic in mine.get("topicConfigTable", {topic})


def test_settings_are_exported_the_same(ours: CometCli, mqadmin: MqAdmin, tmp_path: Path) -> None:
    mine = exported(ours, "exportConfigs", tmp_path / "mine")
    assert mine == exported(mqadmin, "exportConfigs", tmp_path / "theirs")
    assert mine["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 1, "slaveBrokerSize": 0}


def test_figures_are_exported_the_same(ours: CometCli, mqadmin: MqAdmin, tmp_path: Path) -> None:
    """exportMetrics writes the same names, and the same values except for volatile figures."""
    mine = exported(ours, "exportMetrics", tmp_path / "mine")
    theirs = exported(mqadmin, "exportMetrics", tmp_path / "theirs")

    def shape(tree: Any) -> Any:
        return {key: shape(tree[key]) for key in sorted(tree)} if isinstance(tree, dict) else ...

    assert shape(mine) == shape(theirs)
    for key in ("runtimeEnv", "runtimeVersion"):
        assert mine["evaluateReport"]["broker-a"][key] == theirs["evaluateReport"]["broker-a"][key]
    quotas = [it["evaluateReport"]["broker-a"]["runtimeQuota"] for it in (mine, theirs)]
    for key in ("topicSize", "groupSize"):
        assert quotas[0][key] == quotas[1][key]


def test_statistics_read_the_same(
    cluster: Cluster, ours: CometCli, mqadmin: MqAdmin, java: ClientProgram, topic: str, group: str
) -> None:
    """Compares statsAll with and without a group, but only counts, because rates change.

    The counts cover the last minute, so the consumer starts before the messages are sent.
    """
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    with java.start("consume", group=group, count=1_000, **server) as member:
        member.wait_for("started")
        java.run("send", count=7, **server)
        member.wait_for("received", 7)
        wait_for_offsets(cluster, topic, group, 7)

    def row(tool: CometCli | MqAdmin) -> list[str]:
        (found,) = tool.run("statsAll", "-t", topic).rows()
        return found

    def counts(tool: CometCli | MqAdmin) -> list[str]:
        found = row(tool)
        return found[:3] + found[5:]

    expected = [topic, group, "0", "7", "7"]
    wait_until(
        lambda: counts(mqadmin) == counts(ours) == expected, DEADLINE_S, "statistics of a minute"
    )
    assert heading_of(ours.run("statsAll", "-a").output) == heading_of(
        mqadmin.run("statsAll", "-a").output
    )
    idle = ours.run("statsAll", "-t", "BenchmarkTest").rows()
    assert idle == mqadmin.run("statsAll", "-t", "BenchmarkTest").rows()
    assert idle[0][-1] == "NO_CONSUMER"


# -- failures ----------------------------------------------------------------------------------


def test_a_failure_prints_one_line_and_sets_the_status(ours: CometCli) -> None:
    """mqadmin prints a stack trace and exits with 0."""
    for arguments, line in (
        (("topicStatus", "-t", "NoSuchTopic"), "cometmq: no broker has the topic NoSuchTopic"),
        (("getBrokerConfig", "-b", "127.0.0.1:1"), "cometmq: 127.0.0.1:1: no connection to"),
    ):
        done = ours.run(*arguments)
        assert (done.status, done.output) == (1, "")
        assert done.errors.startswith(line)
        assert done.errors.count("\n") == 1
