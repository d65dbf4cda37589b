# SPDX-License-Identifier: Apache-2.0
"""Pulls that wait for messages are answered by arrivals, deadlines and ends, and are bounded."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from cometmq.broker.acl.check import AccessControl
from cometmq.broker.broker import Broker
from cometmq.broker.handlers.arrivals import RESUMES_MAX, Arrivals
from cometmq.remoting.bodies.acl import AclAccount
from cometmq.remoting.bodies.topic_config import DataVersion
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.raw import FLAG_ONEWAY, RawCommand
from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.flow.budget import LARGE_BYTES
from cometmq.remoting.transport.flow.writes import Writes
from cometmq.runtime.acl.accounts import Account, Accounts
from cometmq.store.errors import DiskError
from cometmq.store.os_disk import OsFile
from cometmq.testing.broker.stored import ask, call_with, clock_of, last_answer, stored_broker
from cometmq.testing.remoting.frames import encode_frame

if TYPE_CHECKING:
    from cometmq.broker.acl.keeper import AclKeeper

from .pulls import COMMIT, SUBSCRIPTION, SUSPEND, bodies, hold, pull_call, store


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with stored_broker(tmp_path) as broker:
        broker.tables.topics.create("T", queue_nums=4)
        yield broker


def test_a_pull_that_expects_no_answer_is_not_held(broker: Broker) -> None:
    """Such pulls do not count as in flight, so nothing would bound those of one connection."""
    call = pull_call(sys_flag=SUBSCRIPTION | SUSPEND | COMMIT, commit_offset=3)
    call.flag = FLAG_ONEWAY
    assert ask(broker, call) is None
    assert broker.pending.hold.count == 0
    assert broker.tables.offsets.committed("G", "T", 1) == 3


def test_a_held_pull_is_answered_by_an_arrival(broker: Broker) -> None:
    call = hold(broker)
    store(broker, "x", queue_id=2)
    assert last_answer(call) is None

    store(broker, "a")

    answer = last_answer(call)
    assert answer is not None
    assert bodies(answer) == [b"a"]
    assert broker.pending.hold.count == 0


async def test_many_woken_pulls_are_answered_over_several_turns(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    calls = [pull_call(sys_flag=SUBSCRIPTION | SUSPEND) for _ in range(RESUMES_MAX * 2 + 1)]

    def answered() -> int:
        return sum(last_answer(call) is not None for call in calls)

    writes = Writes(asyncio.get_running_loop())
    writes.is_scheduled = True
    monkeypatch.setattr(writes, "flush", lambda: flushed.append(answered()))
    broker.driver.turn.wake.calls.clear()
    Arrivals(broker, writes)
    for call in calls:
        assert ask(broker, call) is None
    flushed.clear()

    store(broker, "A")
    assert flushed == [0, RESUMES_MAX], "the sender is answered before the consumers"
    store(broker, "B")
    assert answered() == RESUMES_MAX * 2
    await asyncio.sleep(0)
    assert answered() == len(calls)
    assert broker.pending.hold.count == 0
    assert all(len(call.peer.replies) == 1 for call in calls)


def test_a_held_pull_with_a_filter_waits_for_its_tag(broker: Broker) -> None:
    call = hold(broker, subscription="b")
    store(broker, "a")
    assert last_answer(call) is None
    store(broker, "b")
    answer = last_answer(call)
    assert answer is not None
    assert bodies(answer) == [b"b"]


def test_the_sweep_moves_a_filtered_consumer_on(broker: Broker) -> None:
    call = hold(broker, subscription="b")
    store(broker, "a")
    broker.pending.hold.sweep(broker.clock.monotonic_ms(), broker.store.reader.max_offset)
    broker.driver.turn.wake()

    answer = last_answer(call)
    assert (answer.code, answer.header.next_begin_offset) == (20, 1)


def test_a_held_pull_ends_at_its_deadline(broker: Broker) -> None:
    call = hold(broker, suspend_timeout_millis=500)
    clock_of(broker).advance(499)
    broker.pending.hold.expire(broker.clock.monotonic_ms())
    broker.driver.turn.wake()
    assert last_answer(call) is None

    clock_of(broker).advance(1)
    broker.pending.hold.expire(broker.clock.monotonic_ms())
    broker.driver.turn.wake()
    answer = last_answer(call)
    assert (answer.code, answer.remark) == (19, "NO_MESSAGE_IN_QUEUE")


def test_the_offset_is_committed_once_although_the_pull_runs_twice(broker: Broker) -> None:
    hold(broker, sys_flag=SUBSCRIPTION | SUSPEND | COMMIT, commit_offset=5)
    assert broker.tables.offsets.committed("G", "T", 1) == 5
    broker.tables.offsets.commit("G", "T", 1, 6)
    store(broker, "a")
    assert broker.tables.offsets.committed("G", "T", 1) == 6


def test_deleting_the_topic_answers_a_held_pull(broker: Broker) -> None:
    call = hold(broker)
    broker.tables.topics.remove("T")
    broker.pending.hold.wake_all()
    broker.driver.turn.wake()
    answer = last_answer(call)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST


def test_a_closed_connection_gets_no_answer(broker: Broker) -> None:
    call = hold(broker)
    call.peer.close()
    store(broker, "a")
    assert last_answer(call) is None
    assert broker.pending.hold.count == 0


async def test_held_pulls_are_bounded(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, pullThreadPoolQueueCapacity="1") as broker:
        broker.tables.topics.create("T", queue_nums=4)
        first = hold(broker)
        second = hold(broker)
        broker.driver.turn.wake()
        assert last_answer(first).code == ResponseCode.PULL_NOT_FOUND
        assert last_answer(second) is None
        assert broker.pending.hold.count == 1


def test_a_held_pull_ends_with_the_right_of_its_account(broker: Broker) -> None:
    """Clients choose how long a pull is held: it must not outlive its account."""
    sub = Account(AclAccount("subscriber", default_group_perm="SUB", default_topic_perm="SUB",
                             secret_key="subscriberSecret"))  # fmt: skip
    both, none = (
        Accounts(accounts, version=DataVersion(), versions={}) for accounts in ([sub], ())
    )
    control = AccessControl(both, clock_ms=broker.clock.now_ms)
    broker.admission.acl = cast("AclKeeper", SimpleNamespace(control=control))
    calls = [hold(broker, queue_id=queue_id, suspend_timeout_millis=2**40) for queue_id in (1, 2)]
    for call in calls:
        header = {"consumerGroup": "G", "topic": "T"}
        sub.signer.add_to(header, b"", SessionCredentials("subscriber", ""))
        call.head = encode_frame(RawCommand(code=11, ext=header))[8:]
    store(broker, "a", queue_id=2)
    assert bodies(last_answer(calls[1])) == [b"a"]

    control.accounts = none
    store(broker, "a")

    answer = last_answer(calls[0])
    assert (answer.code, bytes(answer.body)) == (ResponseCode.SYSTEM_ERROR, b"")
    assert "No acl config for subscriber" in answer.remark


async def test_without_long_polling_a_pull_is_held_briefly(tmp_path: Path) -> None:
    settings = {"longPollingEnable": "false", "shortPollingTimeMills": "100"}
    async with stored_broker(tmp_path, **settings) as broker:
        broker.tables.topics.create("T", queue_nums=4)
        call = hold(broker)
        clock_of(broker).advance(100)
        broker.pending.hold.expire(broker.clock.monotonic_ms())
        broker.driver.turn.wake()
        assert last_answer(call) is not None


def test_a_woken_pull_waits_for_room(broker: Broker) -> None:
    call = hold(broker)
    call.peer.has_room = False
    store(broker, "a")
    assert last_answer(call) is None

    call.peer.has_room = True
    (waiting,) = call.peer.waiting
    waiting()
    answer = last_answer(call)
    assert answer is not None
    assert bodies(answer) == [b"a"]


def test_a_failing_read_fails_one_held_pull_only(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise DiskError("read", "/store/commitlog/0", errno.EIO)

    first, second = hold(broker), hold(broker)
    monkeypatch.setattr(OsFile, "read_cached", fail)
    store(broker, "a")

    for call in (first, second):
        answer = last_answer(call)
        assert answer.code == ResponseCode.SYSTEM_ERROR


def test_a_failing_pull_does_not_affect_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in one of the pulls that a message wakes affects only that pull."""
    calls = [hold(broker) for _ in range(3)]
    get_messages = broker.store.reader.get_messages
    failures = [KeyError("a bug"), None, DiskError("read", "/store/commitlog/0", errno.EIO)]

    def fail(*args: Any, **fields: Any) -> Any:
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        return get_messages(*args, **fields)

    monkeypatch.setattr(broker.store.reader, "get_messages", fail)
    store(broker, "a")

    answers = [last_answer(call) for call in calls]
    assert [answer.code for answer in answers if answer is not None] == [1, 0, 1]
    assert answers[0].remark == "KeyError: 'a bug'"


def test_small_answers_wait_for_no_peers_that_do_not_read(broker: Broker) -> None:
    """A good consumer waited for 0.5 s, until connections that read nothing were closed."""

    def of_full_server(call: Any) -> Any:
        call.peer.has_room, call.peer.has_small_room = False, True
        return call

    small = of_full_server(hold(broker))
    store(broker, "a")
    assert bodies(last_answer(small)) == [b"a"]

    header = SendMessageV2("P", "T", "TBW102", 4, 1, 0, 0, 0, "")
    ask(broker, call_with(310, header, bytes(LARGE_BYTES)))
    large = of_full_server(pull_call(queue_offset=1))
    assert ask(broker, large) is None
    large.peer.waiting.pop()()
    assert len(large.peer.waiting) == 1, "it waits until there is room"
    large.peer.has_room = True
    large.peer.waiting.pop()()
    assert bodies(last_answer(large)) == [bytes(LARGE_BYTES)]

    empty = of_full_server(pull_call(queue_offset=2, sys_flag=SUBSCRIPTION | SUSPEND))
    assert ask(broker, empty) is None
    assert broker.pending.hold.count == 1
