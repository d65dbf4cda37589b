# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's mqadmin commands for statistics and maintenance print the same for both brokers."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cometmq.peers.clients.javaclient import MqAdmin
from cometmq.peers.clients.programs import ClientProgram
from cometmq.peers.cluster import CLUSTER_NAME, Cluster
from cometmq.peers.content import Event, create_topic, named, received, sent
from cometmq.peers.dialect import parse
from cometmq.peers.processes import wait_until
from cometmq.peers.settled import wait_for_offsets
from cometmq.peers.wire import Answer, call
from cometmq.runtime.clock import SystemClock

pytestmark = pytest.mark.compat

COUNT = 12
QUEUE_COUNT = 4
TOPIC, GROUP = "StatisticsTopic", "StatisticsGroup"
SAMPLE_TIMEOUT_S = 120.0
HEARTBEAT_MS = 60_000  # twice the heartbeat interval
EXPORTED_KEYS = {  # keys that rocketmq-exporter reads from code 28; a missing one ends its round
    "msgPutTotalTodayNow", "msgGetTotalTodayNow", "msgPutTotalTodayMorning",
    "msgGetTotalTodayMorning", "msgPutTotalYesterdayMorning", "msgGetTotalYesterdayMorning",
    "putMessageDistributeTime", "putTps", "getMissTps", "getTransferedTps", "getTotalTps",
    "getFoundTps", "commitLogDirCapacity", "remainHowManyDataToFlush", "sendThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity", "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize", "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueSize",
    "queryThreadPoolQueueCapacity", "queryThreadPoolQueueHeadWaitTimeMills", "bootTimestamp",
    "runtime", "dispatchMaxBuffer", "brokerVersion", "brokerVersionDesc", "commitLogDiskRatio",
    "consumeQueueDiskRatio", "pageCacheLockTimeMills", "commitLogMinOffset",
    "commitLogMaxOffset", "getMessageEntireTimeMax", "putMessageEntireTimeMax",
    "putMessageTimesTotal", "startAcceptSendRequestTimeStamp", "earliestMessageTimeStamp",
    "remainTransientStoreBufferNumbs", "putMessageAverageSize", "putMessageSizeTotal",
    "dispatchBehindBytes", "putLatency99", "putLatency999",
}  # fmt: skip
VIEW_BROKER_STATS_DATA, QUERY_CONSUME_QUEUE, UNKNOWN_CODE = 315, 321, 3
QUERY_TOPIC_CONSUME_BY_WHO, QUERY_CONSUME_TIME_SPAN, REGISTER_FILTER_SERVER = 300, 303, 301


@dataclass(frozen=True)
class Scene:
    """A topic whose messages a group has consumed, and a member that remains connected."""

    cluster: Cluster
    messages: list[Event]

    @property
    def broker(self) -> str:
        return self.cluster.broker_addrs[0]

    @property
    def counts(self) -> list[int]:
        counts = [0] * QUEUE_COUNT
        for message in self.messages:
            counts[int(message["queue_id"])] += 1
        return counts

    def ask(self, code: int, **fields: str) -> Answer:
        return call(self.broker, code, fields)

    def statistic(self, name: str, key: str) -> dict[str, dict[str, float]]:
        """Return a statistic by period; until it exists, its periods are empty."""
        answer = self.ask(VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key)
        return json.loads(answer.body) if answer.code == 0 else {"statsMinute": {"sum": 0}}

    def wait_for_minute(self, *counters: tuple[str, str]) -> None:
        """Wait until the counters include all messages, which they do for only one minute."""
        wait_until(
            lambda: all(self.statistic(*it)["statsMinute"]["sum"] >= COUNT for it in counters),
            SAMPLE_TIMEOUT_S,
            "statistics of a minute",
        )


@pytest.fixture(scope="module")
def scene(cluster: Cluster, java: ClientProgram) -> Iterator[Scene]:
    create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC, queue_count=QUEUE_COUNT)
    server = {"namesrv": cluster.namesrv_addr, "topic": TOPIC}
    messages = named(java.run("send", count=COUNT, **server), "sent")
    consumed = java.run("consume", group=GROUP, count=COUNT, **server)
    assert received(consumed) == sent(messages)
    wait_for_offsets(cluster, TOPIC, GROUP, COUNT)
    with java.start("consume", group=GROUP, count=10_000, timeout_s=900, **server) as consumer:
        consumer.wait_for("started")
        yield Scene(cluster, messages)


