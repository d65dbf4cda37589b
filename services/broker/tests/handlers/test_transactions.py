# SPDX-License-Identifier: Apache-2.0

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.broker.broker import Broker
from cometmq.broker.clients.habits import CHECKS_MIN, Habits
from cometmq.broker.clients.producers import Client
from cometmq.broker.handlers import HANDLERS
from cometmq.broker.handlers.transactions import forget_ended, recall_transactions
from cometmq.broker.limits import COPY_BYTES
from cometmq.broker.role import ServedRole
from cometmq.broker.transactions.transactions import ENDS_WAITING_MAX, Outcome
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Reply
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.commands.transactions import (
    AskTransactionState,
    AskTransactionStateReply,
    CheckTransactionState,
    EndTransaction,
    ResumeCheckHalfMessage,
    SetTransactionAside,
)
from cometmq.remoting.message.new_message import encode_record
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.store.reads import finish
from cometmq.store.writing.write_state import Refusal
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.stored import ask, call_with, last_answer, stored_broker
from cometmq.testing.remoting.peer import FakePeer

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ASIDE = "TRANS_CHECK_MAX_TIME_TOPIC"
COMMIT, ROLLBACK, NONE = 8, 12, 0
TEXT = "TAGS\x01A\x02UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02WAIT\x01true"
SEND = SendMessageV2("P", "T", "TBW102", 4, 1, 4, 7, 3, TEXT)


def send(broker: Broker, text: str = TEXT, **fields: Any) -> Reply:
    header = msgspec.structs.replace(SEND, properties=text, **fields)
    return ask(broker, call_with(Code.SEND_MESSAGE_V2, header, b"body"))


def records(broker: Broker, topic: str, queue_id: int = 0) -> list[MessageRecord]:
    result = broker.store.reader.get_messages(topic, queue_id, 0, 32)
    return [decode_record(record) for record in result.records]


def prepared(broker: Broker) -> MessageRecord:
    assert send(broker).code == ResponseCode.SUCCESS
    return records(broker, HALF)[-1]


def end(broker: Broker, half: MessageRecord, how: int = COMMIT, **fields: Any) -> Reply:
    header = EndTransaction("P", half.queue_offset, half.physical_offset, how, "U")
    changed = msgspec.structs.replace(header, **fields)
    return ask(broker, call_with(Code.END_TRANSACTION, changed))


def test_a_half_message_is_stored_outside_its_queue(broker: Broker) -> None:
    reply = send(broker)

    assert reply.code == ResponseCode.SUCCESS
    assert isinstance(reply.header, SendMessageReply)
    assert (reply.header.queue_id, reply.header.queue_offset) == (1, 0)
    assert records(broker, "T", 1) == []
    (half,) = records(broker, HALF)
    assert half.properties["REAL_TOPIC"] == "T"
    assert half.properties["REAL_QID"] == "1"
    assert (half.sys_flag, half.body, half.flag) == (0, b"body", 3)
    assert broker.tables.topics.table[HALF].write_queue_nums == 1
    assert broker.deferred.transactions.prepared_count == 1
    found = finish(broker.store.reader.query(HALF, "U", 10, 0, 1 << 60))
    assert [record.physical_offset for record in found.records] == [half.physical_offset]


def test_a_commit_and_its_op_message_are_contiguous(broker: Broker) -> None:
    half = prepared(broker)

    assert end(broker, half) == Reply()

    (message,) = records(broker, "T", 1)
    (op,) = records(broker, OP)
    assert (message.body, message.sys_flag, message.prepared_offset) == (
        b"body", 8, half.physical_offset
    )  # fmt: skip
    assert message.properties_text == half.properties_text
    assert (op.body, op.tags) == (b"0", "d")
    assert op.physical_offset == message.physical_offset + message.size
    assert broker.deferred.transactions.outcomes[Outcome.COMMITTED] == 1


