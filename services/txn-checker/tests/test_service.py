# SPDX-License-Identifier: Apache-2.0
"""The service running with a real broker and name server."""

import asyncio
import errno
import shutil
from typing import Any

import pytest

from cometmq.client.admin import AdminClient
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands.offsets import QueryConsumerOffset, UpdateConsumerOffset
from cometmq.remoting.errors import SettingsError, command_error
from cometmq.store.errors import DiskError, LockHeld
from cometmq.txn_checker.app import TxnCheckerApp
from cometmq.txn_checker.broker_link import Asked, BrokerLink, Pulled
from cometmq.txn_checker.follower import Follower
from cometmq.txn_checker.ledger import Checkpoint

COMMIT, ROLLBACK = 8, 12
HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ASIDE = "TRANS_CHECK_MAX_TIME_TOPIC"


def follower(checker: TxnCheckerApp) -> Follower:
    (one,) = checker.brokers.followers.values()
    return one


def open_count(checker: TxnCheckerApp) -> int:
    if not checker.brokers.followers or follower(checker).ledger is None:
        return -1
    ledger = follower(checker).ledger
    assert ledger is not None
    return ledger.halves.open_count


def all_ended(checker: TxnCheckerApp, count: int) -> bool:
    """Return whether `count` half messages have been read and all have ended."""
    if open_count(checker) != 0:
        return False
    ledger = follower(checker).ledger
    return ledger is not None and ledger.halves.next == count


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


async def test_ended_transactions_are_not_checked(suite: Any, until: Any) -> None:
    checker = await suite.checker(transactionTimeOut="600000")
    producer = await suite.producer()
    halves = [await producer.prepare(f"k{number}") for number in range(5)]
    await until(lambda: open_count(checker) == 5)
    for half in halves:
        await producer.end(half, COMMIT)
    await until(lambda: all_ended(checker, 5))
    assert producer.asked == []


async def test_unresolved_transactions_are_set_aside_after_the_last_check(
    suite: Any, until: Any
) -> None:
    producer = await suite.producer()
    await producer.prepare("x")
    checker = await suite.checker(transactionCheckMax="3")

    async def is_aside() -> bool:
        return await producer.received(ASIDE) == ["x"]

    await until(is_aside)
    await until(lambda: all_ended(checker, 1))
    assert producer.asked == ["x"] * 3
    assert follower(checker).stats.aside_count == 1
    assert await producer.received() == []


async def test_without_a_producer_a_transaction_stays_open(suite: Any, until: Any) -> None:
    """Checks that reach no producer do not count."""
    producer = await suite.producer()
    await producer.prepare("x")
    await producer.close()
    checker = await suite.checker()
    await until(lambda: checker.brokers.followers and follower(checker).stats.unasked_count > 10)
    assert open_count(checker) == 1

    other = await suite.producer()
    other.answers = {"x": COMMIT}
    await other.beat()
    await until(lambda: open_count(checker) == 0)
    assert await other.received() == ["x"]


