# SPDX-License-Identifier: Apache-2.0
"""Transactional messages: the records that they are stored as, and the state of each end (pure).

A half message waits in the half topic. It is ended by an op message that contains its queue offset;
a commit also stores the message in its real queue, in the same batch. The txn-checker, or a Java
broker that takes over the store, compares the two queues to find the open transactions.

Compatibility: records have RocketMQ 4.9.4's format; the body of an op message is the decimal queue
offset of one half message. RocketMQ 5 joins several offsets with commas; both forms are read.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Any, Final, TypeAlias

import msgspec

from cometmq.broker.messages import again, without_delay
from cometmq.remoting.command import Call
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.integers import whole
from cometmq.remoting.message.flags import TRANSACTION_COMMIT, TRANSACTION_MASK, tag_code
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import (
    PropertyKey,
    append_property,
    render_properties,
    without_property,
)
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import (
    CHECK_MAX_TIME_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    OP_TAG,
    SET_ASIDE,
)
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE
from cometmq.store.reader import Reader
from cometmq.store.reads import Lookup

COUNT_MAX: Final = 4_096
BODY_BYTES_MAX: Final = 2_048  # with the properties about 12 MB in all


class RecentHalf(msgspec.Struct, gc=False):
    """A stored half message; the caller of `take` may change its message."""

    group: str
    """The producer group."""
    place: tuple[str, int]
    """The real topic and queue of the message."""
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    message: NewMessage

    def to_new_message(self) -> NewMessage:
        return self.message


def is_kept(message: NewMessage) -> bool:
    """Return whether a half message is small enough to be kept in memory."""
    return len(message.body) <= BODY_BYTES_MAX


class RecentHalves:
    def __init__(self, *, count_max: int = COUNT_MAX) -> None:
        self._count_max = count_max
        self._halves: OrderedDict[int, RecentHalf] = OrderedDict()
        self.clear_count = 0
        """How often `clear` was called; the native lane then forgets its half messages."""

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, half: RecentHalf) -> None:
        """Keep a half message unless its body is large; above the limit, drop the oldest one."""
        if not is_kept(half.message):
            return
        self._halves[half.physical_offset] = half
        if len(self._halves) > self._count_max:
            self._halves.popitem(last=False)

    def clear(self) -> None:
        """Forget all half messages, because the log was truncated and will reuse their offsets."""
        self._halves.clear()
        self.clear_count += 1

    def take(self, physical_offset: int) -> RecentHalf | None:
        """Remove and return the half message at a log offset."""
        return self._halves.pop(physical_offset, None)


HALF_QUEUE_ID: Final = 0
QUEUE_COUNT: Final = 1  # of each of the three topics

OP_TAG_CODE: Final = tag_code(OP_TAG)
OP_TEXT: Final = render_properties({PropertyKey.WAIT: "true", PropertyKey.TAGS: OP_TAG})
_ASIDE_TEXT: Final = append_property(OP_TEXT, SET_ASIDE, "true")
_ENDED_BITS_MAX: Final = 1 << 26  # 8 MB
_RECALLED_OPS_MAX: Final = 100_000  # bounds the reads of a start
_ENTRIES_READ: Final = 1_024


def prepare(message: NewMessage, *, wait: str | None) -> None:
    """Turn a message into a half message; the real topic and queue are kept in its properties.

    Compatibility: WAIT is kept in the properties, as in RocketMQ. A delay is removed; a RocketMQ
    broker delays such a half message, and then loses it.
    """
    text = without_delay(message.properties)
    if wait is not None:
        text = append_property(text, PropertyKey.WAIT, wait)
    places = (
        (PropertyKey.REAL_TOPIC, message.topic),
        (PropertyKey.REAL_QUEUE_ID, str(message.queue_id)),
    )
    for name, value in places:
        text = append_property(without_property(text, name), name, value)
    message.properties = text
    message.topic = HALF_TOPIC
    message.queue_id = HALF_QUEUE_ID
    message.sys_flag &= ~TRANSACTION_MASK


def real_place(half: MessageRecord) -> tuple[str, int] | None:
    """Return the real topic and queue of a half message; None for any other record."""
    topic = half.properties.get(PropertyKey.REAL_TOPIC)
    queue_id = whole(half.properties.get(PropertyKey.REAL_QUEUE_ID, ""))
    if half.topic not in (HALF_TOPIC, CHECK_MAX_TIME_TOPIC) or not topic or queue_id is None:
        return None
    return topic, queue_id


Half: TypeAlias = RecentHalf | MessageRecord
"""A half message that is stored in the log."""


def committed(half: Half, place: tuple[str, int], *, host: bytes) -> NewMessage:
    """Return the message that consumers receive.

    Compatibility: REAL_TOPIC, REAL_QID and TRAN_MSG are kept in its properties.
    """
    message = half.to_new_message()
    message.topic, message.queue_id = place
    message.sys_flag = message.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_offset = half.physical_offset
    message.store_host = host
    message.wait = True
    return message


def op(half: Half, *, host: bytes, now_ms: int, is_aside: bool = False) -> NewMessage:
    """Return the op message that marks a half message as ended, or as set aside.

    Compatibility: RocketMQ's op messages do not tell the two apart, and its brokers ignore the
    property that does.
    """
    return NewMessage(
        OP_HALF_TOPIC,
        half.queue_id,
        0,
        0,
        now_ms,
        host,
        host,
        str(half.queue_offset).encode(),
        _ASIDE_TEXT if is_aside else OP_TEXT,
        tag_code=OP_TAG_CODE,
    )


def set_aside(half: MessageRecord, *, host: bytes) -> NewMessage:
    """Return the copy of a half message that is set aside for want of an outcome."""
    message = again(half, CHECK_MAX_TIME_TOPIC, 0, host=host, wait=True)
    message.prepared_offset = half.prepared_offset
    return message


def resumed(record: MessageRecord, *, host: bytes) -> NewMessage:
    """Return a copy of a half message, perhaps set aside, with its check count reset."""
    message = again(record, HALF_TOPIC, HALF_QUEUE_ID, host=host, wait=True)
    message.prepared_offset = record.prepared_offset
    name = PropertyKey.TRANSACTION_CHECK_TIMES
    message.properties = append_property(without_property(message.properties, name), name, "0")
    return message


def ended_offsets(body: bytes) -> Iterator[int]:
    """Yield the queue offsets of the half messages that an op message ends."""
    for text in body.split(b","):
        if (offset := whole(text.strip())) is not None:
            yield offset


class EndedHalves:
    """Half messages that have ended: one bit for each, by queue offset.

    This is only a cache. If a bit is dropped, a later request stores the end a second time.
    """

    def __init__(self, *, bits_max: int = _ENDED_BITS_MAX) -> None:
        self._base = 0
        self._bits = bytearray()
        self._bytes_max = bits_max // 8

    def __contains__(self, offset: int) -> bool:
        index = (offset >> 3) - self._base
        return 0 <= index < len(self._bits) and bool(self._bits[index] >> (offset & 7) & 1)

    def add(self, offset: int) -> None:
        if not self._bits:
            self._base = offset >> 3
        index = (offset >> 3) - self._base
        if index < 0:
            if len(self._bits) - index <= self._bytes_max:
                self._bits[:0] = bytes(-index)
                self._base += index
                self.add(offset)
            return
        missing = index + 1 - len(self._bits)
        if missing > self._bytes_max:
            self._bits.clear()
            self.add(offset)
            return
        if missing > 0:
            self._bits += bytes(missing)
        self._bits[index] |= 1 << (offset & 7)
        self._drop(len(self._bits) - self._bytes_max)

    def forget_below(self, offset: int) -> None:
        self._drop(min((offset >> 3) - self._base, len(self._bits)))

    def _drop(self, count: int) -> None:
        if count > 0:
            del self._bits[:count]
            self._base += count


class Outcome(Enum):
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    SET_ASIDE = "set aside"


ENDS_WAITING_MAX: Final = 16
"""Maximum number of requests that wait for the end of one half message; a producer
repeats a request a few times.

