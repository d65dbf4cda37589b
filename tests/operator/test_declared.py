# SPDX-License-Identifier: Apache-2.0
"""Topics and ConsumerGroups on a real API server reach real brokers, and no message is lost."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import pytest

from cometmq.client import (
    AdminClient,
    ConsumeFrom,
    ConsumeResult,
    Message,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.operator.app import OperatorApp
from cometmq.operator.settings import OperatorSettings
from cometmq.peers.cluster import CLUSTER_NAME
from cometmq.peers.comet import CometCluster
from cometmq.peers.paths import ROOT
from cometmq.peers.ports import HOST, free_port
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.send import ConsumerSendMsgBack
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.settings import Loaded
from cometmq.testing.broker.logs import RecordingLog

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Two masters of one cluster; the tests use different topics."""
    with CometCluster(tmp_path_factory.mktemp("suite"), broker_count=2) as cluster:
        yield cluster


async def until(check, what):
    """Wait until an asynchronous check returns a true value; return it."""
    end = time.monotonic() + DEADLINE_S
    while time.monotonic() < end:
        if found := await check():
            return found
        await asyncio.sleep(0.2)
    raise AssertionError(f"not within {DEADLINE_S} s: {what()}")


class World:
    """One namespace of an API server, and one suite of brokers."""

    def __init__(self, kube, namespace, namesrv):
        self.kube, self.namespace, self.namesrv = kube, namespace, namesrv
        self.log = RecordingLog()

    async def kubectl(self, *arguments, **options):
        call = (*arguments, "-n", self.namespace)
        return await asyncio.to_thread(lambda: self.kube.kubectl(*call, **options))

    async def get(self, *arguments):
        return await asyncio.to_thread(lambda: self.kube.objects(*arguments, "-n", self.namespace))

    async def apply(self, kind, name, /, **spec):
        body = {
            "apiVersion": "cometmq.io/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": {"nameServers": [self.namesrv], "clusterName": CLUSTER_NAME, **spec},
        }
        await self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    def operator(self):
        settings = OperatorSettings(
            namespace=self.namespace, watch_namespaces=self.namespace, identity="one",
            default_image="cometmq:test", drain_quiet_mills=1_000, resync_mills=1_000,
            liveness_port=-1,
        )  # fmt: skip
        return OperatorApp(
            Loaded(settings, {}, {}), log=self.log, clock=SystemClock(),
            server=self.kube.server(),
        )  # fmt: skip

    async def until(self, check, what):
        """Wait until an asynchronous check returns a true value; return it."""
        return await until(check, lambda: f"{what}; log {self.log.events[-20:]}")

    async def until_ready(self, kind, name, reason="AsSpecified"):
        """Wait until the condition has a reason; return its message."""

        async def check():
            status = (await self.get(kind, name)).get("status", {})
            texts = [
                one["message"] for one in status.get("conditions", ()) if one["reason"] == reason
            ]
            return texts and (texts[0] or reason)

        return await self.until(check, f"{kind} {name} has the reason {reason}")

    async def until_gone(self, kind, name):
        async def check():
            said = await self.kubectl("get", kind, name, "-o", "name", is_checked=False)
            return "NotFound" in said

        await self.until(check, f"{kind} {name} is gone")

    async def events(self, name):
        found = await self.get("events", f"--field-selector=involvedObject.name={name}")
        return [one["reason"] for one in found["items"]]

    async def release(self):
        patch = json.dumps({"metadata": {"finalizers": None}})
        for kind in ("mqt", "mqg"):
            for one in (await self.get(kind))["items"]:
                name = one["metadata"]["name"]
                await self.kubectl("patch", kind, name, "--type=merge", "-p", patch)


@asynccontextmanager
async def world_of(kube, namespace, namesrv):
    world = World(kube, namespace, namesrv)
    app = world.operator()
    await app.start()
    try:
        yield world, app
    finally:
        await app.stop()
        await world.release()


@pytest.fixture
async def world(kube, namespace, suite):
    async with world_of(kube, namespace, suite.namesrv_addr) as (world, _):
        yield world


@pytest.fixture
async def admin(suite):
    async with AdminClient(suite.namesrv_addr) as client:
        yield client


async def topics(admin, name):
    """Return (write queues, read queues, permission) of a topic by broker."""
    found = {}
    for broker, master in (await admin.masters()).items():
        config = (await master.topics()).get(name)
        if config is not None:
            found[broker] = (config.write_queue_nums, config.read_queue_nums, config.perm)
    return found


def both(*figures):
    return {"broker-a": figures, "broker-b": figures}


async def fill(suite, queue, bodies):
    async with Producer("pg", suite.namesrv_addr) as producer:
        return [await producer.send(Message(queue.topic, body), queue=queue) for body in bodies]