async def test_ends_that_wait_for_the_flush_are_bounded(tmp_path: Path) -> None:
    """They are oneway, so they do not count as in flight, and nothing else bounds them."""
    async with stored_broker(tmp_path, flushDiskType="SYNC_FLUSH") as broker:
        sending = call_with(Code.SEND_MESSAGE_V2, SEND, b"body")
        ask(broker, sending)
        await broker.driver.drain()
        (half,) = records(broker, HALF)
        header = EndTransaction("P", half.queue_offset, half.physical_offset, COMMIT, "U")
        under_way = broker.pending.copies

        under_way.size = COPY_BYTES.fixed
        refused = ask(broker, call_with(Code.END_TRANSACTION, header))
        assert refused.code == ResponseCode.SYSTEM_BUSY
        under_way.size = 0
        call = call_with(Code.END_TRANSACTION, header)
        assert ask(broker, call) is None
        assert under_way.size > len(b"body")

        await broker.driver.drain()
        assert last_answer(call) == Reply()
        assert under_way.size == 0
        assert len(records(broker, "T", 1)) == 1


def test_cached_and_read_half_messages_commit_alike(broker: Broker) -> None:
    remembered, forgotten = prepared(broker), prepared(broker)
    assert end(broker, remembered) == Reply()
    assert broker.deferred.transactions.recent.take(forgotten.physical_offset) is not None
    assert end(broker, forgotten) == Reply()
    one, other = records(broker, "T", 1)
    assert other.to_new_message() == msgspec.structs.replace(
        one.to_new_message(), prepared_offset=forgotten.physical_offset
    )
    assert [op.body for op in records(broker, OP)] == [b"0", b"1"]
    assert len(broker.deferred.transactions.recent) == 0


@pytest.mark.parametrize("is_remembered", [True, False])
def test_an_end_with_another_group_or_offset_has_no_effect(
    broker: Broker, is_remembered: bool
) -> None:
    for fields in ({"producer_group": "Other"}, {"tran_state_table_offset": 7}):
        half = prepared(broker)
        if not is_remembered:
            broker.deferred.transactions.recent.take(half.physical_offset)
        assert end(broker, half, **fields).code == ResponseCode.SYSTEM_ERROR
        assert end(broker, half) == Reply()
    assert len(records(broker, "T", 1)) == 2


def test_a_rollback_is_an_op_message_alone(broker: Broker) -> None:
    half = prepared(broker)
    assert end(broker, half, ROLLBACK) == Reply()
    assert records(broker, "T", 1) == []
    assert [op.body for op in records(broker, OP)] == [b"0"]
    assert broker.deferred.transactions.outcomes[Outcome.ROLLED_BACK] == 1


def test_a_second_end_changes_nothing(broker: Broker) -> None:
    half = prepared(broker)
    for how in (COMMIT, COMMIT, ROLLBACK):
        assert end(broker, half, how) == Reply()
    assert len(records(broker, "T", 1)) == 1
    assert len(records(broker, OP)) == 1
    assert broker.deferred.transactions.repeated_count == 2


def test_concurrent_ends_store_once_and_share_the_answer(broker: Broker) -> None:
    """A producer's own request and its answer to a check may arrive together."""
    half = prepared(broker)
    calls = [
        call_with(Code.END_TRANSACTION, EndTransaction("P", 0, half.physical_offset, how, "U"))
        for how in (COMMIT, COMMIT, ROLLBACK)
    ]
    aside = SetTransactionAside(half.physical_offset, half.queue_offset)
    calls.append(call_with(Code.SET_TRANSACTION_ASIDE, aside))
    for call in calls:
        assert HANDLERS[call.code](broker, call) is None
    assert [last_answer(call) for call in calls] == [None] * 4

    broker.driver.commit()

    assert [last_answer(call) for call in calls] == [Reply()] * 4
    assert len(records(broker, "T", 1)) == 1
    assert len(records(broker, OP)) == 1
    assert records(broker, ASIDE) == []
    counts = broker.deferred.transactions
    assert [*counts.outcomes.values(), counts.repeated_count] == [1, 0, 0, 3]
    assert counts._in_flight == {}


def test_few_requests_wait_for_one_end_and_without_their_bodies(broker: Broker) -> None:
    half = prepared(broker)
    header = EndTransaction("P", 0, half.physical_offset, COMMIT, "U")
    calls = [call_with(Code.END_TRANSACTION, header) for _ in range(ENDS_WAITING_MAX + 1)]
    for call in calls:
        call.body = bytes(1_000)
    for call in calls:
        assert HANDLERS[call.code](broker, call) is None
    *waiting, refused = (last_answer(call) for call in calls)
    assert waiting == [None] * ENDS_WAITING_MAX
    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert not any(call.body for call in calls)
    broker.driver.commit()
    assert [last_answer(call) for call in calls[:-1]] == [Reply()] * ENDS_WAITING_MAX


