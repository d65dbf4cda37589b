# SPDX-License-Identifier: Apache-2.0
"""Jumps of the wall clock by hours, both ways: each line of the table in concepts/clocks.md."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers.clients import connection_closed, expire_clients, heart_beat
from cometmq.broker.handlers.runtime_info import runtime_table
from cometmq.broker.messages import delay
from cometmq.broker.statistics.rates import History, Totals
from cometmq.broker.storing.disk_figures import DiskFigures
from cometmq.broker.timers import sample_totals
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import Call
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.record import decode_record
from cometmq.store.reads import finish
from cometmq.store.results import BoundaryType, PutResult, PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.testing.broker.stored import clock_of, stored_broker
from cometmq.testing.remoting.peer import FakePeer
from cometmq.testing.store.builders import START_MS, StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk
from cometmq.txn_checker.asking import Due, due
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.tables import NO_IMMUNITY, Check, Entry, OpenHalf, State

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
HOST: Final = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
EVERY_HOUR: Final = ";".join(map(str, range(24)))


class Jumping:
    """A store whose wall clock can jump, while its monotonic clock goes on."""

    def __init__(self, **settings: Any) -> None:
        self.jumped_ms = 0
        self.rig = StoreRig(
            MemoryDisk(),
            small_settings(delete_when=EVERY_HOUR, **settings),
            monotonic_ms=lambda: self.rig.clock.now_ms - self.jumped_ms,
        )

    def jump(self, elapsed_ms: int) -> None:
        self.rig.clock.advance(elapsed_ms)
        self.jumped_ms += elapsed_ms

    def pass_hours(self, hours: int) -> None:
        """Let time pass, and look at the files in between."""
        for _ in range(hours):
            self.rig.clock.advance(HOUR_MS - 3_000)
            self.rig.store.upkeep.cleaner.ask()
            self.rig.work(3)


async def stand_by_the_clock(_: Path, jump_ms: int) -> None:
    store = Jumping()
    times = []
    for elapsed_ms in (0, jump_ms, -5_000, 6_000):
        store.jump(elapsed_ms)
        times.append(store.rig.put(make_message()).store_timestamp)
    after_ms = START_MS + jump_ms
    assert times == [START_MS, after_ms, after_ms, after_ms + 1_000]


async def search_by_time(_: Path, jump_ms: int) -> None:
    store = Jumping()
    times: list[int] = []
    for elapsed_ms in (0, jump_ms, -jump_ms // 2):
        store.jump(elapsed_ms)
        for number in range(23):
            store.rig.clock.advance(MINUTE_MS)
            if number % 5:
                times.append(store.rig.put(make_message("T", 0)).store_timestamp)
    lower, upper = BoundaryType.LOWER, BoundaryType.UPPER
    asked = {moment + more for moment in times for more in (-30_000, 0, 1, 90_000)}
    asked |= {0, max(times) + jump_ms}
    for moment in sorted(asked):
        at = [offset for offset, stored_ms in enumerate(times) if stored_ms >= moment]
        before = [offset for offset, stored_ms in enumerate(times) if stored_ms <= moment]
        first = min(at, default=len(times) - 1)  # no message stored at or after the time is skipped
        nearest = min(
            (it for it in (first - 1, first) if it >= 0), key=lambda it: abs(times[it] - moment)
        )
        find = store.rig.store.reader.offset_by_time
        assert finish(find("T", 0, moment, lower)) == min(at, default=len(times))
        assert finish(find("T", 0, moment, upper)) == max(before, default=0)
        assert finish(find("T", 0, moment, None)) == nearest


async def query_by_key(_: Path, jump_ms: int) -> None:
    store = Jumping()
    times = []
    for number, elapsed_ms in enumerate((0, MINUTE_MS, jump_ms, MINUTE_MS, -jump_ms, MINUTE_MS)):
        store.jump(elapsed_ms)
        keys = ("same", f"own{number}")
        times += [store.rig.put(make_message(keys=key)).store_timestamp for key in keys]
    store.rig.work(5)
    query = store.rig.store.reader.query
    for number, stored_ms in enumerate(times[::2]):
        period = (stored_ms - 1_000, stored_ms + 1_000)
        for key in ("same", f"own{number}"):
            found = finish(query("T", key, 9, *period)).records
            expected = {it for it in times[::2] if period[0] <= it <= period[1]}
            assert {it.store_timestamp for it in found} == expected, key


async def keep_files(_: Path, jump_ms: int) -> None:
    store = Jumping(file_reserved_time=72)
    rig = store.rig
    for number in range(200):
        rig.put(make_message("T", 0, b"%d" % number))
    rig.work(3)
    store.jump(20 * jump_ms)  # by days
    store.pass_hours(70)
    assert rig.store.commit_log.min_offset == 0
    store.pass_hours(30)
    assert rig.store.commit_log.min_offset > 0


async def deliver(folder: Path, jump_ms: int) -> None:
    async with stored_broker(folder, messageDelayLevel="1s 2h") as broker:
        broker.tables.topics.create("T", queue_nums=1)
        clock = clock_of(broker)
        for number, moment_ms in enumerate((0, jump_ms, 0)):
            clock.jump(clock.now_ms() + moment_ms - (jump_ms if number == 2 else 0))
            for level in (1, 2):
                message = NewMessage("T", 0, 0, 0, 0, HOST, HOST, b"%d%d" % (number, level))
                delay(message, level)
                broker.driver.put(message, lambda _: None)
            broker.driver.commit()
            clock.advance(MINUTE_MS)
            step(broker)
        clock.advance(2 * HOUR_MS)
        step(broker)
        result = broker.store.reader.get_messages("T", 0, 0, 32)
        bodies = sorted(decode_record(record).body for record in result.records)
        assert bodies == [b"%d%d" % (number, level) for number in range(3) for level in (1, 2)]


def step(broker: Broker) -> None:
    for _ in range(4):
        broker.deferred.delays.step(broker.clock.now_ms())
        broker.driver.commit()


async def check(_: Path, jump_ms: int) -> None:
    settings = TxnCheckerSettings(
        transaction_time_out=6_000, transaction_check_interval=60_000, file_reserved_time=72
    )
    stored_s = 1_700_000_000

    def half(*, asked_s: int = 0, count: int = 0) -> OpenHalf:
        entry = Entry(0, 100, stored_s, 0, State.PREPARED)
        return OpenHalf(7, entry, Check(asked_s, count, NO_IMMUNITY))

    after_s = stored_s + jump_ms // 1_000
    assert due(half(), after_s, settings) is Due.ASK
    assert due(half(asked_s=stored_s, count=1), after_s, settings) is Due.ASK
    again = half(asked_s=after_s, count=2)
    assert due(again, after_s + 59, settings) is Due.WAIT
    assert due(again, after_s + 60, settings) is Due.ASK


async def count_days(_: Path, jump_ms: int) -> None:
    at_one = datetime(2026, 11, 26, 1).astimezone()
    begin_ms = int(at_one.timestamp() * 1_000)
    totals = Totals(10, 4)
    history = History(lambda: totals, now_ms=begin_ms - 2 * HOUR_MS)
    history.sample(begin_ms)  # midnight has passed
    for moment_ms in (jump_ms, 0, jump_ms, 0):
        totals = Totals(totals.put_count + 1, 4)
        history.sample(begin_ms + moment_ms)
    assert history.this_morning == Totals(10, 4)


async def measure_rates(folder: Path, jump_ms: int) -> None:
    async with stored_broker(folder) as broker:
        clock = clock_of(broker)
        for second in range(120):
            clock.advance(1_000)
            broker.stats.get_count += 10
            if second % 50 == 40:
                clock.jump(clock.now_ms() + jump_ms)
            sample_totals(broker)
        assert broker.measured.rates.rate("get_count", 60) == 10.0
        assert get_runtime(broker) == "[ 0 days, 0 hours, 2 minutes, 0 seconds ]"
        broker.store.writer.put(make_message("T", 0), lambda _: None)
        batch = broker.store.writer.commit()
        clock.jump(clock.now_ms() + jump_ms)
        broker.driver.sends.note_commit(batch, 0.02)
        classes = broker.driver.sends.put_times.classes()
        assert {name: count for name, count in classes.items() if count} == {"10~50ms": 1}
        assert broker.driver.sends.put_times.max_ms == 20


def get_runtime(broker: Broker) -> str:
    disk = DiskFigures(Path(), 0, 0, 0, 0)
    return runtime_table(broker, disk)["runtime"]


async def wait_for_the_disk(_: Path, jump_ms: int) -> None:
    store = Jumping(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    results: list[PutResult] = []
    store.rig.store.writer.put(make_message(), results.append)
    store.rig.store.writer.commit()
    assert store.rig.store.upkeep.flusher.job() is not None  # this sync never ends
    store.jump(jump_ms)
    assert store.rig.store.upkeep.flusher.job() is None
    assert not results
    store.rig.clock.advance(5_000)
    store.rig.store.upkeep.flusher.job()
    assert [it.status for it in results] == [PutStatus.FLUSH_DISK_TIMEOUT]


async def keep_clients(folder: Path, jump_ms: int) -> None:
    async with stored_broker(folder) as broker:
        clock = clock_of(broker)
        client = Client(FakePeer(), "c", 0, 401, clock.monotonic_ms())
        broker.clients.producers.register("P", client)
        clock.jump(clock.now_ms() + jump_ms)
        expire_clients(broker)
        assert broker.clients.producers.clients("P")
        clock.advance(121_000)
        expire_clients(broker)
        assert not broker.clients.producers.clients("P")


async def change_subscriptions(folder: Path, jump_ms: int) -> None:
    """One member's clock was `jump_ms` off, and its subscription is the one that ends."""
    async with stored_broker(folder, enablePropertyFilter="true") as broker:
        first, second = FakePeer("10.0.0.1:1"), FakePeer("10.0.0.1:2")
        now_ms = broker.clock.now_ms()
        await beat(broker, first, now_ms + jump_ms, "a = 1")
        await beat(broker, second, now_ms, "a = 2")
        connection_closed(broker, first)
        first = FakePeer("10.0.0.1:3")
        await beat(broker, first, now_ms + MINUTE_MS, "a = 2")
        assert wanted_by(broker) == {"TAG": "a = 2", "SQL92": "a = 2"}
        connection_closed(broker, first)
        connection_closed(broker, second)

        await beat(broker, first, now_ms - jump_ms, "a = 3")
        await beat(broker, first, now_ms - 2 * jump_ms, "a = 4")
        assert wanted_by(broker) == {"TAG": "a = 4", "SQL92": "a = 4"}