def test_broker_status_has_all_that_exporters_read(mqadmin: MqAdmin, scene: Scene) -> None:
    """brokerStatus (28) contains every key that rocketmq-exporter reads, in its syntax."""
    output = mqadmin.run("brokerStatus", "-b", scene.broker).output
    pairs = (line.split(":", 1) for line in output.splitlines() if ":" in line)
    status = {key.strip(): value.strip() for key, value in pairs}

    assert EXPORTED_KEYS - status.keys() == set()
    assert int(status["putMessageTimesTotal"]) >= COUNT
    assert int(status["putMessageSizeTotal"]) > COUNT * 100
    assert int(status["msgGetTotalTodayNow"]) >= COUNT
    assert re.fullmatch(r"Total : .+ [KMGT]?i?B, Free : .+ [KMGT]?i?B\.",
                        status["commitLogDirCapacity"])  # fmt: skip
    assert re.fullmatch(r"\d+(\.\d+)? [KMGT]?i?B", status["remainHowManyDataToFlush"])
    assert re.fullmatch(r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]", status["runtime"])


def test_consume_stats_of_all_groups(mqadmin: MqAdmin, scene: Scene) -> None:
    """brokerConsumeStats (317) shows a row for each queue of each group, and the total lag."""
    answer = mqadmin.run("brokerConsumeStats", "-b", scene.broker)

    rows = [row for row in answer.rows() if row[0] == TOPIC and row[1] == GROUP]
    assert [row[2] for row in rows] == [scene.cluster.broker_names[0]] * QUEUE_COUNT
    shown = sorted((int(row[3]), int(row[4]), int(row[5]), int(row[6])) for row in rows)
    assert shown == [(number, count, count, 0) for number, count in enumerate(scene.counts)]
    assert re.search(r"Diff Total: \d+", answer.output)


def test_consume_stats_of_ordered_topics(mqadmin: MqAdmin, scene: Scene) -> None:
    """With isOrder, brokerConsumeStats (317) omits the topic, which is not ordered."""
    rows = mqadmin.run("brokerConsumeStats", "-b", scene.broker, "-o", "true").rows()

    assert [row for row in rows if row[0] == TOPIC] == []


def test_stats_of_all_topics(
    cluster: Cluster, java: ClientProgram, mqadmin: MqAdmin, scene: Scene, topic: str, group: str
) -> None:
    """statsAll sends codes 300, 315 and 208; the 24-hour count starts at the first whole hour.

    Rates cover the last minute, so the consumer starts before the messages are sent.
    """
    server = {"namesrv": cluster.namesrv_addr, "topic": topic}
    with java.start("consume", group=group, count=1_000, **server) as member:
        member.wait_for("started")
        java.run("send", count=COUNT, **server)
        member.wait_for("received", COUNT)
        wait_for_offsets(cluster, topic, group, COUNT)
        scene.wait_for_minute(("TOPIC_PUT_NUMS", topic), ("GROUP_GET_NUMS", f"{topic}@{group}"))
        rows = mqadmin.run("statsAll", "-t", topic).rows()

    (row,) = (row for row in rows if row[:2] == [topic, group])
    accumulation, in_tps, out_tps = row[2:5]
    assert accumulation == "0"
    assert float(in_tps) > 0
    assert float(out_tps) > 0


def test_statistics_by_name(java: ClientProgram, scene: Scene, topic: str) -> None:
    """VIEW_BROKER_STATS_DATA (315) returns sums and averages, and refuses unknown names."""
    java.run("send", namesrv=scene.cluster.namesrv_addr, topic=topic, count=COUNT)
    scene.wait_for_minute(("TOPIC_PUT_NUMS", topic), ("BROKER_PUT_NUMS", CLUSTER_NAME))

    data = scene.statistic("TOPIC_PUT_NUMS", topic)
    assert data.keys() == {"statsMinute", "statsHour", "statsDay"}
    assert data["statsMinute"].keys() == {"sum", "tps", "avgpt"}
    assert data["statsMinute"]["avgpt"] == 1.0
    cluster = scene.statistic("BROKER_PUT_NUMS", CLUSTER_NAME)
    assert cluster["statsMinute"]["sum"] >= COUNT
    assert cluster["statsMinute"]["avgpt"] == 0.0
    missing = scene.ask(VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="Nobody")
    assert (missing.code, missing.remark) == (1, "The stats <TOPIC_PUT_NUMS> <Nobody> not exist")


