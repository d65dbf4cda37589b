# SPDX-License-Identifier: Apache-2.0
"""The history: exact while young, smaller when old, and bounded."""

import asyncio
import json
import sqlite3
from contextlib import AsyncExitStack, suppress
from http import HTTPStatus

import pytest
from msgspec import structs

from cometmq.console.history.prometheus import Prometheus, points_of, query_of
from cometmq.console.history.store import DAY_S, HistoryStore
from cometmq.console.web.problems import Problem
from cometmq.insight.history import Progress
from cometmq.insight.model import Since
from cometmq.remoting.errors import StoreError
from cometmq.remoting.log import NO_LOG
from cometmq.testing.remoting.hostile_json import hostile
from cometmq.testing.runtime.clock import FakeClock

STEP_MS = 15_000
DAY_MS = DAY_S * 1_000
RUNS = "SELECT begin_s, end_s FROM runs ORDER BY begin_s"


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


async def test_figures_survive_a_restart(open_store):
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


def pause(committed, since_ms, lag=9, *, is_bound=False):
    return Progress(committed, Since(since_ms, is_bound), lag, None, lag)


async def test_pauses_of_groups_survive_a_restart(open_store, tmp_path):
    clock = FakeClock()
    store = open_store(clock)
    await store.open()
    assert await store.pauses() == {}
    first = {"a": pause(5, 1_000), "b": pause(6, 2_000, is_bound=True), "c": pause(7, 3_000)}
    second = {"a": structs.replace(first["a"], lag=30), "b": pause(8, 4_000)}
    for found in (first, second):
        await store.record({}, found)
        clock.advance(STEP_MS)
    await store.close()
    store = open_store(clock)
    await store.open()
    assert await store.pauses() == {"a": first["a"], "b": second["b"]}
    other = refusing(tmp_path, "INSERT ON state")
    with pytest.raises(sqlite3.Error, match="full"):
        await store.record({}, {"c": pause(9, 5_000)})
    assert await store.pauses() == {"a": first["a"], "b": second["b"]}
    other.close()
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


async def test_a_healthy_file_that_cannot_be_opened_stays(open_store, tmp_path):
    (tmp_path / "history.db").mkdir()
    store = open_store(FakeClock())
    with pytest.raises(StoreError, match=r"cannot open .*history\.db: unable to open"):
        await store.open()
    assert [it.name for it in tmp_path.iterdir()] == ["history.db"]
    await store.close()


def refusing(tmp_path, when):
    """Let the file refuse a statement, as a full disk does."""
    other = sqlite3.connect(tmp_path / "history.db")
    other.execute(f"CREATE TRIGGER refusal BEFORE {when} BEGIN SELECT RAISE(ABORT, 'full'); END")
    return other


async def test_figures_that_were_not_written_are_not_remembered(open_store, tmp_path):
    clock = FakeClock()
    store = open_store(clock)
    await store.open()
    await record(store, clock, [1])
    other = refusing(tmp_path, "INSERT ON points WHEN new.value = 3")
    values = {"group:lag:g": 2, "group:lag:h": 3}
    with pytest.raises(sqlite3.Error, match="full"):
        await store.record(values)
    other.execute("DROP TRIGGER refusal")
    other.close()
    await store.record({"group:lag:i": 4})
    clock.advance(STEP_MS)
    await store.record({**values, "group:lag:i": 4})
    found = [set(await line(store, clock, key=f"group:lag:{it}")) - {None} for it in "ghi"]
    assert found == [{1, 2}, {3}, {4}]
    await store.close()


async def test_a_deletion_that_fails_is_made_later(open_store, tmp_path):
    clock = FakeClock()
    store = open_store(clock, days=1, interval_ms=3_600_000)
    await store.open()
    await record_hours(store, clock, 25)
    other = refusing(tmp_path, "DELETE ON points")
    with pytest.raises(sqlite3.Error, match="full"):
        await record_hours(store, clock, 1)
    other.execute("DROP TRIGGER refusal")
    await record_hours(store, clock, 3)
    now_s = clock.now_ms() // 1_000
    assert other.execute(RUNS).fetchall() == [(now_s - DAY_S, now_s)]
    other.close()
    await store.close()


