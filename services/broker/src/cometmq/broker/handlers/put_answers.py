# SPDX-License-Identifier: Apache-2.0
"""Answers to sends, derived from the results of the store."""

from typing import Any, Final

from msgspec import Struct

from cometmq.broker import refusals
from cometmq.broker.broker import Broker
from cometmq.remoting import remarks
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.send import SendMessageReply
from cometmq.remoting.errors import ServerError
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.store.results import PutResult, PutStatus
from cometmq.store.writing.write_state import Refusal

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_PUT_OK: Final = PutStatus.PUT_OK  # the attribute of an enum takes 40 ns


HEAD_BYTES_KEPT: Final = 4_096
COPY_BYTES_MIN: Final = 2_048


class _Subject(Struct, frozen=True):
    """The header of a send that waits: refusals are counted by topic, so only that is kept."""

    topic: str


STORED_CODES: Final = {
    PutStatus.FLUSH_DISK_TIMEOUT: int(ResponseCode.FLUSH_DISK_TIMEOUT),
    PutStatus.FLUSH_SLAVE_TIMEOUT: int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
    PutStatus.SLAVE_NOT_AVAILABLE: int(ResponseCode.SLAVE_NOT_AVAILABLE),
}

_TOO_LONG: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
_REFUSALS: Final = {
    PutStatus.CREATE_MAPPED_FILE_FAILED: (
        ResponseCode.SYSTEM_ERROR,
        remarks.MAPPED_FILE_CREATE_FAILED,
    ),
    PutStatus.OS_PAGE_CACHE_BUSY: (ResponseCode.SYSTEM_ERROR, remarks.PAGE_CACHE_BUSY),
}


def answer_put(
    broker: Broker, call: Call[Any], topic: str, queue_id: int, count: int, result: PutResult
) -> None:
    """Answer a send once its result is known."""
    status = result.status
    if status is _PUT_OK:
        code = _SUCCESS
    elif status in STORED_CODES:
        code = STORED_CODES[status]
    else:
        broker.stats.put_failed_count += count
        code, remark = refusal(broker, status)
        about = "" if topic == SCHEDULE_TOPIC else topic
        broker.admission.refused.note(call, code, remark, broker.clock.now_ms(), about)
        call.answer(Reply(code=code, remark=remark, ext=broker.config.send_ext))
        return
    broker.stats.count_put(topic, count, result.size)
    header = SendMessageReply(result.message_id, queue_id, result.queue_offset)
    call.answer(Reply(code, header, b"", None, broker.config.send_ext))


def answer_delayed(
    broker: Broker,
    call: Call[Any],
    level_id: int,
    queue_id: int,
    due_ms: int | None,
    result: PutResult,
) -> None:
    """Answer a send whose message goes to a delay level first; `due_ms` is its delivery time."""
    if result.status.is_stored:
        broker.stats.count_delayed(level_id, 1, result.size)
        if due_ms is not None:
            broker.deferred.alarm.ring_at(due_ms)
    answer_put(broker, call, SCHEDULE_TOPIC, queue_id, 1, result)


def answer_back(
    broker: Broker,
    call: Call[Any],
    origin: tuple[str, str],
    level_id: int | None,
    result: PutResult,
) -> None:
    """Answer a request that sends a message back, once its copy is stored or refused.

    `origin` is the original topic of the message, and the consumer group.
    """
    if result.status is not _PUT_OK:
        call.fail(ServerError(result.status.name))
        return
    stats = broker.stats
    if level_id is not None:
        stats.count_put(SCHEDULE_TOPIC, 1, result.size)
        stats.count_delayed(level_id, 1, result.size)
    stats.count_send_backs(*origin, 1)
    call.answer(OK)


def forget_message(call: Call[Any]) -> None:
    """Drop the parts of a request that the answer to its send does not need.

    The answer may wait for the disk or other copies. Meanwhile the request would keep a second copy
    of the staged message in memory, which no limit would bound after its connection has closed.
    """
    call.body = b""
    if len(call.head) > HEAD_BYTES_KEPT:
        call.head, call.header = b"", _Subject(call.header.topic)


def copy_bytes(call: Call[Any], message: NewMessage | None) -> int:
    """Return the approximate memory of a request until the copy of a message is stored."""
    size = COPY_BYTES_MIN + len(call.head)
    return size if message is None else size + len(message.body) + len(message.properties)


def group_refusal(broker: Broker) -> str | None:
    """Return why the broker's state in its group forbids writes; None if it allows them.

    This is for the remark: RocketMQ has one code for all states in which a store accepts no
    messages, so only the remark distinguishes an election from a full disk.
    """
    reasons = broker.store.stats().refusals
    if Refusal.TOO_FEW_COPIES in reasons:
        return refusals.too_few_copies(broker.settings.min_in_sync)
    if Refusal.ROLE in reasons and broker.settings.group_record:
        return refusals.not_the_master(broker.settings.broker_name, broker.role.state.role)
    return None


def _store_refusal(broker: Broker) -> str:
    stats = broker.store.stats()
    if Refusal.ROLE in stats.refusals or not stats.refusals:
        return refusals.service_not_available(stats.disk_used_percent / 100)
    name = broker.settings.broker_name
    return refusals.store_refuses(name, stats.refusals, stats.disk_used_percent)


def refusal(broker: Broker, status: PutStatus) -> tuple[int, str]:
    """Return the code and remark for a message that was not stored."""
    if status is PutStatus.SERVICE_NOT_AVAILABLE:
        remark = group_refusal(broker) or _store_refusal(broker)
        return int(ResponseCode.SERVICE_NOT_AVAILABLE), remark
    if status in _TOO_LONG:
        limit = broker.settings.max_message_size
        return int(ResponseCode.MESSAGE_ILLEGAL), remarks.message_illegal(limit)
    code, remark = _REFUSALS.get(status, (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"))
    return int(code), remark