def test_a_failed_write_is_answered_to_all_concurrent_ends(broker: Broker) -> None:
    half = prepared(broker)
    broker.store.write_state.set(Refusal.DISK_FULL, holds=True)
    header = EndTransaction("P", 0, half.physical_offset, COMMIT, "U")
    calls = [call_with(Code.END_TRANSACTION, header) for _ in range(2)]
    for call in calls:
        HANDLERS[call.code](broker, call)
    broker.driver.commit()
    answers = [last_answer(call) for call in calls]
    assert [answer and answer.code for answer in answers] == [14, 14]
    assert broker.deferred.transactions._in_flight == {}


@pytest.mark.parametrize(
    ("how", "remark"),
    [(0, None), (4, "commitOrRollback field wrong"), (99, "commitOrRollback field wrong")],
)
def test_an_undecided_end_has_no_effect(broker: Broker, how: int, remark: str | None) -> None:
    half = prepared(broker)
    assert end(broker, half, how).remark == remark
    assert records(broker, OP) == []


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"commit_log_offset": 1 << 40}, "Find prepared transaction message failed"),
        ({"commit_log_offset": -1}, "Find prepared transaction message failed"),
        ({"commit_log_offset": 3}, "Find prepared transaction message failed"),
        ({"producer_group": "Q"}, "The producer group wrong"),
        ({"tran_state_table_offset": 1}, "The transaction state table offset wrong"),
    ],
)
def test_an_end_of_another_record_is_refused(
    broker: Broker, fields: dict[str, Any], remark: str
) -> None:
    reply = end(broker, prepared(broker), **fields)
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert records(broker, OP) == []


def test_only_half_messages_can_be_ended(broker: Broker) -> None:
    """A client can make a plain message look like a half message in every field that it sets."""
    send(broker, "PGROUP\x01P\x02REAL_TOPIC\x01T\x02REAL_QID\x010", sys_flag=0)
    (message,) = records(broker, "T", 1)
    reply = end(broker, message)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None
    assert "not a half message" in reply.remark
    assert records(broker, "T", 0) == []


def test_a_half_message_forged_in_a_body_is_refused(broker: Broker) -> None:
    """A client that guesses the log offset of its message's body can send a whole record in it."""
    genuine = prepared(broker)
    plain = "TAGS\x01A"
    send(broker, plain, sys_flag=0)
    (first,) = records(broker, "T", 1)
    forged = genuine.to_new_message()
    forged.properties = forged.properties.replace("REAL_TOPIC\x01T", "REAL_TOPIC\x01Secret")
    head = first.size - len(first.body) - len(first.topic) - 3 - len(first.properties_text)
    forged_at = first.physical_offset + first.size + head
    body = encode_record(forged, genuine.queue_offset, forged_at, 1)
    header = msgspec.structs.replace(SEND, properties=plain, sys_flag=0)
    ask(broker, call_with(Code.SEND_MESSAGE_V2, header, body))
    found = finish(broker.store.reader.read_record(forged_at))
    assert found is not None
    assert found.properties["REAL_TOPIC"] == "Secret"

    for reply in (end(broker, found), put_aside(broker, found), ask_state(broker, found)):
        assert reply.remark == "Find prepared transaction message failed"
    resume = ResumeCheckHalfMessage(found.offset_message_id)
    again = ask(broker, call_with(Code.RESUME_CHECK_HALF_MESSAGE, resume))
    assert again.code == ResponseCode.SYSTEM_ERROR
    assert records(broker, "Secret", 1) == []


def test_a_slave_refuses_ends(broker: Broker) -> None:
    half = prepared(broker)
    broker.role.take(ServedRole.SLAVE, 1)
    assert end(broker, half).code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_an_end_that_the_disk_refuses_can_be_retried(broker: Broker) -> None:
    half = prepared(broker)
    broker.store.write_state.set(Refusal.DISK_FULL, holds=True)
    assert end(broker, half).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert records(broker, "T", 1) == []
    broker.store.write_state.set(Refusal.DISK_FULL, holds=False)
    assert end(broker, half) == Reply()
    assert len(records(broker, "T", 1)) == 1