async def test_runs_of_a_clock_that_was_set_back_are_joined(open_store, tmp_path):
    clock = FakeClock(1_700_000_000_000)
    for back_ms in (0, 20 * 3_600_000):
        clock.jump(clock.now_ms() - back_ms)
        store = open_store(clock, days=1, interval_ms=3_600_000)
        await store.open()
        await record_hours(store, clock, 23)
        await store.close()
    store = open_store(clock, days=1, interval_ms=3_600_000)
    await store.open()
    await record_hours(store, clock, 15)
    other = sqlite3.connect(tmp_path / "history.db")
    now_s = clock.now_ms() // 1_000
    assert other.execute(RUNS).fetchall()[0][0] == now_s - DAY_S
    other.close()
    await store.close()


async def record_hours(store, clock, hours):
    for _ in range(hours):
        clock.advance(3_600_000)
        await store.record({"group:lag:g": clock.now_ms() // 3_600_000 % 1_000})


async def test_the_clock_may_be_set_back(open_store):
    clock = FakeClock()
    store = open_store(clock)
    await store.open()
    await record(store, clock, [1, 2])
    clock.jump(clock.now_ms() - 3_600_000)
    await record(store, clock, [3])
    assert await line(store, clock) == [], "times that are recorded stay as they are"
    clock.jump(clock.now_ms() + 3_600_000)
    assert set(await line(store, clock)) - {None} == {1, 2}
    await store.close()


def test_queries_of_prometheus_quote_names():
    assert query_of('group:lag:a"}b') == (
        'sum({__name__=~"rocketmq_group_(retry)?diff",group="a\\"}b"})'
    ), "the lag in the retry topic counts, too"
    assert query_of("broker:in:a:b:0") == 'sum(rocketmq_broker_tps{broker="a:b"})'


def test_missing_samples_of_prometheus_interrupt_the_line():
    values = [(0, "1"), (15, "2"), (300, "3")]
    assert points_of(values, 15) == [(0, 1.0), (15_000, 2.0), (15_001, None), (300_000, 3.0)]


class Answering:
    """A server that is no Prometheus, and a history that asks it."""

    def __init__(self):
        self.answer = b""

    async def start(self, stack):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        await stack.enter_async_context(server)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self.source = Prometheus(self.url, timeout_ms=10_000)
        stack.push_async_callback(self.source.close)

    async def _serve(self, reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answer)
        writer.close()

    async def lines(self):
        return (await self.source.lines(["group:lag:g"], 0, 60_000))["group:lag:g"]


@pytest.fixture
async def answering():
    async with AsyncExitStack() as stack:
        found = Answering()
        await found.start(stack)
        yield found


OK = b"HTTP/1.1 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        OK + b'{"data": {"result": [{"values": [[1]]}]}}',
        OK + b'{"data": {"result": [{}]}}',
        OK + b'{"data": {"result": [{"values": [%s]}]}}' % b",".join([b'[1,"2"]'] * 9_000),
    ],
    ids=["ssh", "no data", "half a point", "no points", "many points"],
)
async def test_a_server_that_is_no_prometheus_is_told(answering, answer):
    answering.answer = answer
    with pytest.raises(Problem, match=f"comes from {answering.url}, which fails: ") as told:
        await answering.lines()
    assert told.value.status == HTTPStatus.BAD_GATEWAY


async def test_an_answer_that_comes_a_byte_at_a_time_is_given_up():
    is_given_up = asyncio.Event()

    async def trickle(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        while not reader.at_eof():
            writer.write(b" ")
            with suppress(TimeoutError):
                await asyncio.wait_for(reader.read(), 0.1)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        is_given_up.set()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    source = Prometheus(url, timeout_ms=500)
    async with server, asyncio.timeout(20):
        with pytest.raises(Problem, match=r"which fails: .*no whole answer within 0\.5 s"):
            await source.lines(["group:lag:g"], 0, 60_000)
        await is_given_up.wait()
    await source.close()


async def test_hostile_answers_to_queries_are_told(answering):
    """Deep, large and endless values raised RecursionError and OverflowError."""
    sample = {"data": {"result": [{"values": [[15, "1"], [30, "NaN"]]}]}}
    answering.answer = OK + json.dumps(sample).encode()
    assert [at_ms for at_ms, _ in await answering.lines()] == [15_000, 30_000]
    told = 0
    for name, body in hostile(sample):
        answering.answer = OK + body
        try:
            points = await answering.lines()
        except Problem:
            told += 1
        else:
            assert all(-15_000 <= at_ms <= 75_000 for at_ms, _ in points), name
    assert told > 200
