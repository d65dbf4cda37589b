# SPDX-License-Identifier: Apache-2.0
"""Under kill -9 of every process, committed messages are delivered, and no others.

Producers are processes that commit, roll back, forget, hang and die (transactor.py); broker,
txn-checker and name server are killed and started again at moments that the seed chooses.
"""

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest
from tests.crash.transactor import Decisions

from cometmq.client import AdminClient, ConsumeFrom, MessageExt, PushConsumer, PushOptions
from cometmq.peers.cli import CometCli
from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.peers.processes import Child

TRANSACTOR: Final = "tests.crash.transactor"
TOPIC: Final = "Transacted"
GROUP: Final = "Transactors"
ASIDE: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
PRODUCERS: Final = 3
SETTLE_TIMEOUT_S: Final = 240.0
COMMITTED_MIN, ROLLED_BACK_MIN, OPEN_MIN = 50, 20, 20
BROKER: Final = {
    "registerNameServerPeriod": 10_000,
    "mappedFileSizeCommitLog": 4 << 20,
    "mappedFileSizeConsumeQueue": 20_000,
    "flushConsumerOffsetInterval": 500,
    "diskSpaceCleanForciblyRatio": 100,
    "diskSpaceWarningLevelRatio": 100,
}
CHECKS: Final = {
    "transactionTimeOut": 0,
    "transactionCheckInterval": 200,
    "transactionCheckMax": 10_000,
    "pollNameServerInterval": 500,
    "persistInterval": 200,
    "checkpointInterval": 700,
    "backOffMax": 500,
    "pullSuspend": 1_000,
}