async def test_transactions_can_be_refused(tmp_path: Path) -> None:
    async with stored_broker(tmp_path, rejectTransactionMessage="true") as broker:
        reply = send(broker)
    assert reply.code == ResponseCode.NO_PERMISSION
    assert reply.remark is not None
    assert reply.remark.endswith("sending transaction message is forbidden")


def test_a_consumers_own_retry_of_a_committed_message_is_no_half_message(broker: Broker) -> None:
    broker.tables.groups.find("G", auto_create=True)
    send(broker, topic="%RETRY%G", queue_id=0, sys_flag=0, max_reconsume_times=16)
    assert records(broker, HALF) == []
    assert len(records(broker, "%RETRY%G")) == 1


def ask_state(broker: Broker, half: MessageRecord, **fields: Any) -> Reply:
    header = AskTransactionState(half.physical_offset, half.queue_offset)
    call = call_with(Code.ASK_TRANSACTION_STATE, msgspec.structs.replace(header, **fields))
    return ask(broker, call)


def test_a_producer_of_the_group_is_asked(broker: Broker) -> None:
    half = prepared(broker)
    gone, here, other = (FakePeer(f"127.0.0.1:{port}") for port in (1, 2, 3))
    gone.is_writable = False
    for group, peer in (("P", gone), ("P", here), ("Q", other)):
        broker.clients.producers.register(group, Client(peer, peer.address, 0, 401, 0))

    reply = ask_state(broker, half)

    assert reply.header == AskTransactionStateReply(producer_address="127.0.0.1:2")
    assert (gone.sent, other.sent) == ([], [])
    (sent,) = here.sent
    assert sent.code == Code.CHECK_TRANSACTION_STATE
    assert sent.header == CheckTransactionState(
        0, half.physical_offset, "U", "U", half.offset_message_id
    )
    body: Any = sent.body
    asked = decode_record(body)
    assert (asked.topic, asked.queue_id, asked.queue_offset) == ("T", 1, 0)
    assert (asked.body, asked.properties_text) == (half.body, half.properties_text)
    assert asked.physical_offset == half.physical_offset


@pytest.mark.parametrize("how", [None, COMMIT, NONE])
def test_connected_producers_that_never_answer_checks_are_noted(
    broker: Broker, how: int | None
) -> None:
    """Each answer counts, also that the transaction is still open."""
    half, log = prepared(broker), RecordingLog()
    broker.clients.habits = Habits(log)
    broker.clients.producers.register("P", Client(FakePeer(), "c", 0, 401, 0))
    for _ in range(CHECKS_MIN + 1):
        ask_state(broker, half)
        if how is not None:
            end(broker, half, how, from_transaction_check=True)
    noted = [(it.habit, it.group) for it in broker.clients.habits.newest()]
    assert noted == ([("checks unanswered", "P")] if how is None else [])
    assert len(log.named("producers.silent")) == len(noted)


def test_no_producer_of_the_group_is_connected(broker: Broker) -> None:
    half = prepared(broker)
    assert ask_state(broker, half).header == AskTransactionStateReply()
    assert broker.deferred.transactions.unasked_count == 1


def test_an_ended_half_message_is_not_checked(broker: Broker) -> None:
    half = prepared(broker)
    end(broker, half)
    assert ask_state(broker, half).header == AskTransactionStateReply(is_ended=True)


@pytest.mark.parametrize("fields", [{"commit_log_offset": 1 << 40}, {"tran_state_table_offset": 5}])
def test_a_check_of_another_record_is_refused(broker: Broker, fields: dict[str, Any]) -> None:
    assert ask_state(broker, prepared(broker), **fields).code == ResponseCode.SYSTEM_ERROR


def put_aside(broker: Broker, half: MessageRecord) -> Reply:
    header = SetTransactionAside(half.physical_offset, half.queue_offset)
    return ask(broker, call_with(Code.SET_TRANSACTION_ASIDE, header))


