# SPDX-License-Identifier: Apache-2.0
"""Lists the events of a message in order of time, from trace records and from brokers (pure
functions).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from cometmq.client.hooks import ConsumeOutcome, MessageKind
from cometmq.client.message import MessageExt
from cometmq.client.trace import (
    CorruptTrace,
    EndTransaction,
    Pub,
    SubAfter,
    SubBefore,
    TraceRecord,
    decode_trace,
)
from cometmq.insight.life import Life
from cometmq.insight.times import shown
from cometmq.insight.words import counted

CLIENTS: Final = "client"
BROKERS: Final = "broker"
_KINDS: Final = {
    MessageKind.TRANSACTION_HALF: "half message",
    MessageKind.TRANSACTION_COMMIT: "transaction",
    MessageKind.DELAY: "delayed message",
}


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a message."""

    message_id: str
    at_ms: int | None
    """The time of the event; None for a state whose beginning is not recorded."""
    seen_by: str
    """`client` for an event from a trace, else `broker`."""
    event: str
    group: str = ""
    client: str = ""
    """The address of the client."""
    took_ms: int | None = None
    is_success: bool | None = None
    text: str = ""
    topic: str = ""
    copy: str = ""
    """The offset message id of the stored copy concerned: original, retry or dead letter."""

    def as_object(self) -> dict[str, Any]:
        """Return the moment for JSON."""
        return {"time": shown(self.at_ms or 0), **msgspec.structs.asdict(self)}


def of_traces(
    messages: Iterable[MessageExt], *, message_id: str | None, key: str | None
) -> tuple[list[Moment], list[str]]:
    """Return the moments in trace messages that concern a message, or all with a key.

    The second list has a note for each trace message that cannot be read.
    """
    records: list[tuple[TraceRecord, str, str]] = []
    notes: list[str] = []
    for message in messages:
        try:
            decoded = decode_trace(message.body)
        except CorruptTrace as error:
            notes.append(f"the trace {message.offset_message_id} cannot be read: {error}")
            continue
        host = message.born_host.rpartition(":")[0]
        for record in decoded:
            # Java's batches have one record with all ids, separated by commas.
            ids = [it for it in record.message_id.split(",") if message_id in {None, it}]
            has_key = key is None or key in (getattr(record, "keys", None) or "").split()
            records += [(record, one, host) for one in ids if has_key]
    return list(_moments(records)), notes


def _moments(records: Sequence[tuple[TraceRecord, str, str]]) -> Iterator[Moment]:
    ends = {
        (record.request_id, one): record
        for record, one, _ in records
        if isinstance(record, SubAfter)
    }
    for record, one, host in records:
        if isinstance(record, Pub):
            yield _sent(record, one, host)
        elif isinstance(record, SubBefore):
            yield _consumed(record, ends.pop((record.request_id, one), None), one, host)
        elif isinstance(record, EndTransaction):
            yield _ended(record, one, host)
    for record, one, host in records:
        if isinstance(record, SubAfter) and ends.get((record.request_id, one)) is record:
            yield _returned(record, one, host)  # the record of its begin is lost


def _sent(record: Pub, message_id: str, host: str) -> Moment:
    kind = _KINDS.get(record.kind, "message")
    place = (
        f"{kind} of {counted(record.body_bytes, 'byte')} to {record.topic} at {record.store_host}"
    )
    return Moment(
        message_id=message_id, at_ms=record.timestamp, seen_by=CLIENTS, event="sent",
        group=record.group, client=record.client_host or host, took_ms=record.cost_ms,
        is_success=record.is_success, topic=record.topic,
        text=place if record.is_success else f"failed: {place}",
    )  # fmt: skip


def _consumed(record: SubBefore, after: SubAfter | None, message_id: str, host: str) -> Moment:
    attempt = f"attempt {record.retry_times + 1}"
    outcome = "no end is recorded" if after is None else _outcome(after)
    return Moment(
        message_id=message_id, at_ms=record.timestamp, seen_by=CLIENTS, event="consumed",
        group=record.group, client=host, took_ms=None if after is None else after.cost_ms,
        is_success=None if after is None else after.is_success, text=f"{attempt}: {outcome}",
    )  # fmt: skip


def _returned(record: SubAfter, message_id: str, host: str) -> Moment:
    return Moment(
        message_id=message_id, at_ms=record.timestamp or None, seen_by=CLIENTS, event="consumed",
        group=record.group or "", client=host, took_ms=record.cost_ms,
        is_success=record.is_success, text=_outcome(record),
    )  # fmt: skip


def _outcome(record: SubAfter) -> str:
    if record.is_success:
        return "success"
    known = record.outcome in ConsumeOutcome._value2member_map_
    name = ConsumeOutcome(record.outcome).name if known else str(record.outcome)
    return (
        "failed" if name in {"SUCCESS", "FAILED"} else f"failed: {name.lower().replace('_', ' ')}"
    )


def _ended(record: EndTransaction, message_id: str, host: str) -> Moment:
    asked = ", after a check by the broker" if record.is_from_check else ""
    return Moment(
        message_id=message_id, at_ms=record.timestamp, seen_by=CLIENTS, event="transaction",
        group=record.group, client=host, topic=record.topic,
        text=f"{record.state.name.lower()}{asked}",
    )  # fmt: skip


def of_life(life: Life) -> list[Moment]:
    """Return the moments that brokers know of a message."""
    return [
        Moment(
            message_id=life.message_id, at_ms=it.at_ms, seen_by=BROKERS,
            event=it.happening.value, group=it.group, topic=it.topic or life.topic, copy=it.message,
            text="; ".join(filter(None, (it.text, it.place, it.message and f"id {it.message}"))),
        )
        for it in life.events
    ]  # fmt: skip