class Chaos:
    """The servers and producers of one run, and the faults that hit them."""

    def __init__(self, folder: Path, random: Random, flush: str) -> None:
        self.cluster = CometCluster(
            folder, {**BROKER, "flushDiskType": flush}, transaction_conf=CHECKS
        )
        self.random = random
        self.received: set[str] = set()
        self._folder = folder
        self._producers: dict[int, Child] = {}
        self._started = 0
        self._table = folder / "decisions.db"
        self.decisions = Decisions(self._table)

    # Producers

    def start_producer(self, slot: int, mode: str = "send") -> None:
        self._started += 1
        arguments = (
            *(self.cluster.namesrv_addr, GROUP, TOPIC, str(self._table)),
            *(f"{self.random.randrange(1 << 30)}x{self._started}", mode),
        )
        self._producers[slot] = Child(
            f"producer {slot}",
            [sys.executable, "-m", TRANSACTOR, *arguments],
            log_path=self._folder / f"producer-{self._started}.log",
        )

    def kill_producers(self) -> None:
        for child in self._producers.values():
            child.kill()
        self._producers.clear()

    def replace_dead_producers(self) -> None:
        for slot, child in list(self._producers.items()):
            if child.exit_status is not None:
                self.start_producer(slot)

    # Faults

    def kill_producer(self) -> None:
        slot = self.random.choice(list(self._producers))
        self._producers[slot].kill()

    def kill_broker(self) -> None:
        self.cluster.kill_broker()
        self.cluster.start_broker()

    def stop_broker(self) -> None:
        assert self.cluster.stop_broker() == 0
        self.cluster.start_broker()

    def kill_txn_checker(self) -> None:
        self.cluster.kill_txn_checker()
        self.cluster.start_txn_checker()

    def stop_txn_checker(self) -> None:
        assert self.cluster.stop_txn_checker() == 0
        self.cluster.start_txn_checker()

    def lose_txn_checkers_folder(self) -> None:
        self.cluster.kill_txn_checker()
        shutil.rmtree(self.cluster.txn_checker_dir)
        self.cluster.start_txn_checker()

    def kill_namesrv(self) -> None:
        assert self.cluster.namesrv is not None
        self.cluster.namesrv.kill()
        self.cluster.start_namesrv()

    def kill_all_servers(self) -> None:
        self.cluster.kill()
        self.cluster.start()

    BLOWS: Final[tuple[tuple[Callable[["Chaos"], None], int], ...]] = (
        (kill_producer, 3),
        (kill_broker, 4),
        (stop_broker, 1),
        (kill_txn_checker, 4),
        (stop_txn_checker, 1),
        (lose_txn_checkers_folder, 1),
        (kill_namesrv, 1),
        (kill_all_servers, 1),
    )

    async def strike(self, count: int) -> None:
        blows, weights = zip(*self.BLOWS, strict=True)
        for _ in range(count):
            await asyncio.sleep(self.random.uniform(0.1, 1.5))
            (blow,) = self.random.choices(blows, weights)
            say(f"{time.monotonic():.1f} {blow.__name__}")
            await asyncio.to_thread(blow, self)
            self.replace_dead_producers()

    async def work(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.replace_dead_producers()
            await asyncio.sleep(0.1)

    async def work_enough(self) -> None:
        """Keep the producers working until enough transactions have ended."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while (
                len(self.ended("commit")) <= COMMITTED_MIN
                or len(self.ended("rollback")) <= ROLLED_BACK_MIN
            ):
                await self.work(0.5)

    # Checks

    async def settle(self) -> None:
        """Stop sending, keep one producer for the checks, and wait until no transaction is open."""
        self.kill_producers()
        self.start_producer(0, "answer")
        async with (
            asyncio.timeout(SETTLE_TIMEOUT_S),
            AdminClient(self.cluster.namesrv_addr) as admin,
        ):
            while (count := await _open_count(admin)) != 0 or not self.is_delivered():
                say(f"{time.monotonic():.1f} {count} are open")
                await asyncio.sleep(0.5)

    def is_delivered(self) -> bool:
        return self.received >= self.ended("commit")

    def ended(self, outcome: str) -> set[str]:
        return {key for key, found in self.decisions.all().items() if found == outcome}

    def judge(self) -> None:
        committed, rolled_back = self.ended("commit"), self.ended("rollback")
        assert not committed - self.received, "committed and not delivered"
        assert not self.received & rolled_back, "rolled back and delivered"
        assert not self.received - committed, "delivered without a commit"
        assert len(committed) > COMMITTED_MIN
        assert len(rolled_back) > ROLLED_BACK_MIN
        say(f"{len(committed)} committed, {len(rolled_back)} rolled back")

    async def verify(self) -> None:
        cli = CometCli(self.cluster.namesrv_addr)
        folder = str(self.cluster.txn_checker_dir)
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                answer = await asyncio.to_thread(cli.run, "txn", "verify", folder, "--json")
                (found,) = answer.json
                assert found["differences"] == []
                if not (found["half_behind"] or found["op_behind"] or found["open_count"]):
                    return
                await asyncio.sleep(0.2)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


async def _open_count(admin: AdminClient) -> int | None:
    """Count open transactions; None while a restarted name server does not list the broker yet."""
    for master in (await admin.masters()).values():
        return len([half.offset async for half in master.open_transactions()])
    return None


@asynccontextmanager
async def consuming(chaos: Chaos) -> AsyncIterator[None]:
    async def listen(messages: list[MessageExt]) -> None:
        chaos.received.update(message.keys[0] for message in messages)

    options = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, heartbeat_interval_ms=1_000, suspend_ms=1_000
    )
    consumer = PushConsumer(
        "TransactedReaders", chaos.cluster.namesrv_addr, listener=listen, options=options
    )
    consumer.subscribe(TOPIC)
    async with consumer:
        yield


@asynccontextmanager
async def chaos_in(folder: Path, random: Random, flush: str) -> AsyncIterator[Chaos]:
    chaos = Chaos(folder, random, flush)
    cluster = chaos.cluster
    try:
        await asyncio.to_thread(cluster.start)
        await asyncio.to_thread(create_topic, cluster.namesrv_addr, cluster.broker_addrs, TOPIC)
        async with consuming(chaos):
            for slot in range(PRODUCERS):
                chaos.start_producer(slot)
            yield chaos
    finally:
        chaos.kill_producers()
        cluster.kill()


async def _nothing_was_given_up(chaos: Chaos) -> None:
    async with AdminClient(chaos.cluster.namesrv_addr) as admin:
        assert await admin.namesrv.route(ASIDE) is None


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_transactions_survive_everything(
    tmp_path: Path, random: Random, kills: int, flush: str
) -> None:
    async with chaos_in(tmp_path, random, flush) as chaos:
        await chaos.work(1.0)
        await chaos.strike(max(4, kills // 4))
        await chaos.work(1.0)
        await chaos.work_enough()
        await chaos.settle()
        chaos.judge()
        await chaos.verify()
        await _nothing_was_given_up(chaos)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_folder_lost", [False, True])
async def test_a_txn_checker_that_was_away_resolves_everything(
    tmp_path: Path, random: Random, absence_s: float, is_folder_lost: bool
) -> None:
    async with chaos_in(tmp_path, random, "ASYNC_FLUSH") as chaos:
        await chaos.work(2.0)
        await chaos.work_enough()
        assert await asyncio.to_thread(chaos.cluster.stop_txn_checker) == 0
        await chaos.work(absence_s)
        async with (
            asyncio.timeout(SETTLE_TIMEOUT_S),
            AdminClient(chaos.cluster.namesrv_addr) as admin,
        ):
            while (open_count := await _open_count(admin) or 0) <= OPEN_MIN:
                await chaos.work(0.5)
        if is_folder_lost:
            await asyncio.to_thread(shutil.rmtree, chaos.cluster.txn_checker_dir)
        await asyncio.to_thread(chaos.cluster.start_txn_checker)
        await chaos.settle()
        chaos.judge()
        await chaos.verify()
        say(f"{open_count} were open when it came back")