async def test_a_message_may_set_its_own_immunity(suite: Any, until: Any) -> None:
    producer = await suite.producer()
    producer.answers = {"late": COMMIT, "soon": COMMIT}
    await producer.prepare("late", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
    await producer.prepare("soon")
    checker = await suite.checker()
    await until(lambda: open_count(checker) == 1 and follower(checker).stats.round_count > 5)
    assert set(producer.asked) == {"soon"}


async def test_progress_is_committed_to_the_broker(suite: Any, until: Any) -> None:
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
async def test_a_second_run_resumes_where_the_first_stopped(
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


async def test_a_broker_that_returns_is_followed_again(suite: Any, until: Any) -> None:
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


async def test_an_invalid_immunity_stops_nothing(suite: Any, until: Any) -> None:
    producer = await suite.producer()
    producer.answers = {"a": COMMIT}
    await producer.prepare("x", CHECK_IMMUNITY_TIME_IN_SECONDS="9" * 5_000)
    await producer.prepare("a")
    checker = await suite.checker()
    await until(lambda: open_count(checker) == 1)
    assert await producer.received() == ["a"]
    assert follower(checker).stats.failed_count == 0


async def test_a_refused_transaction_does_not_hold_up_others(
    suite: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await suite.producer()
    producer.answers = {"b": COMMIT}
    await producer.prepare("a")
    await producer.prepare("b")
    ask = BrokerLink.ask

    async def ask_some(self: BrokerLink, index: int, physical_offset: int) -> Asked:
        if index == 0:
            return Asked(is_open=True, producer="", refusal="unreadable")
        return await ask(self, index, physical_offset)

    monkeypatch.setattr(BrokerLink, "ask", ask_some)
    checker = await suite.checker()
    await until(lambda: open_count(checker) == 1)
    await until(lambda: follower(checker).stats.refused_count > 1)
    assert await producer.received() == ["b"]


async def test_no_check_before_all_ends_are_read(
    suite: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a downtime, a transaction that looks open may have been ended by an op message that has
    not been read yet.
    """
    producer = await suite.producer()
    halves = [await producer.prepare(f"k{number}") for number in range(5)]
    for half in halves[:-1]:
        await producer.end(half, COMMIT)
    asked: list[int] = []
    looked: list[str] = []
    may_read_ops = asyncio.Event()
    pull, end = BrokerLink.pull, BrokerLink.end

    async def ask(_self: BrokerLink, index: int, _physical_offset: int) -> Asked:
        asked.append(index)
        return Asked(is_open=True, producer="here")

    async def pull_later(self: BrokerLink, topic: str, offset: int) -> Pulled | None:
        if topic == OP:
            await may_read_ops.wait()
        return await pull(self, topic, offset)

    async def look(self: BrokerLink, topic: str) -> int:
        looked.append(topic)
        return await end(self, topic)

    monkeypatch.setattr(BrokerLink, "ask", ask)
    monkeypatch.setattr(BrokerLink, "pull", pull_later)
    monkeypatch.setattr(BrokerLink, "end", look)
    checker = await suite.checker(transactionCheckInterval="10")
    await until(lambda: open_count(checker) == 5)
    await until(lambda: asked or OP in looked)
    assert not asked
    may_read_ops.set()
    await until(lambda: asked)
    assert set(asked) == {4}


async def test_a_broker_that_lost_everything_is_read_again(suite: Any, until: Any) -> None:
    """The new messages are read even if there are now more of them than were read before."""
    producer = await suite.producer()
    for number in range(3):
        await producer.prepare(f"k{number}")
    checker = await suite.checker(transactionTimeOut="600000")
    await until(lambda: open_count(checker) == 3)
    await checker.stop()
    await suite.stop_broker()
    shutil.rmtree(suite.folder / "store")
    await suite.start_broker()
    other = await suite.producer()
    halves = [await other.prepare(f"another{number}") for number in range(5)]
    await other.end(halves[0], COMMIT)

    again = await suite.checker(transactionTimeOut="600000")

    await until(lambda: open_count(again) == 4)
    other.answers = {f"another{number}": COMMIT for number in range(1, 5)}
    await again.stop()
    last = await suite.checker()
    await until(lambda: all_ended(last, 5))
    assert sorted(await other.received()) == [f"another{number}" for number in range(5)]


async def test_transactions_handled_by_another_checker_are_closed(suite: Any, until: Any) -> None:
    """A RocketMQ broker that checks a half message stores it again, without an op message."""
    producer = await suite.producer()
    await producer.prepare("old")
    checker = await suite.checker(transactionTimeOut="600000")
    await until(lambda: open_count(checker) == 1)
    await checker.stop()
    await producer.prepare("new")
    for topic, offset in ((HALF, 1), (OP, 0)):
        await producer.ask(
            Code.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset("CID_RMQ_SYS_TRANS", topic, 0, offset)
        )

    producer.answers = {"new": COMMIT}
    again = await suite.checker()

    await until(lambda: all_ended(again, 2))
    assert set(producer.asked) == {"new"}


async def test_a_ledger_is_recovered_after_a_disk_error(
    suite: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = await suite.producer()
    await producer.prepare("a")
    checker = await suite.checker(transactionTimeOut="600000", checkpointInterval="20")
    await until(lambda: open_count(checker) == 1)
    first = follower(checker).ledger
    sync = Checkpoint.sync
    failures = iter([True])

    def fail_once(self: Checkpoint) -> None:
        if next(failures, False):
            raise DiskError("sync", "a table", errno.EIO)
        sync(self)

    monkeypatch.setattr(Checkpoint, "sync", fail_once)
    await producer.prepare("b")
    await until(lambda: open_count(checker) == 2 and follower(checker).ledger is not first)
    assert follower(checker).stats.failed_count == 1


async def test_a_broker_named_like_a_path_is_not_followed(
    suite: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters = AdminClient.masters
    names = ["../escaped", "lock", ".."]

    async def with_others(self: AdminClient) -> Any:
        found = await masters(self)
        return {**dict.fromkeys(names, found["broker-a"]), **found}

    monkeypatch.setattr(AdminClient, "masters", with_others)
    checker = await suite.checker()
    await until(lambda: checker.brokers.followers)
    assert list(checker.brokers.followers) == ["broker-a"]
    assert not (suite.folder / "escaped").exists()


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


async def test_a_folder_has_one_checker_at_a_time(suite: Any) -> None:
    await suite.checker()
    with pytest.raises(LockHeld):
        await suite.checker()


async def test_name_servers_are_needed(suite: Any) -> None:
    with pytest.raises(SettingsError, match="namesrvAddr"):
        await suite.checker(namesrvAddr="")


async def test_readiness_follows_the_brokers(suite: Any, until: Any) -> None:
    checker = await suite.checker()
    await checker.wait_for_first_round(20_000)
    assert checker.brokers.fault() is None

    await suite.stop_broker()
    await until(
        lambda: checker.brokers.fault() == f"{suite.namesrv}: no broker is registered there"
    )
    await suite.start_broker()
    await until(lambda: checker.brokers.fault() is None)


async def test_a_broker_that_refuses_pulls_is_named_with_the_reason(
    suite: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account may check but not pull; these are separate permissions."""
    remark = "org.apache.rocketmq.acl.common.AclException: No default permission for the topic"

    async def refuse(_self: BrokerLink, _half: int, _op: int) -> None:
        raise command_error(ResponseCode.SYSTEM_ERROR, remark, suite.broker)

    monkeypatch.setattr(BrokerLink, "check_rights", refuse)
    checker = await suite.checker()
    await checker.wait_for_first_round(20_000)
    fault = checker.brokers.fault() or ""
    assert fault.startswith(f"broker-a ({suite.broker}): access denied: No default permission")
    assert fault.endswith("; set accessKey and secretKey to the account of an administrator")
    monkeypatch.undo()
    await until(lambda: checker.brokers.fault() is None)


async def test_a_name_server_that_does_not_answer_is_named(suite: Any) -> None:
    checker = await suite.checker(namesrvAddr="127.0.0.1:1")
    await checker.wait_for_first_round(20_000)
    assert checker.brokers.fault().startswith("127.0.0.1:1: ")


async def test_an_account_needs_both_keys(suite: Any) -> None:
    with pytest.raises(SettingsError, match="accessKey and secretKey belong together"):
        await suite.checker(accessKey="txn-checker")
