# SPDX-License-Identifier: Apache-2.0
"""Messages that were acknowledged, but cannot be stored where they belong.

The broker stores some messages a second time: delayed messages when they are due, half messages
when they are committed, and messages that a consumer sends back. If the second copy can never be
stored, it is parked: stored in a topic of its own (`PARKED_TOPIC`), with properties that name the
reason and its original destination. To retry instead would block, or deliver twice, all messages
behind it. If the store only refuses messages at the moment, the message waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from cometmq.broker.storing.large_puts import LargePuts
from cometmq.broker.tables.subscription_groups import Groups
from cometmq.broker.tables.topics import Topics
from cometmq.remoting.log import Log
from cometmq.remoting.message.flags import TRANSACTION_MASK
from cometmq.remoting.message.ids import offset_message_id
from cometmq.remoting.message.new_message import NewMessage, StoredAgain, record_size
from cometmq.remoting.message.properties import append_property, render_properties, without_property
from cometmq.remoting.message.record_layout import QUEUE_ID_MAX
from cometmq.remoting.names import PARKED_TOPIC, RETRY_PREFIX, SEND_FORBIDDEN_TOPICS
from cometmq.store.layout import is_storable
from cometmq.store.results import PutDone, PutResult, PutStatus

QUEUE_COUNT: Final = 1
LOG_INTERVAL_MS: Final = 60_000
"""Minimum interval between log lines about one reason, since a client may cause any number."""
RESERVED_BYTES: Final = 768
"""A message that will be stored again must be this many bytes smaller than a log file. The second
copy may have a longer topic, an op message beside it, and the properties of a parked message. The
native lane has the same bound.
"""
REFUSED_FOR_GOOD: Final = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
"""The statuses with which the store refuses a message for ever."""

REASON_KEY: Final = "PARKED_REASON"
TOPIC_KEY: Final = "PARKED_TOPIC"
QUEUE_KEY: Final = "PARKED_QID"
ID_KEY: Final = "PARKED_MESSAGE_ID"
_TOPIC_CHARS_MAX: Final = 127


class Reason(StrEnum):
    """Why a message is parked."""

    NO_TOPIC = "no_topic"
    SYSTEM_TOPIC = "system_topic"
    TOPIC_MISSING = "topic_missing"
    PLACE_ILLEGAL = "place_illegal"
    TOO_LARGE = "too_large"


_TEXTS: Final = {
    Reason.NO_TOPIC: "the message does not name its topic",
    Reason.SYSTEM_TOPIC: "the topic is a system topic",
    Reason.TOPIC_MISSING: "the topic does not exist",
    Reason.PLACE_ILLEGAL: "no record can have this topic or queue id",
    Reason.TOO_LARGE: "the body or the properties are too large for a record",
}


class Origin(StrEnum):
    """Why the message was stored the first time: what it waited for."""

    DELAY = "delay"
    TRANSACTION = "transaction"
    SEND_BACK = "send_back"


class Case(NamedTuple):
    """A message to park."""

    message: NewMessage
    """The copy that could not be stored, with its topic and queue."""
    origin: Origin
    reason: Reason
    physical_offset: int
    """The log offset of the record that was acknowledged."""


@dataclass(slots=True)
class Destinations:
    """Finds the queues of messages that waited in the broker, whose topics may have changed."""

    topics: Topics
    groups: Groups

    def queue_id(self, topic: str, queue_id: int) -> int | Reason:
        """Return the queue to store a message in, or the reason why there is none.

        This is another queue if the topic now has fewer queues, because no consumer would read the
        original one.
        """
        if not topic:
            return Reason.NO_TOPIC
        if topic in SEND_FORBIDDEN_TOPICS:
            return Reason.SYSTEM_TOPIC
        if not 0 <= queue_id <= QUEUE_ID_MAX or not is_storable(topic):
            return Reason.PLACE_ILLEGAL
        config = self.topics.table.get(topic)
        if config is None:
            name = topic.removeprefix(RETRY_PREFIX)
            group = self.groups.table.get(name) if topic.startswith(RETRY_PREFIX) else None
            if group is None:
                return Reason.TOPIC_MISSING  # even if recovery has built its queues again
            config = self.topics.create_retry(name, queue_nums=group.retry_queue_nums)
        numbers = config.read_queue_nums, config.write_queue_nums
        if queue_id < max(numbers):
            return queue_id
        return queue_id % (min(numbers) or max(numbers) or 1)

    def has(self, topic: str, queue_count: int) -> bool:
        """Return whether a topic has this many queues, so that `queue_id` changes no id."""
        config = self.topics.table.get(topic)
        if config is None or topic in SEND_FORBIDDEN_TOPICS:
            return False
        return queue_count <= max(config.read_queue_nums, config.write_queue_nums)


def is_storable_again(message: NewMessage, *, file_bytes: int) -> bool:
    """Return whether a message may wait in the broker: whether its later copy can be stored.

    `message` has its real topic, and `file_bytes` is the size of a log file.
    """
    if not is_storable(message.topic) or message.topic in SEND_FORBIDDEN_TOPICS:
        return False
    try:
        return record_size(message) + RESERVED_BYTES <= file_bytes
    except ValueError:
        return False


@dataclass(slots=True)
class Parking:
    """Parks messages, and counts them."""

    topics: Topics
    puts: LargePuts
    host: bytes
    monotonic_ms: Callable[[], int]
    log: Log
    counts: dict[Reason, int] = field(default_factory=lambda: dict.fromkeys(Reason, 0))
    _unlogged: dict[tuple[Origin, Reason], int] = field(default_factory=dict)
    _logged_ms: dict[tuple[Origin, Reason], int] = field(default_factory=dict)

    def park(self, case: Case, done: PutDone, *, also: Sequence[NewMessage] = ()) -> None:
        """Store a message in the topic of parked messages, together with the
        messages `also`: all or none are stored.

        If the copy is too large with its new properties, it is stored without its own properties,
        or without its body, which remains at the log offset that the copy names.
        """
        self.topics.create(PARKED_TOPIC, queue_nums=QUEUE_COUNT)
        self._store(case, _forms(case, host=self.host), done, also)

    def _store(
        self, case: Case, forms: list[NewMessage], done: PutDone, also: Sequence[NewMessage]
    ) -> None:
        def stored(result: PutResult) -> None:
            if result.status in REFUSED_FOR_GOOD and len(forms) > 1:
                self._store(case, forms[1:], done, also)
                return
            if result.status.is_stored:
                self._count(case)
            done(result)

        self.puts.put((forms[0], *also), stored)

    def _count(self, case: Case) -> None:
        self.counts[case.reason] += 1
        kind = case.origin, case.reason
        count = self._unlogged.get(kind, 0) + 1
        now_ms, logged_ms = self.monotonic_ms(), self._logged_ms.get(kind)
        if logged_ms is not None and now_ms - logged_ms < LOG_INTERVAL_MS:
            self._unlogged[kind] = count
            return
        self._unlogged[kind], self._logged_ms[kind] = 0, now_ms
        self.log.warning(
            "message.parked",
            origin=case.origin.value,
            topic=_printable(case.message.topic),
            queue_id=case.message.queue_id,
            physical_offset=case.physical_offset,
            reason=_TEXTS[case.reason],
            count=count,
            parked_in=PARKED_TOPIC,
        )


def _forms(case: Case, *, host: bytes) -> list[NewMessage]:
    """Return the copies to try, largest first."""
    message = case.message
    facts = {
        REASON_KEY: f"{case.origin.value}: {_TEXTS[case.reason]}",
        TOPIC_KEY: _printable(message.topic) or "-",
        QUEUE_KEY: str(message.queue_id),
        ID_KEY: offset_message_id(host, case.physical_offset),
    }
    text = message.properties
    for name, value in facts.items():
        text = append_property(without_property(text, name), name, value)
    short = render_properties(facts)
    whole = StoredAgain(
        PARKED_TOPIC,
        0,
        message.flag,
        message.sys_flag & ~TRANSACTION_MASK,
        message.born_timestamp,
        message.born_host,
        host,
        message.body,
        text,
        message.reconsume_times,
        0,
        message.tag_code,
        message.keys,
    )
    bare = StoredAgain(
        PARKED_TOPIC, 0, message.flag, whole.sys_flag, message.born_timestamp, message.born_host,
        host, message.body, short, message.reconsume_times,
    )  # fmt: skip
    notice = StoredAgain(
        PARKED_TOPIC, 0, 0, 0, message.born_timestamp, message.born_host, host, b"", short
    )
    return [whole, bare, notice]


def _printable(topic: str) -> str:
    """Return a topic for logs and properties, whose separators it must not contain."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in topic[:_TOPIC_CHARS_MAX])
