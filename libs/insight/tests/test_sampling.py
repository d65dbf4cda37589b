# SPDX-License-Identifier: Apache-2.0
"""The analysis of a topic: the sample is spread, bounded, and its figures are right."""

from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client import Message, Producer
from cometmq.client.errors import InvalidArgument, NoRoute
from cometmq.insight.changes.topics import CloneTopic
from cometmq.insight.sampling import (
    NAMES_MAX,
    Bounds,
    Collector,
    analyse,
    bars,
    blocks,
    percentiles,
    shared,
)
from cometmq.remoting.bodies import topic_config

NOW_MS = 1_800_000_000_000


def message(size=1, *, keys=(), tag=None, host="10.0.0.1:5", age_s=0, **properties) -> Any:
    return SimpleNamespace(
        body=b"x" * size, keys=keys, tag=tag, born_host=host, user_properties=properties,
        store_timestamp=NOW_MS - age_s * 1_000,
    )  # fmt: skip


def test_figures_of_a_sample():
    collector = Collector(NOW_MS)
    for number in range(100):
        collector.add(
            message(
                number + 1, keys=("same", f"k{number}"), tag="a" if number % 4 else None,
                host=f"10.0.0.{number % 2}:99", age_s=number, colour="blue",
            )
        )  # fmt: skip
    found = collector.figures()
    assert {it.percent: it.value for it in found.sizes} == {
        0: 1, 25: 26, 50: 51, 75: 75, 90: 90, 95: 95, 99: 99, 99.9: 100, 100: 100,
    }  # fmt: skip
    assert found.mean_bytes == 50.5
    assert (found.ages_s[0].value, found.ages_s[-1].value) == (0, 99)
    assert (found.keys.messages, found.keys.different) == (100, 101)
    assert (found.keys.top[0].name, found.keys.top[0].count) == ("same", 100)
    assert found.keys_per_message[-1].value == 2
    assert (found.tags.messages, [it.name for it in found.tags.top]) == (75, ["a"])
    assert {it.name: it.count for it in found.hosts.top} == {"10.0.0.0": 50, "10.0.0.1": 50}
    assert [it.name for it in found.properties.top] == ["colour"]
    assert found.damaged == 0


def test_names_are_bounded():
    collector = Collector(NOW_MS)
    collector.add(message(keys=[*(f"key-{it}" for it in range(NAMES_MAX + 5)), "x" * 5_000]))
    found = collector.figures().keys
    assert (found.different, found.is_cut) == (NAMES_MAX, True)


def test_no_messages_have_no_percentiles():
    found = Collector(NOW_MS).figures()
    assert (found.sizes, found.bars, found.mean_bytes) == ([], [], 0.0)


def test_bars_double():
    assert [(it.until, it.count) for it in bars([0, 1, 2, 3, 4, 5, 9])] == [
        (0, 1), (1, 1), (2, 1), (4, 2), (8, 1), (16, 1),
    ]  # fmt: skip
    assert [(it.until, it.count) for it in bars([1_000, 1_024])] == [(1_024, 2)]
    assert percentiles([7])[0].value == 7


@pytest.mark.parametrize(
    ("lengths", "count", "shares"),
    [([10, 10], 100, [10, 10]), ([1_000, 10, 1_000], 210, [100, 10, 100]), ([5, 5], 3, [2, 1]),
     ([], 5, []), ([0, 0], 5, [0, 0])],
)  # fmt: skip
def test_short_queues_leave_their_share_to_the_others(lengths, count, shares):
    assert shared(lengths, count) == shares


@pytest.mark.parametrize(
    ("first", "end", "share"), [(0, 10_000, 320), (5, 1_000, 100), (0, 40, 33), (7, 100, 1)]
)
def test_blocks_are_spread_and_do_not_overlap_the_ends(first, end, share):
    found = list(blocks(first, end, share))
    assert found[-1][1] == end
    assert all(first <= low < high <= end for low, high in found)
    assert found == sorted(found)
    if len(found) > 1:
        assert found[0][0] == first
    assert list(blocks(first, end, end)) == [(first, end)]
    assert list(blocks(3, 3, 9)) == []


@pytest.fixture
async def filled(suite, admin):
    """Return a topic with 300 messages in three queues."""
    topic = "Analysed"
    if topic not in await admin.topics():
        await admin.create_topic(topic, queue_count=3)
        async with Producer("analysed-p", namesrv=suite.namesrv) as producer:
            for at in range(300):
                sent = Message(topic, b"x" * (1 + at % 100), tag="even" if at % 2 == 0 else None,
                               keys=(f"k{at % 7}",))  # fmt: skip
                await producer.send(sent)
    return topic


async def test_a_small_topic_is_read_whole(admin, filled):
    read: list[int] = []
    found = await analyse(admin, filled, progress=read.append)
    assert found.is_whole
    assert (found.messages, found.figures.messages) == (300, 300)
    assert read[-1] == 300
    assert sum(it.sampled for it in found.queues) == 300
    assert found.figures.keys.different == 7
    assert found.figures.tags.messages == 150
    assert found.figures.sizes[-1].value == 100
    assert [it.name for it in found.figures.hosts.top] == ["127.0.0.1"]
    assert found.ended == ""
    assert not found.unanswered


async def test_a_sample_takes_a_part_of_each_queue(admin, filled):
    found = await analyse(admin, filled, Bounds(count_max=96))
    assert not found.is_whole
    assert found.figures.messages == 96
    assert {it.sampled for it in found.queues} == {32}


async def test_bounds_of_bytes_and_time_end_it_and_are_named(admin, filled):
    found = await analyse(admin, filled, Bounds(bytes_max=1))
    assert found.figures.messages < 300
    assert "MiB" in found.ended
    now = iter(range(0, 10**9, 6_000))
    found = await analyse(admin, filled, Bounds(), clock_ms=lambda: next(now))
    assert found.ended == "10 seconds have passed"


async def test_a_missing_topic_and_a_wrong_bound_are_refused(admin, filled):
    with pytest.raises(NoRoute):
        await analyse(admin, "NotThere")
    with pytest.raises(InvalidArgument, match="sample between 1 and"):
        await analyse(admin, filled, Bounds(count_max=0))


async def test_a_topic_is_cloned_with_its_settings(admin, monkeypatch):
    await admin.create_topic("Cloned", queue_count=3, perm=4)
    await admin.set_order_config("Cloned", "broker:3")
    plan = await CloneTopic(source="Cloned", topic="Clone").plan(admin)
    await plan.perform(admin)
    (master,) = (await admin.masters()).values()
    config = (await master.topics())["Clone"]
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (3, 3, 4)
    assert await admin.order_config("Clone") == "broker:3"
    for source, name, why in (
        ("Cloned", "Clone", "the topic Clone exists at"),
        ("Cloned", "%RETRY%x", "servers create"),
    ):
        assert why in (await CloneTopic(source=source, topic=name).plan(admin)).refusal
    with pytest.raises(NoRoute):
        await CloneTopic(source="NotThere", topic="Clone2").plan(admin)
    monkeypatch.setattr(topic_config, "QUEUES_MAX", 2)
    refused = await CloneTopic(source="Cloned", topic="Clone2").plan(admin)
    assert "Clone2 would have 3 queues at all brokers" in refused.refusal
