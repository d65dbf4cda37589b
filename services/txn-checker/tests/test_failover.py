# SPDX-License-Identifier: Apache-2.0
"""The checker follows the masters of a broker group, with real brokers and a real name server.

Regular lookups and retries are an hour apart, so only a failover itself can cause them.
"""

from pathlib import Path
from typing import Any

import pytest

from cometmq.ha.orders import HandOver
from cometmq.remoting.errors import RequestTimeout
from cometmq.remoting.names import HALF_TOPIC
from cometmq.testing.broker.broker_groups import BrokerGroup, running_group
from cometmq.testing.remoting.half_answers import half_answers
from cometmq.txn_checker.app import TxnCheckerApp
from cometmq.txn_checker.broker_link import BrokerLink
from cometmq.txn_checker.settings import TxnCheckerSettings

HOUR = {
    "pollNameServerInterval": "3600000",
    "backOffMax": "3600000",
    "transactionTimeOut": "3600000",
    "transactionCheckInterval": "3600000",
    "pullSuspend": "15000",
    "pullPause": "0",  # a held pull ends with its connection: the loss is noticed before it is over
    "requestTimeout": "10000",
}


async def follows(checker: TxnCheckerApp, group: BrokerGroup, until: Any, open_count: int) -> None:
    """Wait until the checker follows the master and has read all half messages."""

    def is_done() -> bool:
        master = group.master
        if master is None or checker.brokers.fault() is not None:
            return False
        (one,) = checker.brokers.followers.values()
        is_there = checker.brokers.routes["broker-a"].address == group.address(master)
        return is_there and one.ledger is not None and one.ledger.halves.open_count == open_count

    await until(is_done)


async def test_the_checker_follows_the_masters_through_failovers(
    empty_suite: Any, tmp_path: Path, until: Any
) -> None:
    suite = empty_suite
    await suite.start_namesrv()
    async with running_group(tmp_path / "group", 2, namesrvAddr=suite.namesrv) as group:
        checker = await suite.checker(**HOUR)
        for number in range(3):
            master = group.open_master
            producer = await suite.producer(broker=group.address(master))
            await producer.prepare(f"k{number}")
            await follows(checker, group, until, number + 1)
            await group.until_in_sync(0, 1)
            await group.kill(master)
            await until(lambda: checker.brokers.fault() is not None)
            await group.until_master(master)
            await follows(checker, group, until, number + 1)
            await group.start(master)
            await group.until_in_sync(0, 1)
        (one,) = checker.brokers.followers.values()
        assert one.ledger.halves.next == 3


async def test_the_checker_follows_the_master_through_a_switchover(
    empty_suite: Any, tmp_path: Path, until: Any
) -> None:
    """The former master keeps its connections, and serves pulls as a slave."""
    suite = empty_suite
    await suite.start_namesrv()
    async with running_group(tmp_path / "group", 2, namesrvAddr=suite.namesrv) as group:
        old = group.open_master
        producer = await suite.producer(broker=group.address(old))
        await producer.prepare("before")
        checker = await suite.checker(**HOUR)
        await follows(checker, group, until, 1)
        await group.until_in_sync(0, 1)
        await group.member(old).obey(HandOver(1 - old))
        assert await group.until_master(old) == 1 - old
        await follows(checker, group, until, 1)
        producer = await suite.producer(broker=group.address(1 - old))
        await producer.prepare("after")
        await follows(checker, group, until, 2)


async def test_a_group_without_a_master_is_a_fault(
    empty_suite: Any, tmp_path: Path, until: Any
) -> None:
    suite = empty_suite
    await suite.start_namesrv(lostMasterKeepMs="0")
    async with running_group(tmp_path / "group", 2, namesrvAddr=suite.namesrv) as group:
        checker = await suite.checker(**HOUR)
        await follows(checker, group, until, 0)
        await group.until_in_sync(0, 1)
        master = group.open_master
        await group.kill(master)
        await until(lambda: checker.brokers.fault() == "broker-a: no master of it is registered")
        assert await group.until_master(master) == 1 - master
        await follows(checker, group, until, 0)


async def test_a_request_without_an_answer_drops_the_connection(suite: Any, until: Any) -> None:
    """The connection to a lost host never closes, and its name may resolve to a new address."""
    producer = await suite.producer()
    await producer.prepare("a")
    checker = await suite.checker(**HOUR)
    await until(
        lambda: (
            checker.brokers.fault() is None
            and checker.brokers.followers["broker-a"].ledger.halves.open_count == 1
        )
    )

    async def invoke(code: Any, header: Any = None, *, ok: Any = (), timeout_ms: Any = None) -> Any:
        return await checker.brokers.routes["broker-a"](code, header, ok=ok, timeout_ms=50)

    held = BrokerLink(invoke, TxnCheckerSettings())

    async def has_failed() -> bool:
        """Return whether the checker's own pull, which usually waits at the broker, has failed
        too.
        """
        with pytest.raises(RequestTimeout):
            await held.pull(HALF_TOPIC, 1)
        return bool(checker.brokers.followers["broker-a"].stats.failed_count)

    await until(has_failed)
    await until(lambda: checker.brokers.fault() is None)


async def test_a_name_server_that_stops_in_an_answer_is_soon_asked_anew(
    suite: Any, until: Any
) -> None:
    async with half_answers(suite.namesrv) as relay:
        suite.namesrv = relay.address
        checker = await suite.checker()

        def is_ready() -> bool:
            relay.is_broken = not relay.broken_count
            return checker.brokers.fault() is None

        await until(is_ready)
        await checker.stop()
