# SPDX-License-Identifier: Apache-2.0
"""Message trace: the sender, consumers, times and results of each message.

Clients with the `trace` option send these records to a topic, where RocketMQ's tools and dashboards
find them by message id or key. Their text is that of the Java client 4.9.4: a record is its type
and its fields, separated by `\x01` and terminated by `\x02`. An absent value is written as the word
`null`. Records of older clients have fewer fields.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias

import msgspec

from cometmq.client.hooks import MessageKind, TransactionState

FIELD_END: Final = "\x01"
RECORD_END: Final = "\x02"
_NULL: Final = "null"
_PUB_FIELDS_OLD: Final = 12
_PUB_OFFSET_ID: Final = 11


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


TraceRecord: TypeAlias = Pub | SubBefore | SubAfter | EndTransaction


def encode_record(record: TraceRecord) -> str:
    values = msgspec.structs.astuple(record)
    if isinstance(record, Pub) and record.client_host is None:
        values = values[:-1]
    return FIELD_END.join([type(record).__name__, *map(_text, values)]) + RECORD_END


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
        name, *texts = line.split(FIELD_END)
        if name == Pub.__name__ and len(texts) <= _PUB_FIELDS_OLD:
            texts.insert(_PUB_OFFSET_ID, _NULL)
        try:
            found += [_read(kind, texts) for kind in _KINDS if kind.__name__ == name]
        except (TypeError, ValueError) as error:
            raise CorruptTrace(f"a {name} record of {len(texts)} fields: {error}") from error
    return found


def _text(value: object) -> str:
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value.value if isinstance(value, Enum) else value)


def _read(kind: type[TraceRecord], texts: Sequence[str]) -> TraceRecord:
    """Return a record; its last fields may be absent."""
    given = zip(_readers(kind), texts, strict=False)
    return kind(**{name: read(text) for (name, read), text in given})


@cache
def _readers(kind: type[TraceRecord]) -> list[tuple[str, Callable[[str], Any]]]:
    fields = msgspec.structs.fields(kind)
    return [(field.name, _READERS.get(field.type, _optional)) for field in fields]


def _optional(text: str) -> str | None:
    return None if text == _NULL else text


_KINDS: Final = (Pub, SubBefore, SubAfter, EndTransaction)
_READERS: Final[Mapping[object, Callable[[str], Any]]] = {
    str: str,
    int: int,
    bool: "true".__eq__,
    MessageKind: lambda text: MessageKind(int(text)),
    TransactionState: TransactionState,
}
