# SPDX-License-Identifier: Apache-2.0
"""`cometmq message trace`: what clients have recorded about a message, and what brokers know."""

from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, ask, wrong_usage
from cometmq.cli.messaging.timeline import Moment, of_life, of_traces
from cometmq.cli.output import AsJson, Cell, print_json, print_notes, print_rows
from cometmq.client.admin import AdminClient
from cometmq.client.errors import ClientError, InvalidArgument, NoRoute
from cometmq.client.message import MessageExt
from cometmq.insight.key_search import COUNT_MAX, find_by_key
from cometmq.insight.life import life_of
from cometmq.insight.times import shown
from cometmq.remoting.errors import QueryNotFound
from cometmq.remoting.names import TRACE_TOPIC

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
    ] = COUNT_MAX,
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
