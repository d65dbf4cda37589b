# SPDX-License-Identifier: Apache-2.0
"""Searches by key that need several requests, against brokers with various limits."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.insight.browsing import find_by_key, search
from cometmq.remoting.errors import AccessDenied

MOMENT_MS = 1_795_171_114_000
ALL = (0, 1 << 62)


class FakeBroker:
    """Answers a query as a broker does: the newest messages of the period, up to its limit."""

    name, address = "broker-a", "127.0.0.1:10911"

    def __init__(self, times_ms, *, limit=64, unit_ms=1, tells_limit=True):
        self.messages = [
            SimpleNamespace(store_timestamp=stored_ms, offset_message_id=f"{number:032X}")
            for number, stored_ms in enumerate(times_ms)
        ]
        self.limit, self.unit_ms, self.tells_limit = limit, unit_ms, tells_limit
        self.asked = []

    async def config(self):
        if not self.tells_limit:
            raise AccessDenied("denied")
        return {"maxMsgsNumBatch": str(self.limit)}

    async def query(self, topic, key, *, count_max, begin_ms, end_ms):
        assert (topic, key) == ("T", "k")
        self.asked.append(count_max)
        unit = self.unit_ms
        found = [
            it
            for it in self.messages
            if begin_ms // unit <= it.store_timestamp // unit <= end_ms // unit
        ]
        return found[-min(count_max, self.limit) :]


def broker_with(times_ms: list[int], **more: Any) -> Any:
    return FakeBroker(times_ms, **more)


def spread(count, *, per_ms=1):
    return [MOMENT_MS + number // per_ms for number in range(count)]


@pytest.mark.parametrize(
    "broker",
    [
        broker_with([]),
        broker_with(spread(1)),
        broker_with(spread(64)),
        broker_with(spread(65)),
        broker_with(spread(97)),
        broker_with(spread(1_000, per_ms=40)),
        broker_with(spread(300, per_ms=63)),
        broker_with(spread(30), limit=5),
        broker_with(spread(500, per_ms=200), limit=1_000),
        broker_with(spread(500, per_ms=200), limit=300),
        broker_with(spread(500, per_ms=200), limit=1_000, tells_limit=False),
        broker_with(spread(97), tells_limit=False),
        broker_with([MOMENT_MS + 30 * number for number in range(500)], unit_ms=1_000),
    ],
)
async def test_every_message_is_found_once(broker):
    found = await search(broker, "T", "k", 100_000, *ALL)
    ids = Counter(it.offset_message_id for it in found.messages)
    assert ids == Counter(it.offset_message_id for it in broker.messages)
    assert found.crowded_ms == []


@pytest.mark.parametrize("unit_ms", [1, 1_000])
async def test_a_time_with_more_messages_than_the_limit_does_not_hide_older_ones(unit_ms):
    """Java brokers (`unit_ms` 1,000) compare times in whole seconds."""
    older = [MOMENT_MS - 1_000 * number for number in range(90, 0, -1)]
    crowd = [MOMENT_MS] * 100
    newer = [MOMENT_MS + 1_000 * number for number in range(1, 71)]
    broker = broker_with(older + crowd + newer, unit_ms=unit_ms)
    found = await search(broker, "T", "k", 100_000, *ALL)
    shown = Counter(it.store_timestamp for it in found.messages)
    assert shown[MOMENT_MS] == 64
    assert shown.keys() == {*older, *crowd, *newer}
    assert found.crowded_ms == [MOMENT_MS]


async def test_a_search_asks_no_more_than_it_needs():
    broker = broker_with(spread(500))
    assert len((await search(broker, "T", "k", 3, *ALL)).messages) == 3
    assert broker.asked == [3]
    few = broker_with(spread(10))
    await search(few, "T", "k", 1_001, *ALL)
    assert few.asked == [64]


@pytest.mark.parametrize("unit_ms", [1, 1_000])
async def test_the_period_includes_its_ends_and_nothing_else(unit_ms):
    """Java brokers (`unit_ms` 1,000) return the other messages of these seconds, too."""
    broker = broker_with(spread(50), unit_ms=unit_ms)
    found = await search(broker, "T", "k", 1_000, MOMENT_MS + 10, MOMENT_MS + 20)
    assert [it.store_timestamp - MOMENT_MS for it in found.messages] == list(range(10, 21))


class FakeAdmin:
    query_timeout_ms = 18_000

    def __init__(self, *brokers):
        self.brokers = brokers

    async def ask_brokers_of(self, _topic, question, *, timeout_ms):
        assert timeout_ms > 0
        return [(broker, await question(broker)) for broker in self.brokers]


def admin_of(*brokers: Any) -> Any:
    return FakeAdmin(*brokers)


async def test_the_notes_name_the_limit_that_was_reached():
    broker = broker_with([*spread(70), *[MOMENT_MS + 500] * 70])
    found, notes = await find_by_key(admin_of(broker), "T", "k")
    assert [it.store_timestamp for it in found] == [*spread(70), *[MOMENT_MS + 500] * 64]
    (note,) = notes
    assert note.startswith(
        "broker-a may have more messages of 2026-11-20T10:38:34.500Z: it returns"
    )
    assert note.endswith("cometmq updateBrokerConfig -b 127.0.0.1:10911 -k maxMsgsNumBatch -v 1024")
    two = broker_with(spread(4)), broker_with(spread(4))
    found, notes = await find_by_key(admin_of(*two), "T", "k", count_max=5)
    assert [it.store_timestamp - MOMENT_MS for it in found] == [1, 2, 2, 3, 3]
    assert notes == [
        "only the newest 5 messages are shown; to see older ones, give --max a larger number"
    ]
    found, notes = await find_by_key(admin_of(*two), "T", "k", count_max=8)
    assert (len(found), notes) == (8, [])