async def test_a_topic_is_created_repaired_and_kept(world, admin):
    await world.apply("Topic", "created", name="Created_T", writeQueueNums=4)
    await world.until_ready("mqt", "created")
    assert await topics(admin, "Created_T") == both(4, 4, 6)
    await admin.create_topic("Created_T", queue_count=4, perm=4, broker_names=["broker-b"])

    async def is_repaired():
        return await topics(admin, "Created_T") == both(4, 4, 6)

    await world.until(is_repaired, "the manual change is undone")

    async def is_reported():
        return "Changed" in await world.events("created")

    await world.until(is_reported, "an Event about the repair")
    status = (await world.get("mqt", "created"))["status"]
    assert status["name"] == "Created_T"
    assert [one["name"] for one in status["brokers"]] == ["broker-a", "broker-b"]
    table = await world.kubectl("get", "mqt", "created")
    assert table.splitlines()[1].split()[:6] == [
        "created", "Created_T", "4", "ReadWrite", "True", "AsSpecified",
    ]  # fmt: skip
    await world.kubectl("delete", "mqt", "created")
    assert await topics(admin, "Created_T") == both(4, 4, 6)


async def test_queues_are_removed_once_they_are_consumed(world, admin, suite):
    await world.apply("Topic", "shrunk", writeQueueNums=4)
    await world.until_ready("mqt", "shrunk")
    queue = MessageQueue("shrunk", "broker-a", 3)
    await fill(suite, queue, [b"x"] * 5)
    broker = (await admin.masters())["broker-a"]
    await broker.commit_offset("billing", "shrunk", 3, 2)
    await world.apply("Topic", "shrunk", writeQueueNums=2)
    text = await world.until_ready("mqt", "shrunk", "QueuesNotConsumed")
    assert "unconsumed messages in queues 2 to 3 at broker-a: group billing: 3" in text

    async def waits():
        return (await topics(admin, "shrunk"))["broker-a"] == (2, 4, 6)

    await world.until(waits, "the queues get no more sends, but are read")
    await broker.commit_offset("billing", "shrunk", 3, 5)
    await world.until_ready("mqt", "shrunk")
    assert await topics(admin, "shrunk") == both(2, 2, 6)


async def read(suite, admin, group, topic):
    """Let a member of a group read until nothing is left; return the bodies."""
    found: list[bytes] = []

    async def listener(messages):
        found.extend(it.body for it in messages)
        return ConsumeResult.SUCCESS

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer(group, suite.namesrv_addr, listener=listener, options=options)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: has_read_all(admin, group, found), lambda: f"{group} reads {topic}")
    return sorted(found)


async def has_read_all(admin, group, found):
    return found and not sum(it.lag for it in await admin.lag(group))


async def test_queues_that_are_removed_with_their_messages_and_come_back_are_read_once(
    world, admin, suite
):
    await world.apply("Topic", "back", writeQueueNums=2)
    await world.until_ready("mqt", "back")
    queue = MessageQueue("back", "broker-a", 1)
    await fill(suite, queue, [b"1", b"2"])
    assert await read(suite, admin, "billing", "back") == [b"1", b"2"]
    await fill(suite, queue, [b"3", b"4", b"5"])
    await world.kubectl("annotate", "mqt", "back", "cometmq.io/skip-drain=true")
    for count in (1, 2):
        await world.apply("Topic", "back", writeQueueNums=count)

        async def has_queues(count=count):
            return await topics(admin, "back") == both(count, count, 6)

        await world.until(has_queues, f"the topic has {count} queues")
        lags = {it.queue: it.lag for it in await admin.lag("billing", "back")}
        assert lags[queue] == 3
    await fill(suite, queue, [b"6"])
    assert await read(suite, admin, "billing", "back") == [b"3", b"4", b"5", b"6"]


async def test_retry_queues_that_are_removed_and_come_back_are_read_once(world, admin, suite):
    await world.apply("Topic", "failing", writeQueueNums=1)
    await world.until_ready("mqt", "failing")
    broker = (await admin.masters())["broker-a"]

    async def set_queues(count):
        await world.apply("ConsumerGroup", "retrying", retryQueueNums=count)

        async def has_queues():
            config = (await broker.groups()).get("retrying")
            return config is not None and config.retry_queue_nums == count

        await world.until(has_queues, f"the group has {count} retry queues")

    async def fail(*bodies):
        """Send messages, and let the group send them back; they are redelivered after 1 s."""
        for sent in await fill(suite, MessageQueue("failing", "broker-a", 0), bodies):
            place = parse_offset_message_id(sent.offset_message_id).physical_offset
            back = ConsumerSendMsgBack(place, "retrying", 1)
            await broker.invoke(RequestCode.CONSUMER_SEND_MSG_BACK, back)
            await broker.commit_offset("retrying", "failing", 0, sent.queue_offset + 1)

    await set_queues(3)
    await fail(b"1", b"2", b"3")
    await set_queues(1)
    await fail(b"4", b"5")

    async def has_arrived():
        return sum(it.lag for it in await admin.lag("retrying")) == 5

    await world.until(has_arrived, "the lag in retry queues that are not used any more")
    assert await read(suite, admin, "retrying", "failing") == [b"1", b"2", b"3", b"4", b"5"]
    await set_queues(3)
    await fail(b"6", b"7", b"8")
    assert await read(suite, admin, "retrying", "failing") == [b"6", b"7", b"8"]