def test_an_open_half_message_is_set_aside_once(broker: Broker) -> None:
    half = prepared(broker)
    for _ in range(2):
        assert put_aside(broker, half) == Reply()
    (aside,) = records(broker, ASIDE)
    assert (aside.body, aside.properties_text) == (half.body, half.properties_text)
    assert [op.body for op in records(broker, OP)] == [b"0"]
    assert broker.deferred.transactions.outcomes[Outcome.SET_ASIDE] == 1


def test_a_half_message_set_aside_can_still_be_committed_once(broker: Broker) -> None:
    half = prepared(broker)
    put_aside(broker, half)
    assert ask_state(broker, half).header == AskTransactionStateReply(is_ended=True)
    for _ in range(2):
        assert end(broker, half) == Reply()
    assert put_aside(broker, half) == Reply()
    assert [message.body for message in records(broker, "T", 1)] == [b"body"]
    assert len(records(broker, ASIDE)) == 1
    assert [op.body for op in records(broker, OP)] == [b"0", b"0"]


def test_a_commit_does_not_share_the_end_of_a_half_message_that_is_set_aside(
    broker: Broker,
) -> None:
    half = prepared(broker)
    aside = call_with(
        Code.SET_TRANSACTION_ASIDE, SetTransactionAside(half.physical_offset, half.queue_offset)
    )
    commit = call_with(
        Code.END_TRANSACTION,
        EndTransaction("P", half.queue_offset, half.physical_offset, COMMIT, "U"),
    )
    for call in (aside, commit):
        HANDLERS[Code(call.code)](broker, call)
    broker.driver.commit()
    assert [message.body for message in records(broker, "T", 1)] == [b"body"]
    assert len(records(broker, ASIDE)) == 1


async def test_a_half_message_set_aside_before_a_restart_can_be_committed(tmp_path: Path) -> None:
    async with stored_broker(tmp_path) as broker:
        half = prepared(broker)
        put_aside(broker, half)
    async with stored_broker(tmp_path) as broker:
        broker.tables.topics.create("T", queue_nums=4)
        recall_transactions(broker)
        assert end(broker, half) == Reply()
        assert [message.body for message in records(broker, "T", 1)] == [b"body"]


def test_a_half_message_set_aside_can_be_resumed(broker: Broker) -> None:
    half = prepared(broker)
    put_aside(broker, half)
    (aside,) = records(broker, ASIDE)

    header = ResumeCheckHalfMessage(aside.offset_message_id)
    assert ask(broker, call_with(Code.RESUME_CHECK_HALF_MESSAGE, header)) == Reply()

    again = records(broker, HALF)[1]
    assert again.properties == {**half.properties, "TRANSACTION_CHECK_TIMES": "0"}
    assert end(broker, again) == Reply()
    assert [message.body for message in records(broker, "T", 1)] == [b"body"]


@pytest.mark.parametrize("message_id", [None, "", "x" * 32, "7F0000010000810B0000000000FFFFFF"])
def test_only_half_messages_are_resumed(broker: Broker, message_id: str | None) -> None:
    prepared(broker)
    call = call_with(Code.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessage(message_id))
    reply = ask(broker, call)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert len(records(broker, HALF)) == 1


async def test_ends_of_an_earlier_run_are_recalled(tmp_path: Path) -> None:
    async with stored_broker(tmp_path) as broker:
        halves = [prepared(broker) for _ in range(5)]
        for half in halves[:3]:
            end(broker, half)
    async with stored_broker(tmp_path) as broker:
        assert OP not in broker.tables.topics.table  # as RocketMQ's broker leaves a store
        broker.tables.topics.create("T", queue_nums=4)
        recall_transactions(broker)
        assert {HALF, OP} <= broker.tables.topics.table.keys()
        for half in halves[:4]:
            assert end(broker, half) == Reply()
        assert len(records(broker, "T", 1)) == 4
        assert broker.deferred.transactions.repeated_count == 3


def test_examined_ends_are_dropped(broker: Broker) -> None:
    halves = [prepared(broker) for _ in range(17)]
    end(broker, halves[0])
    end(broker, halves[16])
    broker.tables.offsets.commit("CID_RMQ_SYS_TRANS", HALF, 0, 16)
    forget_ended(broker)
    assert 0 not in broker.deferred.transactions.ended
    assert 16 in broker.deferred.transactions.ended