async def beat(broker: Broker, peer: FakePeer, version: int, text: str) -> None:
    wanted = [
        SubscriptionData(topic=kind, sub_string=text, expression_type=kind, sub_version=version)
        for kind in ("TAG", "SQL92")
    ]
    data = ConsumerData(group_name="G", subscription_data_set=wanted)
    body = encode_json(Heartbeat(peer.address, [data]))
    heart_beat(broker, Call(RequestCode.HEART_BEAT, NoHeader(), body=body, peer=peer))


def wanted_by(broker: Broker) -> dict[str, str]:
    """Return the expressions by which the broker filters for the group."""
    tags = broker.clients.consumers.subscription("G", "TAG")
    sql = broker.tables.filters.get("SQL92", "G")
    assert tags is not None
    assert sql is not None
    return {"TAG": tags.sub_string, "SQL92": sql.expression}


LINES: Final[dict[str, Callable[[Path, int], Any]]] = {
    "store times of messages": stand_by_the_clock,
    "searches by time": search_by_time,
    "key queries in a period": query_by_key,
    "retention": keep_files,
    "delayed messages and retries": deliver,
    "transaction checks": check,
    "totals of the day": count_days,
    "rates and statistics": measure_rates,
    "sends that wait for the disk or for slaves": wait_for_the_disk,
    "missing heartbeats, queue locks, held pulls": keep_clients,
    "changed subscriptions": change_subscriptions,
}


@pytest.mark.parametrize("jump_ms", [5 * HOUR_MS, -5 * HOUR_MS], ids=["forward", "back"])
@pytest.mark.parametrize("line", LINES)
async def test_a_jump_of_the_clock(line: str, jump_ms: int, tmp_path: Path) -> None:
    await LINES[line](tmp_path, jump_ms)
