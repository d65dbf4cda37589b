# SPDX-License-Identifier: Apache-2.0
"""END_TRANSACTION (37), RESUME_CHECK_HALF_MESSAGE (323), and the txn-checker's requests.

The txn-checker decides when a producer is asked about a half message (ASK_TRANSACTION_STATE) and
when it is set aside without an outcome (SET_TRANSACTION_ASIDE). The broker has the messages and the
connections to producers, so it carries both out.

Invariant: a committed message, or its parked copy, and the op message that ends its half message
are contiguous in the log, written by one append.

Clients may forge offsets. So a request's fields are compared with the half message's record, and
the record's offset with its queue entry.
"""

import random
from functools import partial
from typing import Any, Final

from cometmq.broker.broker import Broker
from cometmq.broker.delays import timed
from cometmq.broker.delays.parking import REFUSED_FOR_GOOD, Case, Origin, Reason
from cometmq.broker.handlers.deferred_answers import look_up
from cometmq.broker.handlers.put_answers import STORED_CODES, copy_bytes, refusal
from cometmq.broker.handlers.stored_topics import check_half, check_writer
from cometmq.broker.messages import delay
from cometmq.broker.statistics.detours import SlowReason
from cometmq.broker.transactions.transactions import (
    HALF_QUEUE_ID,
    QUEUE_COUNT,
    EndState,
    Half,
    Outcome,
    committed,
    ended_since,
    op,
    real_place,
    resumed,
    set_aside,
    stored_half,
)
from cometmq.remoting import remarks
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.transactions import (
    AskTransactionState,
    AskTransactionStateReply,
    CheckTransactionState,
    EndTransaction,
    ResumeCheckHalfMessage,
    SetTransactionAside,
)
from cometmq.remoting.errors import MessageIllegal, ServerError, SlaveNotAvailable
from cometmq.remoting.message.flags import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_ROLLBACK,
)
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import (
    CHECK_GROUP,
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
)
from cometmq.remoting.raw import FLAG_ONEWAY
from cometmq.remoting.transport.tasks import describe
from cometmq.store.results import PutResult, PutStatus

