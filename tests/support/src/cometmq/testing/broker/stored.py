# SPDX-License-Identifier: Apache-2.0
"""A broker with a real store in a folder, but without sockets, for tests of sends and pulls."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cometmq.broker.broker import Broker
from cometmq.broker.delays.delays import Delays
from cometmq.broker.delays.finder import Finder
from cometmq.broker.delays.level import delay_file
from cometmq.broker.delays.parking import Destinations, Parking
from cometmq.broker.delays.positions import Positions
from cometmq.broker.delays.wheel import Wheel, WheelFiles
from cometmq.broker.handlers import HANDLERS
from cometmq.broker.handlers.arrivals import Arrivals
from cometmq.broker.hold import HoldTable
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.disk_jobs import Workers
from cometmq.broker.storing.large_puts import LargePuts
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.broker.storing.store_reads import StoreReads
from cometmq.broker.tables.persistence import TableSaver
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.errors import CommandError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.flow.writes import Writes
from cometmq.runtime.settings import load
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.testing.broker.brokers import SETTINGS, memory_broker
from cometmq.testing.remoting.peer import FakePeer
from cometmq.testing.runtime.clock import FakeClock

DRAIN_S_MAX = 120
"""Time for the reads, writes and saves that a test has left; without it, a lost one hangs."""
SMALL_FILES = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "20000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}


@asynccontextmanager
async def stored_broker(folder: Path, **settings: str) -> AsyncIterator[Broker]:
    """Run a broker on a store in a folder; `ask` commits its puts."""
    given = {"storePathRootDir": str(folder), **SMALL_FILES, **settings}
    loaded = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli={**SETTINGS, **given})
    broker = memory_broker(**given)
    clock_ms = broker.clock.now_ms
    disk = OsDisk()
    # Under memory pressure, the kernel may say that a page just written is not cached.
    # Then `ask` would return before the answer.
    disk.can_read_no_wait = False
    store = MessageStore.open(
        loaded.value,
        disk=disk,
        clock_ms=clock_ms,
        monotonic_ms=broker.clock.monotonic_ms,
        log=NO_LOG,
    )
    workers = Workers.start()
    broker.store = store
    broker.driver = StoreDriver(store, workers=workers, clock=broker.clock, log=NO_LOG)
    # A test may ask many times in one turn of the loop.
    broker.driver.reads = StoreReads(workers.read, log=NO_LOG, turn_s_max=math.inf)
    broker.driver.reads.places.requester_of = broker.admission.requester
    broker.tables.saver = TableSaver(workers.config, log=NO_LOG, runner=broker.pending.incremental)
    broker.pending.hold = HoldTable()
    broker.pending.large_puts = LargePuts(broker.driver)
    broker.deferred.parking = Parking(
        broker.tables.topics,
        broker.pending.large_puts,
        host=broker.process.store_host,
        monotonic_ms=broker.clock.monotonic_ms,
        log=NO_LOG,
    )
    broker.deferred.destinations = Destinations(broker.tables.topics, broker.tables.groups)
    levels = DelayLevels.parse(loaded.value.message_delay_level)
    positions = Positions(delay_file(str(folder / "config" / "delayOffset.json")), levels.numbers)
    host = broker.process.store_host
    wheel = Wheel(store, levels, WheelFiles(str(folder)), host=host)
    broker.deferred.delays = Delays(
        positions,
        Finder(store, positions.recalled, broker.deferred.destinations, levels, wheel, host),
        puts=broker.pending.large_puts,
        saver=broker.tables.saver,
        parking=broker.deferred.parking,
        stats=broker.stats,
        log=NO_LOG,
    )

    Arrivals(broker, Writes(asyncio.get_running_loop()))
    try:
        yield broker
    finally:
        try:
            async with asyncio.timeout(DRAIN_S_MAX):
                await broker.driver.drain()
                await broker.tables.saver.drain()
        finally:
            store.close()
            workers.close()


def clock_of(broker: Broker) -> FakeClock:
    """Return the clock of an in-memory broker, so that the test can advance it."""
    assert isinstance(broker.clock, FakeClock)
    return broker.clock


def call_with(code: int, header: Any, body: bytes = b"", **fields: Any) -> Call[Any]:
    """Return a call from a new connection."""
    return Call(code=code, header=header, body=body, peer=FakePeer(), **fields)


def ask(broker: Broker, call: Call[Any]) -> Any:
    """Serve a call and commit; return the reply, or None while the reply is pending.

    The type is Any because the header depends on the call's code.
    """
    try:
        result: Any = HANDLERS[call.code](broker, call)
    except CommandError as error:
        return Reply(code=error.code, remark=error.remark)
    if result is None:
        broker.driver.commit()
        return last_answer(call)
    return result if isinstance(result, Reply) else Reply(header=result)


def last_answer(call: Call[Any]) -> Any:
    """Return the answer that was sent later; None if there is none yet."""
    replies: list[Reply] = call.peer.replies
    return replies[-1] if replies else None
