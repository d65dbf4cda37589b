# SPDX-License-Identifier: Apache-2.0
"""The service beside a real broker and name server."""

import shutil
from typing import Any

import pytest

from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands.offsets import QueryConsumerOffset
from cometmq.remoting.errors import SettingsError
from cometmq.store.errors import LockHeld
from cometmq.txnchecker.app import TxnCheckerApp
from cometmq.txnchecker.follower import Follower

COMMIT, ROLLBACK = 8, 12
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ASIDE = "TRANS_CHECK_MAX_TIME_TOPIC"


def follower(checker: TxnCheckerApp) -> Follower:
    (one,) = checker.followers
    return one


def open_count(checker: TxnCheckerApp) -> int:
    if not checker.followers or follower(checker).ledger is None:
        return -1
    ledger = follower(checker).ledger
    assert ledger is not None
    return ledger.open_count


def all_ended(checker: TxnCheckerApp, count: int) -> bool:
    """Whether so many half messages have been read, and all are ended."""
    if open_count(checker) != 0:
        return False
    ledger = follower(checker).ledger
    return ledger is not None and ledger.half_next == count


async def committed(producer: Any, topic: str) -> int:
    answer = await producer.ask(
        Code.QUERY_CONSUMER_OFFSET, QueryConsumerOffset("CID_RMQ_SYS_TRANS", topic, 0)
    )
    return int(answer.header.offset) if answer.code == 0 else -1


async def test_open_transactions_end_as_their_producer_answers(suite: Any, until: Any) -> None:
    producer = await suite.producer()
    producer.answers = {"a": COMMIT, "b": ROLLBACK}
    await producer.prepare("a")
    await producer.prepare("b")
    checker = await suite.checker()

    await until(lambda: all_ended(checker, 2))

    assert await producer.received() == ["a"]
    assert set(producer.asked) == {"a", "b"}
    assert await producer.received(ASIDE) == []


async def test_what_ends_by_itself_is_not_asked_about(suite: Any, until: Any) -> None:
    checker = await suite.checker(transactionTimeOut="600000")
    producer = await suite.producer()
    halves = [await producer.prepare(f"k{number}") for number in range(5)]
    await until(lambda: open_count(checker) == 5)
    for half in halves:
        await producer.end(half, COMMIT)
    await until(lambda: all_ended(checker, 5))
    assert producer.asked == []


async def test_what_nobody_knows_is_set_aside_after_its_questions(suite: Any, until: Any) -> None:
    producer = await suite.producer()
    await producer.prepare("x")
    checker = await suite.checker()

    async def is_aside() -> bool:
        return await producer.received(ASIDE) == ["x"]

    await until(is_aside)
    await until(lambda: all_ended(checker, 1))
    assert producer.asked == ["x"] * 3
    assert follower(checker).stats.aside_count == 1
    assert await producer.received() == []


async def test_without_a_producer_a_transaction_stays_open(suite: Any, until: Any) -> None:
    """Questions that nobody was asked do not count."""
    producer = await suite.producer()
    await producer.prepare("x")
    await producer.close()
    checker = await suite.checker()
    await until(lambda: checker.followers and follower(checker).stats.unasked_count > 10)
    assert open_count(checker) == 1

    other = await suite.producer()
    other.answers = {"x": COMMIT}
    await other.beat()
    await until(lambda: open_count(checker) == 0)
    assert await other.received() == ["x"]


async def test_a_message_may_have_an_immunity_of_its_own(suite: Any, until: Any) -> None:
    producer = await suite.producer()
    producer.answers = {"late": COMMIT, "soon": COMMIT}
    await producer.prepare("late", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    await producer.prepare("soon")
    checker = await suite.checker()
    await until(lambda: open_count(checker) == 1 and follower(checker).stats.round_count > 5)
    assert set(producer.asked) == {"soon"}


async def test_the_broker_hears_below_what_all_is_ended(suite: Any, until: Any) -> None:
    producer = await suite.producer()
    halves = [await producer.prepare(f"k{number}") for number in range(4)]
    for number in (3, 0, 2):
        await producer.end(halves[number], COMMIT)
    checker = await suite.checker(transactionTimeOut="600000")

    async def is_told() -> bool:
        return (await committed(producer, HALF), await committed(producer, OP)) == (1, 0)

    await until(lambda: open_count(checker) == 1)
    await until(is_told)
    await producer.end(halves[1], ROLLBACK)

    async def is_told_all() -> bool:
        return (await committed(producer, HALF), await committed(producer, OP)) == (4, 4)

    await until(is_told_all)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_second_run_goes_on_where_the_first_ended(
    suite: Any, until: Any, is_lost: bool
) -> None:
    producer = await suite.producer()
    half = await producer.prepare("a")
    await producer.prepare("b")
    checker = await suite.checker(transactionTimeOut="600000")
    await until(lambda: open_count(checker) == 2)
    await checker.stop()
    await producer.end(half, COMMIT)
    await producer.prepare("c")
    if is_lost:
        shutil.rmtree(suite.folder / "txn")

    producer.answers = {"b": COMMIT, "c": ROLLBACK}
    again = await suite.checker()

    await until(lambda: all_ended(again, 3))
    assert sorted(await producer.received()) == ["a", "b"]
    assert set(producer.asked) == {"b", "c"}


async def test_a_broker_that_is_away_is_followed_again(suite: Any, until: Any) -> None:
    producer = await suite.producer()
    await producer.prepare("a")
    checker = await suite.checker(transactionTimeOut="600000")
    await until(lambda: open_count(checker) == 1)
    await suite.stop_broker()
    await until(lambda: follower(checker).stats.failed_count > 0)
    await suite.start_broker()
    await until(lambda: follower(checker).stats.is_following)
    other = await suite.producer()
    await other.prepare("b")
    await until(lambda: open_count(checker) == 2)


async def test_two_checkers_do_no_harm(suite: Any, until: Any) -> None:
    producer = await suite.producer()
    keys = [f"k{number}" for number in range(30)]
    producer.answers = dict.fromkeys(keys, COMMIT)
    for key in keys:
        await producer.prepare(key)
    both = [await suite.checker(name) for name in ("one", "two")]
    for checker in both:
        await until(lambda checker=checker: all_ended(checker, len(keys)))
    assert sorted(await producer.received()) == sorted(keys)


async def test_one_folder_is_for_one_checker(suite: Any) -> None:
    await suite.checker()
    with pytest.raises(LockHeld):
        await suite.checker()


async def test_name_servers_are_needed(suite: Any) -> None:
    with pytest.raises(SettingsError, match="namesrvAddr"):
        await suite.checker(namesrvAddr="")
