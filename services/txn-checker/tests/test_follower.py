# SPDX-License-Identifier: Apache-2.0
"""When a follower retries a failed broker: a scripted broker in virtual time."""

import asyncio
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cometmq.remoting.errors import (
    AccessDenied,
    ConnectFailed,
    ServiceNotAvailable,
    SlaveNotAvailable,
    SystemBusy,
)
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.testing.runtime.clock import FakeClock
from cometmq.testing.store.memory_disk import MemoryDisk
from cometmq.txn_checker.broker_link import Pulled
from cometmq.txn_checker.follower import MOVED, Follower
from cometmq.txn_checker.ledger import Ledger
from cometmq.txn_checker.settings import TxnCheckerSettings

BACK_OFF_MAX_S = 30.0
SLAVE = SlaveNotAvailable("Transactions are ended by the master of the broker group")


class _Selector(selectors.DefaultSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits, and none of them for a timer"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer: waits take no time and never overrun."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_in_virtual_time(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in virtual time; it must not wait for threads or sockets."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(test)


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110  # an arbitrary condition has no event
        await asyncio.sleep(0.001)


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Broker:
    """A broker without transactions; like a former master, it may refuse everything except
    pulls.
    """

    def __init__(self) -> None:
        self.refusal: Exception | None = None
        self.attempts_s: list[float] = []

    async def leaves_checks_to_us(self) -> bool:
        self.attempts_s.append(now_s())
        if self.refusal is not None:
            raise self.refusal
        return True

    async def end(self, _topic: str) -> int:
        return 0

    examined = oldest = end

    async def check_rights(self, _half: int, _op: int) -> None:
        return

    async def commit(self, _topic: str, _offset: int) -> None:
        return

    async def pull(self, _topic: str, offset: int) -> Pulled:
        await asyncio.sleep(15)
        return Pulled([], offset, 0, offset)

    def longest_pause_s(self) -> float:
        times = self.attempts_s
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class BusyBroker(Broker):
    """A broker to which transactions are written faster than single pulls can follow."""

    PULL_S = 0.001
    PER_S = 20_000
    PER_PULL = 32

    def __init__(self) -> None:
        super().__init__()
        self.pulled_s: dict[str, list[float]] = {HALF_TOPIC: [], OP_HALF_TOPIC: []}
        self.written_s = 1.0

    async def end(self, _topic: str) -> int:
        return round(self.PER_S * min(now_s(), self.written_s))

    async def examined(self, _topic: str) -> int:
        return 0

    async def pull(self, topic: str, offset: int) -> Pulled:
        self.pulled_s[topic].append(now_s())
        await asyncio.sleep(self.PULL_S)
        end = await self.end(topic)
        if end == offset:
            await asyncio.sleep(15)
        return Pulled([], min(end, offset + self.PER_PULL), 0, end)


def follower_of(broker: Any, lost: Callable[[], None] = lambda: None) -> Follower:
    async def open_ledger() -> Ledger:
        return Ledger(MemoryDisk(), "/ledger")

    return Follower(
        "broker-a",
        broker,
        TxnCheckerSettings(back_off_max=round(BACK_OFF_MAX_S * 1_000)),
        open_ledger=open_ledger,
        lost=lost,
        saver=None,  # type: ignore[arg-type]  # nothing changes, so nothing is saved
        clock=FakeClock(),
        log=NO_LOG,
    )


async def _fails_for(broker: Broker, follower: Follower, duration_s: float) -> None:
    """Run a follower whose broker fails from the beginning."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(follower.run())
        await asyncio.sleep(duration_s)
        assert follower.fault is not None
        assert broker.attempts_s
        task.cancel()


@pytest.mark.parametrize(
    "refusal",
    [SLAVE, ServiceNotAvailable("fenced"), SystemBusy("elected"), ConnectFailed("gone")],
    ids=lambda error: type(error).__name__,
)
def test_the_pauses_of_a_failover_stay_short(refusal: Exception) -> None:
    async def test() -> None:
        broker = Broker()
        broker.refusal = refusal
        await _fails_for(broker, follower_of(broker), 600)
        assert 0.9 < broker.longest_pause_s() < 1.1

    run_in_virtual_time(test())


@pytest.mark.parametrize("is_registered", [False, True])
def test_the_pauses_of_other_failures_double(is_registered: bool) -> None:
    """The same holds for a broker that is no longer known to any name server."""

    async def test() -> None:
        broker = Broker()
        broker.refusal = AccessDenied("no such account") if is_registered else ConnectFailed("gone")
        follower = follower_of(broker)
        follower.is_registered = is_registered
        await _fails_for(broker, follower, 600)
        assert BACK_OFF_MAX_S - 0.1 < broker.longest_pause_s() < BACK_OFF_MAX_S + 0.1
        assert len(broker.attempts_s) < 40

    run_in_virtual_time(test())


def test_a_follower_that_is_cancelled_while_its_broker_fails_ends() -> None:
    """In Python 3.11, a task group raises only the failure, so the cancellation would be lost."""

    async def test() -> None:
        broker = Broker()
        tasks = TaskSet()
        task = tasks.spawn(follower_of(broker).run(), name="follower")
        ask = broker.leaves_checks_to_us

        async def cancelled_while_asked() -> bool:
            task.cancel()
            return await ask()

        await asyncio.sleep(60.5)
        broker.refusal = SLAVE
        broker.leaves_checks_to_us = cancelled_while_asked  # type: ignore[method-assign]
        await asyncio.wait({task}, timeout=60)
        assert task.cancelled()

    run_in_virtual_time(test())


def test_a_new_route_ends_the_back_off() -> None:
    async def test() -> None:
        broker = Broker()
        broker.refusal = AccessDenied("no such account")
        follower = follower_of(broker)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(follower.run())
            await asyncio.sleep(600)
            broker.refusal, before_s = None, now_s()
            follower.route_changed()
            await until(lambda: follower.fault is None)
            assert now_s() - before_s < 0.1
            task.cancel()

    run_in_virtual_time(test())


def test_a_new_route_starts_again_at_the_new_master() -> None:
    """The follower moves even while the former master still answers."""

    async def test() -> None:
        broker = Broker()
        follower = follower_of(broker)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(follower.run())
            await asyncio.sleep(60.5)
            assert follower.stats.is_following
            broker.refusal = ConnectFailed("is starting")
            follower.route_changed()
            seen = set()
            while follower.stats.failed_count == 0:
                seen.add(follower.fault)
                await asyncio.sleep(0)
            assert MOVED in seen
            assert not follower.stats.is_following
            broker.refusal = None
            await until(lambda: follower.fault is None)
            assert now_s() < 61
            task.cancel()

    run_in_virtual_time(test())


def test_a_follower_notices_that_its_broker_is_no_longer_the_master() -> None:
    """A slave serves pulls, so successful pulls prove nothing."""

    async def test() -> None:
        broker = Broker()
        losses_s: list[float] = []
        follower = follower_of(broker, lambda: losses_s.append(now_s()))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(follower.run())
            await asyncio.sleep(60)
            assert follower.fault is None
            broker.refusal = SLAVE
            await until(lambda: losses_s)
            assert now_s() < 61.1
            assert follower.fault == str(SLAVE)
            assert not follower.stats.is_following
            task.cancel()

    run_in_virtual_time(test())


def test_what_arrives_while_queues_are_read_waits_for_the_pause() -> None:
    async def test() -> None:
        broker = BusyBroker()
        follower = follower_of(broker)
        pause_s = TxnCheckerSettings().pull_pause / 1_000
        async with asyncio.TaskGroup() as group:
            task = group.create_task(follower.run())
            await asyncio.sleep(3)
            assert follower.ledger is not None
            assert follower.ledger.halves.next == follower.ledger.ops.next == broker.PER_S
            assert (follower.stats.half_behind, follower.stats.op_behind) == (0, 0)
            task.cancel()
        for times in broker.pulled_s.values():
            gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
            pauses = [gap for gap in gaps if gap > 2 * broker.PULL_S]
            assert all(gap == pytest.approx(pause_s, abs=0.01) for gap in pauses)
            # At first nothing is there; then what half a second has brought, and so on.
            assert 3 <= len(pauses) <= 5
            assert times[0] < 0.1

    run_in_virtual_time(test())