_DECISIONS: Final = (TRANSACTION_NONE, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
_NOT_HALF: Final = "the record at the commit log offset is not a half message"
_FOLLOWER: Final = "Transactions are ended by the master of the broker group"


def end_transaction(broker: Broker, call: Call[EndTransaction]) -> Reply | None:
    """Commit or roll back a half message.

    Compatibility: a request that leaves the transaction open has no effect; RocketMQ does not even
    answer it.
    """
    header = call.header
    if broker.lane is not None:
        is_answered = not call.flag & FLAG_ONEWAY
        why = SlowReason.NO_NATIVE_FORM if is_answered else SlowReason.UNUSUAL
        broker.measured.detours.note(call.code, why)
    if header.commit_or_rollback not in _DECISIONS:
        raise ServerError(remarks.DECISION_WRONG)
    _check_role(broker)
    if header.from_transaction_check:
        broker.clients.habits.answered(header.producer_group)
    if header.commit_or_rollback == TRANSACTION_NONE:
        return OK
    check_topic, check_known = check_writer(broker, call), check_half(broker, call)
    recent = broker.deferred.transactions.recent.take(header.commit_log_offset)
    if recent is not None:
        check_known(recent.place[0])
        _check_names(header, group=recent.group, queue_offset=recent.queue_offset)
        check_topic(recent.place[0])
        return _end(broker, call, recent, recent.place)

    def found(record: MessageRecord | None) -> Reply | None:
        place = None if record is None else real_place(record)
        check_known(None if place is None else place[0])
        half = _check_end(header, record)
        if half.topic != HALF_TOPIC or place is None:
            raise ServerError(_NOT_HALF)
        check_topic(place[0])
        return _end(broker, call, half, place)

    lookup = stored_half(broker.store.reader, header.commit_log_offset)
    look_up(broker, call, lookup, found, is_part_of_put=True)
    return None


def _check_role(broker: Broker) -> None:
    if not broker.role.is_master:
        raise SlaveNotAvailable(_FOLLOWER)


def _check_end(header: EndTransaction, half: MessageRecord | None) -> MessageRecord:
    """Return the half message; raise CommandError for the first mismatch, in RocketMQ's order."""
    if half is None:
        raise ServerError(remarks.HALF_MESSAGE_NOT_FOUND)
    group = half.properties.get(PropertyKey.PRODUCER_GROUP)
    _check_names(header, group=group, queue_offset=half.queue_offset)
    if half.physical_offset != header.commit_log_offset:
        raise ServerError(remarks.COMMIT_LOG_OFFSET_WRONG)
    return half


def _check_names(header: EndTransaction, *, group: str | None, queue_offset: int) -> None:
    if group != header.producer_group:
        raise ServerError(remarks.PRODUCER_GROUP_WRONG)
    if queue_offset != header.tran_state_table_offset:
        raise ServerError(remarks.TRANSACTION_OFFSET_WRONG)


def _end(
    broker: Broker, call: Call[EndTransaction], half: Half, place: tuple[str, int]
) -> Reply | None:
    if call.header.commit_or_rollback == TRANSACTION_ROLLBACK:
        return _store_end(broker, call, half, Outcome.ROLLED_BACK)
    message = committed(half, place, host=broker.process.store_host)
    queue_id = broker.deferred.destinations.queue_id(*place)
    if isinstance(queue_id, Reason):
        return _store_end(broker, call, half, Outcome.COMMITTED, message, reason=queue_id)
    message.queue_id = queue_id
    _delay_timed(broker, message)
    return _store_end(broker, call, half, Outcome.COMMITTED, message)


def _delay_timed(broker: Broker, message: NewMessage) -> None:
    """Redirect a committed message with a delivery time, checked before, to a delay level."""
    now_ms, rules = broker.clock.now_ms(), broker.timer_rules
    try:
        due_ms = timed.requested_ms(message.properties, rules, now_ms)
    except MessageIllegal:  # stored by a broker with other rules
        return
    if due_ms is not None:
        delay(message, 1)
        timed.hop(message, rules.levels, due_ms, now_ms)


def _store_end(
    broker: Broker,
    call: Call[Any],
    half: Half,
    outcome: Outcome,
    message: NewMessage | None = None,
    *,
    reason: Reason | None = None,
) -> Reply | None:
    """Store the op message that ends a half message and, with the same append, the copy `message`.

    Concurrent requests for one half message share the result, except that a commit does not share
    that of a request to set it aside. With a `reason`, or if the store can
    never accept the copy, the copy is parked; otherwise the half message would be checked and
    committed again and again.
    """
    transactions, copies = broker.deferred.transactions, broker.pending.copies

    def answer(result: PutResult) -> None:
        is_stored = result.status.is_stored
        for waiting in transactions.finish_end(half.queue_offset, outcome, is_stored=is_stored):
            answer_end(broker, waiting, result)

    size = copy_bytes(call, message)
    room = broker.admission.room(call)
    copies.check(size, room)
    call.body = b""  # of no use, but it would wait with the request
    state = transactions.begin_end(half.queue_offset, call, outcome)
    if state is EndState.ENDED:
        return OK
    if state is EndState.IN_FLIGHT:
        return None
    finish = copies.counted(size, room, answer)
    end = op(
        half,
        host=broker.process.store_host,
        now_ms=broker.clock.now_ms(),
        is_aside=outcome is Outcome.SET_ASIDE,
    )

    def park(why: Reason) -> None:
        assert message is not None
        case = Case(message, Origin.TRANSACTION, why, half.physical_offset)
        broker.deferred.parking.park(case, finish, also=(end,))

    def stored(result: PutResult) -> None:
        if message is not None and result.status in REFUSED_FOR_GOOD:
            park(Reason.TOO_LARGE)
            return
        if outcome is Outcome.COMMITTED and message is not None and result.status.is_stored:
            _count_committed(broker, message, half.size)
        finish(result)

    broker.tables.topics.create(OP_HALF_TOPIC, queue_nums=QUEUE_COUNT)
    if reason is not None:
        park(reason)
    else:
        unit = (end,) if message is None else (message, end)
        broker.pending.large_puts.put(unit, stored, partial(broker.admission.requester, call))
    return None


def _count_committed(broker: Broker, message: NewMessage, size: int) -> None:
    broker.stats.count_put(message.topic, 1, size)
    if message.topic == SCHEDULE_TOPIC:
        broker.stats.count_delayed(message.queue_id, 1, size)
        broker.deferred.alarm.ring_at(message.tag_code)


def answer_end(broker: Broker, call: Call[Any], result: PutResult) -> None:
    """Answer a request once it is known whether its messages are stored."""
    status = result.status
    if status is PutStatus.PUT_OK:
        call.answer(OK)
    elif status.is_stored:
        call.answer(Reply(code=STORED_CODES[status]))
    else:
        code, remark = refusal(broker, status)
        call.answer(Reply(code=code, remark=remark))


def ask_transaction_state(broker: Broker, call: Call[AskTransactionState]) -> None:
    """Ask a producer of the group how the transaction of a half message ended."""
    _check_role(broker)

    def found(half: MessageRecord | None) -> AskTransactionStateReply:
        return _ask(broker, *_check_half(call.header, half))

    look_up(broker, call, stored_half(broker.store.reader, call.header.commit_log_offset), found)


def _check_half(
    header: AskTransactionState | SetTransactionAside, half: MessageRecord | None
) -> tuple[MessageRecord, tuple[str, int]]:
    if half is None:
        raise ServerError(remarks.HALF_MESSAGE_NOT_FOUND)
    place = real_place(half)
    if half.topic != HALF_TOPIC or place is None:
        raise ServerError(_NOT_HALF)
    if half.queue_offset != header.tran_state_table_offset:
        raise ServerError(remarks.TRANSACTION_OFFSET_WRONG)
    return half, place


def _ask(broker: Broker, half: MessageRecord, place: tuple[str, int]) -> AskTransactionStateReply:
    counts = broker.deferred.transactions
    if counts.is_closed(half.queue_offset):
        return AskTransactionStateReply(is_ended=True)
    group = half.properties.get(PropertyKey.PRODUCER_GROUP, "")
    peers = [
        client.peer for client in broker.clients.producers.clients(group) if client.peer.is_writable
    ]
    random.shuffle(peers)
    body = _as_sent(half, place)
    header = CheckTransactionState(
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.physical_offset,
        msg_id=half.unique_key,
        transaction_id=half.unique_key,
        offset_msg_id=half.offset_message_id,
    )
    for peer in peers:
        if peer.send(RequestCode.CHECK_TRANSACTION_STATE, header, body):
            counts.asked_count += 1
            broker.clients.habits.asked(
                group, half.queue_offset, broker.clock.now_ms(), counts.is_closed
            )
            return AskTransactionStateReply(producer_address=peer.address)
    counts.unasked_count += 1
    return AskTransactionStateReply()


def _as_sent(half: MessageRecord, place: tuple[str, int]) -> bytes:
    """Return the half message as its producer sent it, with the real topic and queue."""
    message = half.to_new_message()
    message.topic, message.queue_id = place
    return encode_record(message, half.queue_offset, half.physical_offset, half.store_timestamp)


def set_transaction_aside(broker: Broker, call: Call[SetTransactionAside]) -> None:
    """Move a half message without an outcome to TRANS_CHECK_MAX_TIME_TOPIC."""
    _check_role(broker)

    def found(half: MessageRecord | None) -> Reply | None:
        return _set_aside(broker, call, _check_half(call.header, half)[0])

    look_up(broker, call, stored_half(broker.store.reader, call.header.commit_log_offset), found)


def _set_aside(
    broker: Broker, call: Call[SetTransactionAside], half: MessageRecord
) -> Reply | None:
    broker.tables.topics.create(CHECK_MAX_TIME_TOPIC, queue_nums=QUEUE_COUNT)
    message = set_aside(half, host=broker.process.store_host)
    return _store_end(broker, call, half, Outcome.SET_ASIDE, message)


def resume_check_half_message(broker: Broker, call: Call[ResumeCheckHalfMessage]) -> None:
    """Store a half message again, with its check count reset."""
    _check_role(broker)
    try:
        offset = parse_offset_message_id(call.header.msg_id or "").physical_offset
    except ValueError as error:
        raise ServerError(str(error)) from error

    def found(record: MessageRecord | None) -> Reply | None:
        if record is None:
            raise ServerError(remarks.message_not_found(offset))
        if real_place(record) is None:
            raise ServerError(_NOT_HALF)
        _store_again(broker, call, resumed(record, host=broker.process.store_host))
        return None

    look_up(broker, call, stored_half(broker.store.reader, offset), found)


def _store_again(broker: Broker, call: Call[Any], message: NewMessage) -> None:
    broker.tables.topics.create(HALF_TOPIC, queue_nums=QUEUE_COUNT)

    def stored(result: PutResult) -> None:
        broker.deferred.transactions.prepared_count += result.status.is_stored
        answer_end(broker, call, result)

    broker.pending.large_puts.put([message], stored, partial(broker.admission.requester, call))


def recall_transactions(broker: Broker) -> None:
    """Create the transaction topics that the store has, and search in the background for half
    messages that ended before the start.

    Compatibility: RocketMQ's broker reads op messages directly, without a topic configuration. Here
    the txn-checker pulls them, so the topics must exist.
    """
    for topic in (HALF_TOPIC, OP_HALF_TOPIC):
        if broker.store.reader.queue(topic, HALF_QUEUE_ID) is not None:
            broker.tables.topics.create(topic, queue_nums=QUEUE_COUNT)
    examined = broker.tables.offsets.committed(CHECK_GROUP, OP_HALF_TOPIC, HALF_QUEUE_ID) or 0

    def failed(error: Exception) -> None:
        broker.log.warning("transactions.unrecalled", error=describe(error))

    lookup = ended_since(broker.store.reader, examined)
    broker.driver.reads.look_up(lookup, broker.deferred.transactions.recall, failed)


def forget_ended(broker: Broker) -> None:
    """Forget the ended half messages below the offset that the txn-checker has committed."""
    examined = broker.tables.offsets.committed(CHECK_GROUP, HALF_TOPIC, HALF_QUEUE_ID)
    if examined is not None:
        broker.deferred.transactions.forget_below(examined)
