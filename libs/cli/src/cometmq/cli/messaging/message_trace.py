# SPDX-License-Identifier: Apache-2.0
"""`cometmq message trace`: what clients have recorded about a message, and what brokers know."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask, wrong_usage
from cometmq.cli.output import AsJson, Cell, print_json, print_notes, print_rows
from cometmq.client.admin import AdminClient
from cometmq.client.errors import ClientError, InvalidArgument, NoRoute
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
from cometmq.insight.browsing import FOUND_MAX, find_by_key
from cometmq.insight.life import Life, life_of
from cometmq.insight.times import shown
from cometmq.insight.words import counted
from cometmq.remoting.errors import QueryNotFound
from cometmq.remoting.names import TRACE_TOPIC

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


LIVES_MAX: Final = 20
"""The most messages that brokers are asked about; each takes one request per group."""
COLUMNS: Final = ("Time", "Seen by", "Event", "Group", "Client", "Took ms", "What")
_HOW: Final = (
    "clients write traces only with trace=True (Java: enableMsgTrace), a second later or so; they"
    " go to this topic, or to one that --trace-topic names"
)


def trace(
    message_id: Annotated[
        str | None, typer.Argument(help="Message id, as produce and consume print it.")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    key: Annotated[
        str | None, typer.Option("-k", "--key", help="All messages with this key instead.")
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", help="Topic of the message, if there is no trace."),
    ] = None,
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", help="Topic to which clients write their traces.")
    ] = TRACE_TOPIC,
    count_max: Annotated[
        int, typer.Option("--max", min=1, help="Read at most the N newest trace messages.")
    ] = FOUND_MAX,
    as_json: AsJson = False,
) -> None:
    """Show the way of a message: sent, stored, copied, consumed, retried, died, in order of time.

    Clients record what they did and how long it took, if tracing is on: cometmq and RocketMQ
    clients, also transactions. Brokers know the rest. Exit status 1 if nobody knows the message.

    \b
    EXAMPLES
      cometmq message trace C000020273E791982412642176550001
      cometmq message trace --key order-17 --json
    """
    if (message_id is None) == (key is None):
        raise wrong_usage("give a message id, or --key")
    wanted = message_id or key or ""

    async def question(admin: AdminClient) -> tuple[list[Moment], list[str]]:
        reason, messages, notes = await _trace_messages(admin, trace_topic, wanted, count_max)
        moments, more = of_traces(messages, message_id=message_id, key=key)
        notes += more
        whose = _whose(moments, message_id, topic)
        if key is not None and topic is not None:
            stored, more = await find_by_key(admin, topic, key, count_max=count_max)
            whose = list(dict.fromkeys([*whose, *((it.message_id, topic) for it in stored)]))
            notes += more
        lives, more = await _lives(admin, whose)
        # what brokers tell is enough, unless the user expects traces in a topic of his own
        if not moments and (not lives or trace_topic != TRACE_TOPIC):
            notes.append(reason or f"the topic {trace_topic} has no trace of {wanted}: {_HOW}")
        return moments + lives, notes + more

    found, notes = ask(namesrv, question)
    found.sort(key=lambda it: (it.message_id, it.at_ms is None, it.at_ms or 0))
    if as_json:
        print_json([it.as_object() for it in found])
    else:
        _print(found, has_titles=key is not None)
    print_notes(notes)
    if not found:
        raise ClientError(
            f"nobody knows a message with {'this key' if message_id is None else 'this id'}"
            + ("" if topic or key else "; brokers are asked if you give its topic: -t TOPIC")
        )


async def _trace_messages(
    admin: AdminClient, trace_topic: str, key: str, count_max: int
) -> tuple[str, list[MessageExt], list[str]]:
    """Return the reason why there can be no traces (or ""), the messages with traces, and notes."""
    try:
        return "", *await find_by_key(admin, trace_topic, key, count_max=count_max)
    except NoRoute:
        text = f"no broker has the topic {trace_topic} (traceTopicEnable=true creates it)"
        return text, [], []


def _whose(
    moments: list[Moment], message_id: str | None, topic: str | None
) -> list[tuple[str, str]]:
    """Return the messages to ask brokers about, each with its topic."""
    found = {it.message_id: it.topic for it in moments if it.topic}
    if message_id is not None and topic is not None:
        found[message_id] = topic
    return list(found.items())


async def _lives(
    admin: AdminClient, whose: list[tuple[str, str]]
) -> tuple[list[Moment], list[str]]:
    """Return what brokers know of messages, and notes on what is missing."""
    moments: list[Moment] = []
    notes: list[str] = []
    if len(whose) > LIVES_MAX:
        notes.append(f"brokers are asked about {LIVES_MAX} of {len(whose):,} messages only")
    for message_id, topic in whose[:LIVES_MAX]:
        try:
            try:
                found = await admin.query_by_unique_key(topic, message_id)
            except InvalidArgument:  # an offset message id
                found = [await admin.view_message(message_id, topic)]
            for message in found:
                moments += of_life(await life_of(admin, message))
        except (NoRoute, QueryNotFound) as error:
            notes.append(str(error))
    return moments, notes


def _print(found: list[Moment], *, has_titles: bool) -> None:
    for message_id in dict.fromkeys(it.message_id for it in found):
        rows = [_row(it) for it in found if it.message_id == message_id]
        print_rows(COLUMNS, rows, as_json=False, title=message_id if has_titles else "")


def _row(moment: Moment) -> list[Cell]:
    return [
        shown(moment.at_ms or 0), moment.seen_by, moment.event, moment.group or None,
        moment.client or None, moment.took_ms, moment.text,
    ]  # fmt: skip
