# SPDX-License-Identifier: Apache-2.0
"""Message trace: the sender, consumers, times and results of each message.

Clients with the `trace` option send these records to a topic, where RocketMQ's tools and dashboards
find them by message id or key. Their text is that of the Java client 4.9.4: a record is its type
and its fields, separated by `\x01` and terminated by `\x02`. An absent value is written as the word
`null`. Records of older clients have fewer fields.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from cometmq.client.hooks import MessageKind, TransactionState

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
_NULL: Final = "null"
_PUB_FIELDS_OLD: Final = 13
_SUB_AFTER_CODE_FIELDS: Final = 7
_SUB_AFTER_GROUP_FIELDS: Final = 9
_PUB_HOST_FIELDS: Final = 15


class CorruptTrace(ValueError):
    """Text that is not a valid trace record."""


class Pub(msgspec.Struct, frozen=True):
    """Records that a message was sent."""

    timestamp: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tag: str | None
    keys: str | None
    store_host: str
    body_bytes: int
    cost_ms: int
    kind: MessageKind
    offset_message_id: str | None = None
    is_success: bool = True
    client_host: str | None = None
    """Written only by some newer clients."""

    def fields(self) -> Sequence[object]:
        """Return the written fields, in order."""
        written = (
            *("Pub", self.timestamp, self.region, self.group, self.topic, self.message_id),
            *(self.tag, self.keys, self.store_host, self.body_bytes, self.cost_ms),
            *(int(self.kind), self.offset_message_id, self.is_success),
        )
        return written if self.client_host is None else (*written, self.client_host)


class SubBefore(msgspec.Struct, frozen=True):
    """Records that a listener is called with a message."""

    timestamp: int
    region: str | None
    group: str
    request_id: str
    """Links the record to its SubAfter."""
    message_id: str
    retry_times: int
    keys: str | None

    def fields(self) -> Sequence[object]:
        """Return the written fields, in order."""
        return (
            *("SubBefore", self.timestamp, self.region, self.group, self.request_id),
            *(self.message_id, self.retry_times, self.keys),
        )


class SubAfter(msgspec.Struct, frozen=True):
    """Records that a listener has returned."""

    request_id: str
    message_id: str
    cost_ms: int
    is_success: bool
    keys: str | None
    outcome: int = 0
    """A ConsumeOutcome."""
    timestamp: int = 0
    group: str | None = None

    def fields(self) -> Sequence[object]:
        """Return the written fields, in order."""
        return (
            *("SubAfter", self.request_id, self.message_id, self.cost_ms, self.is_success),
            *(self.keys, int(self.outcome), self.timestamp, self.group),
        )


class EndTransaction(msgspec.Struct, frozen=True):
    """Records that a transactional message was committed or rolled back."""

    timestamp: int
    region: str | None
    group: str
    topic: str
    message_id: str
    tag: str | None
    keys: str | None
    store_host: str
    kind: MessageKind
    transaction_id: str | None
    state: TransactionState
    is_from_check: bool

    def fields(self) -> Sequence[object]:
        """Return the written fields, in order."""
        return (
            *("EndTransaction", self.timestamp, self.region, self.group, self.topic),
            *(self.message_id, self.tag, self.keys, self.store_host, int(self.kind)),
            *(self.transaction_id, self.state.value, self.is_from_check),
        )


TraceRecord: TypeAlias = Pub | SubBefore | SubAfter | EndTransaction


def encode_record(record: TraceRecord) -> str:
    """Return the text of a record, with its terminator."""
    return FIELD_END.join([_text(field) for field in record.fields()]) + RECORD_END


def record_keys(record: TraceRecord) -> list[str]:
    """Return the search keys of a message's traces: its id and its own keys.

    Compatibility: an id with a space yields several keys, because the index splits it there, as in
    Java.
    """
    ids = [part for part in record.message_id.split(" ") if part]
    return [*ids, *(record.keys or "").split()]


def decode_trace(data: bytes | str) -> list[TraceRecord]:
    """Return the records of a trace message's body; raise CorruptTrace if one is broken.

    Unknown record types, written by newer clients, are skipped.
    """
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    found: list[TraceRecord] = []
    for line in text.split(RECORD_END):
        fields = line.split(FIELD_END)
        read = _READERS.get(fields[0])
        if read is None:
            continue
        try:
            found.append(read(fields))
        except (IndexError, ValueError) as error:
            raise CorruptTrace(f"a {fields[0]} record of {len(fields)} fields: {error}") from error
    return found


def _text(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _optional(text: str) -> str | None:
    return None if text == _NULL else text


def _pub(fields: list[str]) -> Pub:
    has_offset_id = len(fields) > _PUB_FIELDS_OLD
    return Pub(
        timestamp=int(fields[1]),
        region=_optional(fields[2]),
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        tag=_optional(fields[6]),
        keys=_optional(fields[7]),
        store_host=fields[8],
        body_bytes=int(fields[9]),
        cost_ms=int(fields[10]),
        kind=MessageKind(int(fields[11])),
        offset_message_id=_optional(fields[12]) if has_offset_id else None,
        is_success=fields[13 if has_offset_id else 12] == "true",
        client_host=fields[14] if len(fields) >= _PUB_HOST_FIELDS else None,
    )


def _sub_before(fields: list[str]) -> SubBefore:
    return SubBefore(
        timestamp=int(fields[1]),
        region=_optional(fields[2]),
        group=fields[3],
        request_id=fields[4],
        message_id=fields[5],
        retry_times=int(fields[6]),
        keys=_optional(fields[7]),
    )


def _sub_after(fields: list[str]) -> SubAfter:
    has_group = len(fields) >= _SUB_AFTER_GROUP_FIELDS
    return SubAfter(
        request_id=fields[1],
        message_id=fields[2],
        cost_ms=int(fields[3]),
        is_success=fields[4] == "true",
        keys=_optional(fields[5]),
        outcome=int(fields[6]) if len(fields) >= _SUB_AFTER_CODE_FIELDS else 0,
        timestamp=int(fields[7]) if has_group else 0,
        group=fields[8] if has_group else None,
    )


def _end_transaction(fields: list[str]) -> EndTransaction:
    return EndTransaction(
        timestamp=int(fields[1]),
        region=_optional(fields[2]),
        group=fields[3],
        topic=fields[4],
        message_id=fields[5],
        tag=_optional(fields[6]),
        keys=_optional(fields[7]),
        store_host=fields[8],
        kind=MessageKind(int(fields[9])),
        transaction_id=_optional(fields[10]),
        state=TransactionState(fields[11]),
        is_from_check=fields[12] == "true",
    )


_READERS: Final[Mapping[str, Callable[[list[str]], TraceRecord]]] = {
    "Pub": _pub,
    "SubBefore": _sub_before,
    "SubAfter": _sub_after,
    "EndTransaction": _end_transaction,
}
