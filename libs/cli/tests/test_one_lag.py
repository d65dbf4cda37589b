# SPDX-License-Identifier: Apache-2.0
"""Metrics, commands, the admin client and reports show the same lag, whatever happened before."""

import asyncio
import json
import re
import signal
import urllib.request
from collections import Counter

import pytest

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.consuming.lag_report import collect
from cometmq.client import ClientOptions, Message, MessageQueue, Producer
from cometmq.client.clock import wall_ms
from cometmq.insight.queue_states import waiting_counts
from cometmq.insight.snapshot import look
from cometmq.peers.ports import free_port
from cometmq.peers.processes import wait_until
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.offsets import UpdateConsumerOffset
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.commands.send import ConsumerSendMsgBack
from cometmq.remoting.commands.topics import TrimQueue
from cometmq.remoting.errors import CometError
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.names import retry_topic

AGE = "cometmq_group_lag_seconds"
APART_S = 8
DELAYED = "cometmq_delay_backlog_messages"
GROUP, TOPIC, BROKER = "billing", "Orders", "broker-a"
RETRY = retry_topic(GROUP)
SMALL = {
    "mapped-file-size-commit-log": "65536",
    "mapped-file-size-consume-queue": "6000",
    "clean-resource-interval": "1000",
}
METRICS = {
    "cometmq_group_lag_messages": "CometMQ's metric",
    "rocketmq_group_diff": "the exporter's metrics",
    "rocketmq_group_retrydiff": "the exporter's metrics",
    "rocketmq_consumer_lag_messages": "RocketMQ 5's metric",
}
ROW = re.compile(r"(\w+)\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')


class Bench:
    """One broker, and every way to ask it for the lag of the group."""

    def __init__(self, cluster, call):
        self.cluster = cluster
        self._call = call
        self.http = free_port()
        self.group = GROUP

    def start(self):
        self.cluster.start_broker(BROKER, **{**SMALL, "admin-http-port": str(self.http)})
        self.until(lambda admin: admin.broker_groups(), lambda it: BROKER in it)

    def end(self, how):
        child = self.cluster.children[BROKER]
        self.cluster.send(BROKER, how)
        wait_until(lambda: child.exit_status is not None, 60, "the broker's end")

    def change_queues(self, count, *options, topic=TOPIC):
        self.say("topic", "alter", topic, "--queues", count, *options, "--yes")
        self.until(
            lambda admin: admin.route(topic), lambda it: it.queue_datas[0].read_queue_nums == count
        )

    def change_retry_queues(self, count):
        place = ("-b", self.cluster.addresses[BROKER], "-g", self.group)
        self.say("updateSubGroup", *place, "-q", count)

    def fail(self, count, level=1):
        """Let the group send back this many new messages; they are redelivered after the time of
        the delay level.
        """
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        for sent in self.send(count):
            place = parse_offset_message_id(sent.offset_message_id)
            self.broker(code, ConsumerSendMsgBack(place.physical_offset, self.group, level))
            self.commit(sent.queue_offset + 1)

    def until_ends(self, topic, expected):
        """Wait until the queues of a topic have these ends."""
        address = self.cluster.addresses[BROKER]

        def as_expected(stats):
            table = stats.offset_table.items()
            return {queue.queue_id: it.max_offset for queue, it in table} == expected

        self.until(lambda admin: admin.broker(address).topic_stats(topic), as_expected)

    def stranded(self):
        """Return what the metric says of messages that nobody reads, by topic."""
        rows = [
            (dict(LABEL.findall(labels)), value)
            for name, labels, value in self.metrics()
            if name == "cometmq_stranded_messages"
        ]
        return {at["topic"]: int(float(value)) for at, value in rows if float(value)}

    def metrics(self):
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics").read().decode()
        return ROW.findall(text)

    def consume(self, count):
        """Let a member of the group read this many messages; return their places."""
        ends = ("--count", count, "--timeout", 60)
        lines = self.say("consume", TOPIC, "-g", self.group, *ends, "--json").splitlines()
        return [(it["queue_id"], it["queue_offset"]) for it in map(json.loads, lines)]

    def say(self, *args):
        done = self._call(*args, "-n", self.cluster.namesrv)
        assert done.status == 0, done
        return done.out

    def refused(self, *args):
        done = self._call(*args, "-n", self.cluster.namesrv)
        assert (done.status, done.out) == (2, "")
        return done.err

    def ask(self, question):
        async def run():
            async with CommandAdmin(self.cluster.namesrv, options=ClientOptions()) as admin:
                return await question(admin)

        return asyncio.run(run())

    def until(self, question, condition):
        def holds():
            try:
                return condition(self.ask(question))
            except CometError:
                return False

        wait_until(holds, 60, "the broker to answer")

    def send(self, count, queue=0, **fields):
        async def run():
            async with Producer("lag-test", self.cluster.namesrv) as producer:
                return [
                    await producer.send(
                        Message(TOPIC, bytes(1500), **fields),
                        queue=MessageQueue(TOPIC, BROKER, queue),
                    )
                    for _ in range(count)
                ]

        return asyncio.run(run())

    def broker(self, code, header):
        address = self.cluster.addresses[BROKER]
        return self.ask(
            lambda admin: admin.broker(address).invoke(code, header, ok=(0, 19, 20, 21))
        )

    def commit(self, offset, queue=0):
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        self.broker(code, UpdateConsumerOffset(self.group, TOPIC, queue, offset))

    def lags(self):
        """Return the lag by topic, for each way to ask; topics without lag are left out."""
        found: dict[str, Counter[str]] = {name: Counter() for name in METRICS.values()}
        for name, labels, value in self.metrics():
            at = dict(LABEL.findall(labels))
            if name in METRICS and self.group in (at.get("group"), at.get("consumer_group")):
                found[METRICS[name]][at["topic"]] += int(float(value))
        one = json.loads(self.say("lag", self.group, "--json"))
        found["cometmq lag GROUP"] = Counter()
        for row in one["queues"]:
            found["cometmq lag GROUP"][row["topic"]] += row["lag"]
        totals = {row["group"]: row["lag"] for row in json.loads(self.say("lag", "--json"))}
        found["AdminClient.lag"] = Counter()
        for it in self.ask(lambda admin: admin.lag(self.group)):
            found["AdminClient.lag"][it.queue.topic] += it.lag
        page = self.ask(collect)
        (row,) = (it.group for it in page.groups if it.group.name == self.group)
        found["lag --report"] = Counter({it.topic: it.lag for it in row.topics})
        console = self.ask(look).group(self.group)
        found["console"] = Counter({it.topic: it.lag for it in console.topics})
        assert one["lag"] == totals[self.group] == row.lag
        assert one["lag"] == sum(found["cometmq lag GROUP"].values())
        return {name: +counts for name, counts in found.items()}

    def unread_since(self):
        """Return since when messages of each topic are unread, in seconds since 1970, for each way
        to ask; topics of which this is unknown are left out.
        """
        found: dict[str, dict[str, float]] = {}

        def note(way, ages):
            now_s = wall_ms() / 1000
            known = {topic: age for topic, age in ages if isinstance(age, float | int) and age}
            found[way] = {topic: now_s - age for topic, age in known.items()}

        rows = [
            (dict(LABEL.findall(labels)), it) for name, labels, it in self.metrics() if name == AGE
        ]
        note("metric", [(at["topic"], float(it)) for at, it in rows if at["group"] == self.group])
        queues = json.loads(self.say("lag", self.group, "--json"))["queues"]
        queues.sort(key=lambda it: it["seconds_behind"] or 0)
        note("cometmq lag GROUP", [(it["topic"], it["seconds_behind"]) for it in queues])
        page = self.ask(collect)
        (row,) = (it.group for it in page.groups if it.group.name == self.group)
        note("lag --report", [(it.topic, it.behind_s) for it in row.topics])
        topics = self.ask(look).group(self.group).topics
        note("console", [(it.topic, it.behind_s) for it in topics])
        return found

    def delayed(self):
        """Return how many delayed messages wait, for each way to ask."""
        levels = json.loads(self.say("message", "delayed", "--levels", "--json"))
        waiting = json.loads(self.say("message", "delayed", "--json"))
        rows = [value for name, _, value in self.metrics() if name == DELAYED]
        return {
            "the metric": sum(int(float(it)) for it in rows),
            "message delayed": len(waiting),
            "message delayed --levels": sum(it["waiting"] for it in levels),
            "console": sum(it.waiting for it in self.ask(look).delayed),
            "topic delete": sum(self.ask(_waiting).values()),
        }

    def check(self, expected):
        """Assert that every way shows this lag in the topic; the metric may follow a moment
        later.
        """
        wanted = Counter(expected)

        def agree():
            return {name for name, it in self.lags().items() if it != wanted} == set()

        wait_until(agree, 30, f"{wanted}, but: {self.lags()}")
        (diff,) = re.findall(r"Diff Total: (-?\d+)", self.say("consumerProgress", "-g", self.group))
        return int(diff)


async def _waiting(admin):
    return await waiting_counts((await admin.masters()).values())


@pytest.fixture
def bench(running_cluster, tmp_path, call):
    with running_cluster(tmp_path) as cluster:
        bench = Bench(cluster, call)
        bench.start()
        bench.say("topic", "create", TOPIC, "--queues", 1)
        bench.say("group", "create", GROUP)
        yield bench


def test_every_way_to_ask_shows_the_same_lag(bench):
    bench.send(200)
    bench.commit(5)
    assert bench.check({TOPIC: 195}) == 195

    # expired: the oldest files are deleted at once
    option = ("-k", "diskSpaceCleanForciblyRatio", "-v")
    bench.say("updateBrokerConfig", "-b", bench.cluster.addresses[BROKER], *option, 5)
    queue = MessageQueue(TOPIC, BROKER, 0)
    bench.until(lambda admin: admin.min_offset(queue), lambda first: first > 100)
    bench.say("updateBrokerConfig", "-b", bench.cluster.addresses[BROKER], *option, 85)
    first = bench.ask(lambda admin: admin.min_offset(queue))
    assert bench.check({TOPIC: 200 - first}) == 195  # RocketMQ's tools count deleted messages

    # trimmed, as by an operator
    first += 2
    bench.broker(RequestCode.TRIM_QUEUE, TrimQueue(TOPIC, 0, first))
    bench.check({TOPIC: 200 - first})

    # stopped or killed, and started again
    for how in (signal.SIGTERM, signal.SIGKILL):
        bench.end(how)
        bench.start()
        bench.check({TOPIC: 200 - first})

    # reset
    bench.say("group", "reset", GROUP, TOPIC, "--to", "first", "--yes")
    bench.check({TOPIC: 200 - first})
    bench.say("group", "reset", GROUP, TOPIC, "--to", "last", "--yes")
    bench.check({})

    # a filter passes over half of the messages; the group has read them all the same
    bench.send(4, tag="A")
    bench.send(4, tag="B")
    pull = PullMessage(GROUP, TOPIC, 0, 200, 32, 4, 0, 0, 0, "A")
    end = bench.broker(RequestCode.PULL_MESSAGE, pull).header.next_begin_offset
    bench.commit(end)
    bench.check({TOPIC: 208 - end})
    bench.commit(208)

    # a queue that the group has not reached, and then one that nobody reads any more
    bench.change_queues(2)
    bench.send(3, queue=1)
    bench.check({TOPIC: 3})
    bench.change_queues(1, "--force")
    bench.check({TOPIC: 3})

    # beyond the end, as after the topic was deleted and created again
    bench.commit(1000)
    bench.check({TOPIC: 3})

    # only offsets are left of the topic
    bench.say("topic", "delete", TOPIC, "--yes")
    wait_until(lambda: not any(bench.lags().values()), 30, "a lag of 0")


def test_every_way_to_ask_shows_since_when_messages_wait_that_the_group_has_not_reached(bench):
    """In a queue and in a retry topic without an offset of the group, beside newer messages."""
    bench.change_queues(2)
    bench.send(1, queue=1)
    bench.fail(1)
    bench.until_ends(RETRY, {0: 1})
    newer_s = wall_ms() / 1000 + APART_S
    wait_until(lambda: wall_ms() / 1000 > newer_s, 60, "the time of newer messages")
    bench.commit(bench.send(2)[0].queue_offset)

    def agree():
        return all(
            it.get(TOPIC, newer_s) < newer_s and it.get(RETRY, newer_s) < newer_s
            for it in bench.unread_since().values()
        )

    wait_until(agree, 60, "every way to ask to show the oldest message")

    # no pull returns it: the topic has no such queue, or no permission to read
    bench.change_queues(1, "--force")
    wait_until(agree, 60, "every way to ask to show the oldest message")
    bench.say("topic", "alter", TOPIC, "--perm", "w", "--yes")
    wait_until(agree, 60, "every way to ask to show the oldest message")
    assert json.loads(bench.say("lag", GROUP, "--json"))["time_to_loss_s"] > 0


def test_queues_that_are_removed_and_come_back_are_read_once(bench):
    bench.change_queues(2)
    bench.send(2, queue=1)
    assert sorted(bench.consume(2)) == [(1, 0), (1, 1)]
    bench.send(3, queue=1)
    bench.change_queues(1, "--force")
    bench.send(1)
    assert bench.consume(1) == [(0, 0)]
    bench.check({TOPIC: 3})
    bench.change_queues(2)
    bench.send(1, queue=1)
    assert sorted(bench.consume(4)) == [(1, 2), (1, 3), (1, 4), (1, 5)]
    bench.check({})


def test_retry_queues_that_are_removed_and_come_back_are_read_once(bench):
    bench.change_retry_queues(3)
    bench.fail(3)
    bench.until_ends(RETRY, {0: 1, 1: 1, 2: 1})
    bench.check({RETRY: 3})

    # fewer for what is sent back, but all are read
    bench.change_retry_queues(1)
    bench.fail(2)
    bench.until_ends(RETRY, {0: 3, 1: 1, 2: 1})
    bench.check({RETRY: 5})
    assert sorted(bench.consume(5)) == [(0, 0), (0, 1), (0, 2), (1, 0), (2, 0)]
    bench.check({})
    bench.change_retry_queues(3)
    bench.fail(3)
    assert sorted(bench.consume(3)) == [(0, 3), (1, 1), (2, 1)]

    # cut from the topic: what waits there is shown, and is read once they are back
    bench.fail(3)
    bench.until_ends(RETRY, {0: 5, 1: 3, 2: 3})
    bench.fail(3, level=2)  # its place is chosen before, and it arrives afterwards
    bench.change_retry_queues(1)
    bench.change_queues(1, "--force", topic=RETRY)
    bench.until_ends(RETRY, {0: 8})
    bench.check({RETRY: 6})
    assert sorted(bench.consume(4)) == [(0, at) for at in range(4, 8)]
    bench.check({RETRY: 2})
    assert bench.stranded() == {RETRY: 2}
    assert json.loads(bench.say("group", "describe", GROUP, "--json"))["unread_messages"] == 2
    bench.change_retry_queues(3)
    assert sorted(bench.consume(2)) == [(1, 2), (2, 2)]
    bench.check({})
    assert bench.stranded() == {}


def test_every_way_to_ask_shows_the_same_delayed_messages(bench):
    def agree(count):
        wait_until(lambda: set(bench.delayed().values()) == {count}, 30, f"{count} to wait")

    sent = [*bench.send(3, delay_level=18), *bench.send(3, delay_level=17)]
    agree(6)
    for one in (sent[0], sent[4]):
        bench.say("message", "recall", one.message_id, "-t", TOPIC, "--yes")
    agree(4)
    for how in (signal.SIGKILL, signal.SIGTERM):
        bench.end(how)
        bench.start()
        agree(4)

    # delivered behind a recalled one
    later = bench.send(2, delay_level=3)
    bench.say("message", "recall", later[0].message_id, "-t", TOPIC, "--yes")
    agree(4)  # once the other one is delivered, after 10 s


def test_a_group_that_only_commits_offsets_is_known_everywhere(bench):
    bench.group = "bare"
    bench.send(10)
    bench.commit(3)
    assert bench.check({TOPIC: 7}) == 7

    listed = {row["group"]: row for row in json.loads(bench.say("group", "list", "--json"))}
    assert set(listed) == {GROUP, "bare"}
    assert (listed["bare"]["members"], listed["bare"]["topics"]) == (0, [TOPIC])
    assert json.loads(bench.say("group", "describe", "bare", "--json"))["unread_messages"] == 7
    assert list(bench.ask(look).group("bare").members) == []  # rather than not told

    bench.say("group", "delete", "bare", "--yes")
    assert "bare" not in bench.say("group", "list")


def test_a_group_that_has_only_offsets_is_altered_and_deleted(bench):
    bench.group = "bare"
    bench.send(10)
    bench.commit(3)
    kept = bench.refused("group", "delete", "bare", "--keep-offsets", "--yes")
    assert kept == (
        "cometmq: the consumer group bare has only offsets, and these were to be kept: nothing was"
        " deleted\n"
    )
    bench.say("group", "alter", "bare", "--no-enabled")
    (row,) = [
        it for it in json.loads(bench.say("group", "list", "--json")) if it["group"] == "bare"
    ]
    assert (row["enabled"], row["retries"]) == (False, 16)
    assert bench.check({TOPIC: 7}) == 7

    bench.say("group", "delete", "bare", "--keep-offsets", "--yes")
    assert json.loads(bench.say("group", "describe", "bare", "--json"))["unread_messages"] == 7
    bench.say("group", "delete", "bare", "--yes")
    assert "bare" not in bench.say("group", "list")
