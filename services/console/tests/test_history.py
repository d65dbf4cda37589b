# SPDX-License-Identifier: Apache-2.0
"""The history: exact while young, smaller when old, and bounded."""

import pytest

from cometmq.console.history.prometheus import points_of, query_of
from cometmq.console.history.store import DAY_S, HistoryStore
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import FakeClock

STEP_MS = 15_000
DAY_MS = DAY_S * 1_000


@pytest.fixture
def open_store(tmp_path):
    def opened(clock, **given):
        settings = {"days": 14, "mib_max": 64, "interval_ms": STEP_MS, **given}
        return HistoryStore(tmp_path, clock=clock, log=NO_LOG, **settings)

    return opened


async def record(store, clock, values, key="group:lag:g"):
    for value in values:
        await store.record({} if value is None else {key: value})
        clock.advance(STEP_MS)


async def line(store, clock, hours=1, key="group:lag:g"):
    end_ms = clock.now_ms()
    found = await store.lines([key], end_ms - hours * 3_600_000, end_ms)
    return [value for _, value in found[key]]


async def test_figures_survive_a_restart_and_gaps_are_seen(open_store):
    clock = FakeClock()
    store = open_store(clock)
    await store.open()
    await record(store, clock, [1, 1, 1, 5, 5, 2])
    await store.close()
    clock.advance(600_000)
    store = open_store(clock)
    await store.open()
    await record(store, clock, [7, 7])
    assert await line(store, clock) == [1, 1, 5, 5, 2, None, 7, 7, None]
    await store.close()


async def test_an_unknown_figure_interrupts_its_line(open_store):
    clock = FakeClock()
    store = open_store(clock)
    await store.open()
    await record(store, clock, [3, None, 4])
    assert list(await line(store, clock)) == [3, None, 4, None]
    assert await line(store, clock, key="group:lag:other") == []
    await store.close()


async def test_figures_that_stay_cost_nothing(open_store, tmp_path):
    clock = FakeClock()
    store = open_store(clock)
    await store.open()
    await store.record({f"topic:in:t{number}": 0.0 for number in range(3_000)})
    size = sum(it.stat().st_size for it in tmp_path.iterdir())
    for _ in range(200):
        clock.advance(STEP_MS)
        await store.record({f"topic:in:t{number}": 0.0 for number in range(3_000)})
    assert sum(it.stat().st_size for it in tmp_path.iterdir()) < size + 2_000_000
    await store.close()


async def test_old_figures_keep_their_peaks_and_their_last_value(open_store):
    clock = FakeClock(1_700_000_400_000)
    store = open_store(clock)
    await store.open()
    await record(store, clock, [1, 9, 2, 3, 4, 1])
    for _ in range(200):  # two days of one value, looked at now and then
        clock.advance(DAY_MS // 100)
        await store.record({"group:lag:g": 1})
    found = await line(store, clock, hours=72)
    assert max(it for it in found if it is not None) == 9
    assert found.count(2) == 0
    assert [it for it in found if it is not None][-1] == 1
    await store.close()


async def test_what_is_older_than_the_limit_is_deleted(open_store):
    clock = FakeClock()
    store = open_store(clock, days=2)
    await store.open()
    await record(store, clock, [8, 8, 5])
    for _ in range(80):
        clock.advance(3_700_000)
        await store.record({"group:lag:g": 5})
    found = await line(store, clock, hours=200)
    assert 8 not in found
    assert 5 in found
    await store.close()


async def test_a_damaged_file_is_put_aside(open_store, tmp_path):
    (tmp_path / "history.db").write_bytes(b"no database" * 1_000)
    clock = FakeClock()
    store = open_store(clock)
    await store.open()
    await record(store, clock, [1])
    assert (tmp_path / "history.damaged").exists()
    assert 1 in await line(store, clock)
    await store.close()


async def test_the_clock_may_be_set_back(open_store):
    clock = FakeClock()
    store = open_store(clock)
    await store.open()
    await record(store, clock, [1, 2])
    clock.jump(clock.now_ms() - 3_600_000)
    await record(store, clock, [3])
    await store.close()


def test_queries_of_prometheus_quote_names():
    assert query_of('group:lag:a"}b') == 'sum(rocketmq_group_diff{group="a\\"}b"})'
    assert query_of("broker:in:a:b:0") == 'sum(rocketmq_broker_tps{broker="a:b"})'


def test_missing_samples_of_prometheus_interrupt_the_line():
    values = [[0, "1"], [15, "2"], [300, "3"]]
    assert points_of(values, 15) == [(0, 1.0), (15_000, 2.0), (15_001, None), (300_000, 3.0)]