Only the first request counts against the limit COPY_BYTES.
"""


class EndState(Enum):
    """The state of a half message when a request to end it arrives."""

    BEGUN = "begun"
    """This is the first request; its caller stores the messages that end the transaction."""
    IN_FLIGHT = "in flight"
    """Another request is storing these messages; this one gets the same result."""
    ENDED = "ended"
    """The messages are already stored."""


class Transactions:
    """The ends of transactions at this broker, and counters.

    States of a half message: open -> in flight -> ended; a failed write returns it to open. Only
    half messages that are in flight or have ended are stored here.

    Compatibility: a half message that was set aside is checked no more, but its producer can still
    end it: its local transaction may take longer than all checks.
    """

    def __init__(self) -> None:
        self.recent = RecentHalves()
        self.ended = EndedHalves()
        self._aside = EndedHalves()
        self._in_flight: dict[int, list[Call[Any]]] = {}
        """By queue offset: the pending requests. Requests to set a half message aside are under the
        complement of its offset, so that a commit does not share their result.
        """
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.prepared_count = 0
        self.repeated_count = 0  # requests to end a half message that another request has ended
        self.asked_count = 0
        self.unasked_count = 0  # checks for which no producer of the group was connected

    def is_closed(self, half_offset: int) -> bool:
        """Return whether the half message has ended or was set aside: it needs no check."""
        return half_offset in self.ended or half_offset in self._aside

    def begin_end(self, half_offset: int, call: Call[Any], outcome: Outcome) -> EndState:
        """Register a request to end the half message at an offset; return the state found.

        Raise SystemBusy if too many requests wait for this end.
        """
        is_aside = outcome is Outcome.SET_ASIDE
        key = ~half_offset if is_aside and half_offset not in self._in_flight else half_offset
        has_ended = self.is_closed(half_offset) if is_aside else half_offset in self.ended
        pending = self._in_flight.get(key)
        if pending is None and not has_ended:
            self._in_flight[key] = [call]
            return EndState.BEGUN
        self.repeated_count += 1
        if pending is None:
            return EndState.ENDED
        if call.is_oneway:
            return EndState.IN_FLIGHT
        if len(pending) >= ENDS_WAITING_MAX:
            raise SystemBusy(
                "[TOO_MANY_ENDS]too many requests to end this half message are waiting"
            )
        pending.append(call)
        return EndState.IN_FLIGHT

    def finish_end(self, half_offset: int, outcome: Outcome, *, is_stored: bool) -> list[Call[Any]]:
        """Complete an end; return the requests to answer."""
        is_aside = outcome is Outcome.SET_ASIDE
        if is_stored:
            (self._aside if is_aside else self.ended).add(half_offset)
            self.outcomes[outcome] += 1
        return self._in_flight.pop(~half_offset if is_aside else half_offset)

    def begin_ends(self, half_offsets: Sequence[int]) -> bool:
        """Register requests that expect no answer, one per half message.

        If one of the half messages is not open, register nothing and return False.
        """
        in_flight, ended = self._in_flight, self.ended
        for offset in half_offsets:
            if offset in in_flight or offset in ended:
                return False
        in_flight.update([(offset, []) for offset in half_offsets])
        return True

    def finish_ends(self, half_offsets: Sequence[int], outcome: Outcome | None) -> list[Call[Any]]:
        """Complete the ends that `begin_ends` began, as `finish_end` does for each."""
        waiting: list[Call[Any]] = []
        for offset in half_offsets:
            waiting += self._in_flight.pop(offset)
            if outcome is not None:
                self.ended.add(offset)
        if outcome is not None:
            self.outcomes[outcome] += len(half_offsets)
        return waiting

    def restart(self) -> None:
        """Forget all state that depends on the end of the log, which a role change may have cut."""
        self.recent.clear()
        self.ended = EndedHalves()
        self._aside = EndedHalves()

    def forget_below(self, half_offset: int) -> None:
        """Forget the closed half messages below an offset."""
        self.ended.forget_below(half_offset)
        self._aside.forget_below(half_offset)

    def recall(self, offsets: Iterable[int]) -> None:
        """Mark half messages as ended if an earlier run stored their op messages."""
        for offset in offsets:
            self.ended.add(offset)


def stored_half(store: Reader, physical_offset: int) -> Lookup[MessageRecord | None]:
    """Find the record at an offset that a client has sent; it need not be a half message.

    A half message is returned only if its queue entry refers to this offset: the body of another
    message may contain a forged half message.
    """
    record = yield from store.read_record(physical_offset)
    if record is None or real_place(record) is None:
        return record
    place = yield from store.place(record.topic, record.queue_id, record.queue_offset)
    return record if place == physical_offset else None


def ended_since(store: Reader, op_offset: int) -> Lookup[list[int]]:
    """Find the half messages ended, not set aside, by the op messages at or after a queue offset.
    Of these op messages, read only the newest _RECALLED_OPS_MAX.
    """
    queue = store.queue(OP_HALF_TOPIC, HALF_QUEUE_ID)
    if queue is None:
        return []
    end = queue.max_offset
    offset = max(op_offset, queue.min_offset, end - _RECALLED_OPS_MAX)
    ended: list[int] = []
    while offset < end:
        data = yield from queue.plan(offset, _ENTRIES_READ).entries()
        if not data:
            break
        for physical_offset, size, _ in ENTRY.iter_unpack(data):
            offset += 1
            if size in {0, FILLER_SIZE}:
                continue
            record = yield from store.read_record(physical_offset)
            if record is None or record.topic != OP_HALF_TOPIC:
                continue
            if SET_ASIDE not in record.properties:
                ended += ended_offsets(record.body)
    return sorted(ended)