def test_producers(mqadmin: MqAdmin, scene: Scene) -> None:
    """`producer` (328) lists the connected consumer as a producer of its inner group."""
    output = mqadmin.run("producer", "-b", scene.broker).output

    lines = [line for line in output.splitlines() if "CLIENT_INNER_PRODUCER" in line]
    shown = [
        re.fullmatch(
            r"producer group \(CLIENT_INNER_PRODUCER\) instance : clientId=\S+@\S+,"
            r"remoteIP=/127\.0\.0\.1:\d+, language=JAVA, version=401, lastUpdateTimestamp=(\d+)",
            line,
        )
        for line in lines
    ]
    ages_ms = [abs(SystemClock().now_ms() - int(match[1])) for match in shown if match]
    assert ages_ms, lines
    assert max(ages_ms) < HEARTBEAT_MS


def test_consume_queue(mqadmin: MqAdmin, scene: Scene) -> None:
    """QUERY_CONSUME_QUEUE (321) returns the requested entries of a queue."""
    options = ["-t", TOPIC, "-b", scene.broker, "-g", GROUP, "-i", "0", "-c", "2"]
    output = mqadmin.run("queryCq", *options, "-q", "0").output
    answer = scene.ask(
        QUERY_CONSUME_QUEUE, topic=TOPIC, queueId="0", index="0", count="2", consumerGroup=GROUP
    )

    body = parse(answer.body.decode())
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, scene.counts[0])
    assert body["subscriptionData"]["topic"] == TOPIC
    assert all(entry["physicSize"] > 0 and not entry["eval"] for entry in body["queueData"])
    assert len(body["queueData"]) == 2
    assert f'"topic":"{TOPIC}"' in output
    assert "idx: 0" in output
    assert "idx: 1" in output


def test_consume_queue_without_such_an_index(scene: Scene) -> None:
    """An index beyond the queue's end is answered with a remark and no body."""
    answer = scene.ask(QUERY_CONSUME_QUEUE, topic=TOPIC, queueId="0", index="900000", count="2")

    assert (answer.code, answer.remark) == (0, f"Index 900000 of 0@{TOPIC} is not exist!")
    assert not answer.body


def test_topic_status(mqadmin: MqAdmin, scene: Scene) -> None:
    rows = mqadmin.run("topicStatus", "-t", TOPIC).rows()

    assert [(row[0], int(row[1]), int(row[2]), int(row[3])) for row in rows] == [
        (scene.cluster.broker_names[0], number, 0, count)
        for number, count in enumerate(scene.counts)
    ]


def test_the_consumers_of_a_topic(scene: Scene) -> None:
    answer = scene.ask(QUERY_TOPIC_CONSUME_BY_WHO, topic=TOPIC)

    assert (answer.code, json.loads(answer.body)) == (0, {"groupList": [GROUP]})


def test_time_spans(scene: Scene) -> None:
    """Everything is consumed, so QUERY_CONSUME_TIME_SPAN (303) reports no delay."""
    answer = scene.ask(QUERY_CONSUME_TIME_SPAN, topic=TOPIC, group=GROUP)

    spans = parse(answer.body.decode())["consumeTimeSpanSet"]
    assert len(spans) == QUEUE_COUNT
    for span in spans:
        assert span["delayTime"] == 0
        assert span["minTimeStamp"] <= span["consumeTimeStamp"] == span["maxTimeStamp"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}", span["maxTimeStampStr"])


def test_dead_codes(scene: Scene) -> None:
    """The broker still answers code 301, and rejects 22 and 27 as unsupported."""
    answer = scene.ask(REGISTER_FILTER_SERVER, filterServerAddr="127.0.0.1:1")

    assert answer.code == 0
    assert answer.fields == {"brokerName": scene.cluster.broker_names[0], "brokerId": "0"}
    for code in (22, 27):
        refused = scene.ask(code)
        assert (refused.code, refused.remark) == (
            UNKNOWN_CODE,
            f" request type {code} not supported",
        )