async def test_a_deletion_waits_for_consumers(world, admin, suite):
    await world.apply("Topic", "deleted", writeQueueNums=1, deletionPolicy="Delete")
    await world.until_ready("mqt", "deleted")
    await fill(suite, MessageQueue("deleted", "broker-b", 0), [b"x"] * 3)
    await world.kubectl("delete", "mqt", "deleted", "--wait=false")
    text = await world.until_ready("mqt", "deleted", "Backlog")
    assert "broker-b: messages that no consumer group has consumed: 3" in text

    async def is_read_only():
        return await topics(admin, "deleted") == both(1, 1, 4)

    await world.until(is_read_only, "sends are refused")
    broker = (await admin.masters())["broker-b"]
    await broker.commit_offset("billing", "deleted", 0, 3)
    await world.until_gone("mqt", "deleted")
    assert await topics(admin, "deleted") == {}


async def test_retaining_ends_the_wait_of_a_deletion(world, admin, suite):
    await world.apply("Topic", "rescued", writeQueueNums=1, deletionPolicy="Delete")
    await world.until_ready("mqt", "rescued")
    await fill(suite, MessageQueue("rescued", "broker-a", 0), [b"x"] * 1)
    await world.kubectl("delete", "mqt", "rescued", "--wait=false")
    await world.until_ready("mqt", "rescued", "Backlog")
    patch = json.dumps({"spec": {"deletionPolicy": "Retain"}})
    await world.kubectl("patch", "mqt", "rescued", "--type=merge", "-p", patch)
    await world.until_gone("mqt", "rescued")
    assert set(await topics(admin, "rescued")) == {"broker-a", "broker-b"}


async def test_the_older_of_two_objects_wins(world, admin):
    """Creation times are in whole seconds; in a tie, the first name wins."""
    await world.apply("Topic", "a-first", name="Twice", writeQueueNums=4)
    await world.until_ready("mqt", "a-first")
    await world.apply("Topic", "b-second", name="Twice", writeQueueNums=6, deletionPolicy="Delete")
    text = await world.until_ready("mqt", "b-second", "DeclaredTwice")
    assert f"Topic {world.namespace}/a-first is older" in text
    assert await topics(admin, "Twice") == both(4, 4, 6)
    await world.kubectl("delete", "mqt", "a-first")
    await world.until_ready("mqt", "b-second")
    assert await topics(admin, "Twice") == both(6, 6, 6)
    await world.apply("Topic", "c-third", name="Twice", writeQueueNums=6)
    await world.until_ready("mqt", "c-third", "DeclaredTwice")
    await world.kubectl("delete", "mqt", "b-second")  # deletes no topic that another declares
    await world.until_ready("mqt", "c-third")
    assert await topics(admin, "Twice") == both(6, 6, 6)


async def test_a_topic_that_brokers_refuse_is_reported(world):
    await world.apply("Topic", "refused", name="broker-a")
    text = await world.until_ready("mqt", "refused", "BrokerRefused")
    assert text.startswith("broker-a: ")


async def test_a_group_is_created_repaired_and_deleted(world, admin):
    await world.apply(
        "ConsumerGroup", "billing", name="Billing", retryMaxTimes=3,
        consumeBroadcastEnable=False, deletionPolicy="Delete",
    )  # fmt: skip
    await world.until_ready("mqg", "billing")

    async def settings():
        found = set()
        for master in (await admin.masters()).values():
            config = (await master.groups()).get("Billing")
            found.add(config and (config.retry_max_times, config.consume_broadcast_enable))
        return found

    assert await settings() == {(3, False)}
    await admin.delete_group("Billing")

    async def is_back():
        return await settings() == {(3, False)}

    await world.until(is_back, "the group is created again")
    await world.kubectl("delete", "mqg", "billing", "--wait=false")
    await world.until_gone("mqg", "billing")
    assert await settings() == {None}


async def test_brokers_that_are_down_are_waited_for(kube, namespace, tmp_path):
    cluster = CometCluster(tmp_path)
    async with world_of(kube, namespace, cluster.namesrv_addr) as (world, app):
        await world.apply("Topic", "early", writeQueueNums=2)
        text = await world.until_ready("mqt", "early", "BrokersUnreachable")
        assert f"{HOST}:{cluster.layout.namesrv_port}" in text
        try:
            await asyncio.to_thread(cluster.start)
            await world.until_ready("mqt", "early")
        finally:
            await asyncio.to_thread(cluster.kill)
        (figures,) = app.figures().declared
        assert figures.status.owned


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("topics.yaml", {"orders-paid", "billing"}),
        ("secured.yaml", {"orders", "orders-paid"}),
        ("external.yaml", {"orders"}),
    ],
)
async def test_the_examples_of_the_guide_are_accepted(kube, namespace, file, names):
    world = World(kube, namespace, f"{HOST}:{free_port()}")
    await world.kubectl("apply", "-f", str(ROOT / "deploy/examples" / file))
    assert {one["metadata"]["name"] for one in (await world.get("bg,mqt,mqg"))["items"]} == names
