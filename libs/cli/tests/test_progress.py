# SPDX-License-Identifier: Apache-2.0
"""All groups at once have the figures that each has alone, and cost a few requests."""

from collections import Counter
from contextlib import asynccontextmanager

import msgspec
import pytest

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.consuming.progress import Progress
from cometmq.client import (
    ClientOptions,
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_consumers import BrokerCalls
from cometmq.client.admin.groups import known_groups
from cometmq.client.testing import eventually
from cometmq.insight.members import members_of
from cometmq.insight.queue_states import queue_states
from cometmq.remoting.errors import RequestCodeNotSupported, RequestTimeout
from cometmq.remoting.names import retry_topic

BROKERS = ("broker-a", "broker-b")


@pytest.fixture
def cluster(running_cluster, tmp_path):
    with running_cluster(tmp_path) as cluster:
        for name in BROKERS:
            cluster.start_broker(name)
        yield cluster


@asynccontextmanager
async def commands(cluster):
    async with CommandAdmin(cluster.namesrv, options=ClientOptions()) as admin:
        yield admin


async def registered(admin):
    async def both():
        return set(await admin.broker_groups()) == set(BROKERS)

    await eventually(both)


def sorted_states(found):
    """Return states without ages, which grow."""
    rows = [msgspec.structs.replace(it, behind_s=it.behind_s and 1.0) for it in found]
    return sorted(rows, key=lambda it: it.queue)


async def both_ways(admin, topic=None):
    """Return the states of each group as told at once, and as told for it alone."""
    configs = await known_groups(admin)
    progress = await Progress.read(admin)
    at_once = {
        name: sorted_states(it) for name, it in (await progress.states(configs, topic)).items()
    }
    alone = {name: sorted_states(await queue_states(admin, name, topic)) for name in configs}
    for name, config in configs.items():
        one, other = await progress.members(name, config), await members_of(admin, name, config)
        assert (one.count, one.model, one.topics) == (other.count, other.model, other.topics)
    return at_once, alone


async def fill(admin, namesrv):
    """Make groups that have read one queue, none, too much, and other topics than they read now."""
    await admin.create_topic("Orders", queue_count=3)
    await admin.create_topic("Old", queue_count=1)
    await admin.create_topic(retry_topic("failing"), queue_count=1)
    async with Producer("makers", namesrv=namesrv) as producer:
        for topic, count in (("Orders", 3), ("Old", 1), (retry_topic("failing"), 1)):
            for broker in BROKERS:
                for queue in range(count):
                    for _ in range(4):
                        place = MessageQueue(topic, broker, queue)
                        await producer.send(Message(topic, b"m"), queue=place)
    first = (await admin.masters())["broker-a"]
    for group, topic, queue, offset in (
        ("partly", "Orders", 0, 2),
        ("partly", "Orders", 2, 4),
        ("failing", "Orders", 1, 4),
        ("beyond", "Orders", 0, 99),
        ("changed", "Old", 0, 1),
        ("deleted", "Gone", 0, 1),
    ):
        await first.commit_offset(group, topic, queue, offset)
    settings = (await first.topics())["Orders"]
    # queue 2 of broker-a is not read any more, though messages wait there
    await first.create_topic(msgspec.structs.replace(settings, read_queue_nums=2))


async def test_all_groups_at_once_have_the_figures_that_each_has_alone(cluster):
    async def listen(_messages):
        return ConsumeResult.SUCCESS

    options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = PushConsumer("changed", cluster.namesrv, listener=listen, options=options)
    consumer.subscribe("Orders")
    async with commands(cluster) as admin:
        await registered(admin)
        await fill(admin, cluster.namesrv)
        async with consumer:

            async def has_read():
                states = await queue_states(admin, "changed", "Orders")
                return sum(it.lag for it in states) == 4  # the queue that nobody reads

            await eventually(has_read)
            at_once, alone = await both_ways(admin)
            assert at_once == alone
            lags = {name: sum(it.lag for it in found) for name, found in at_once.items()}
            assert (lags["partly"], lags["failing"], lags["changed"]) == (18, 28, 4)
            assert sum(it.skip_count for it in at_once["beyond"]) == 4
            assert at_once["deleted"] == []
            for topic in ("Orders", "Old"):
                at_once, alone = await both_ways(admin, topic)
                assert at_once == alone
            assert sum(it.lag for it in at_once["partly"]) == 0


async def test_a_broker_without_an_overview_is_asked_about_each_group(cluster, monkeypatch):
    async def overview(self):
        raise RequestCodeNotSupported("no such code")

    async with commands(cluster) as admin:
        await registered(admin)
        await fill(admin, cluster.namesrv)
        expected, _ = await both_ways(admin)
        monkeypatch.setattr(BrokerAdmin, "overview", overview)
        at_once, alone = await both_ways(admin)
        assert at_once == alone == expected


async def test_further_groups_cost_no_further_requests(cluster, monkeypatch):
    sent: Counter[str] = Counter()
    invoke = BrokerCalls.invoke

    async def counted(self, code, *args, **more):
        sent[code.name] += 1
        return await invoke(self, code, *args, **more)

    async with commands(cluster) as admin:
        await registered(admin)
        await fill(admin, cluster.namesrv)
        first = (await admin.masters())["broker-a"]
        monkeypatch.setattr(BrokerCalls, "invoke", counted)

        async def asked():
            sent.clear()
            configs = await known_groups(admin)
            progress = await Progress.read(admin)
            await progress.states(configs)
            for name, config in configs.items():
                await progress.members(name, config)
            return len(configs), +sent

        few, before = await asked()
        for number in range(30):
            await first.commit_offset(f"more-{number}", "Orders", 0, 2)
        many, after = await asked()
        assert many == few + 30
        assert after == before


async def test_a_broker_that_stops_answering_is_named(cluster, monkeypatch):
    async def hang(self, *_args, **_more):
        if self.name == "broker-b":
            raise RequestTimeout("no answer")
        return await pull(self, *_args, **_more)

    pull = BrokerAdmin.pull
    async with commands(cluster) as admin:
        await registered(admin)
        await fill(admin, cluster.namesrv)
        monkeypatch.setattr(BrokerAdmin, "pull", hang)
        (found,) = (await (await Progress.read(admin)).states(["partly"])).values()
        assert isinstance(found, list)
        assert {it.queue.broker_name for it in found} == {"broker-a"}
        assert admin.unanswered.keys() == {"broker-b"}
