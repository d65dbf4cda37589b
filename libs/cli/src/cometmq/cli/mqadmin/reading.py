# SPDX-License-Identifier: Apache-2.0
"""The mqadmin commands that print ranges of queues."""

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask, wrong_usage
from cometmq.cli.mqadmin.frame import Family, Namesrv, Topic, TrueFalse
from cometmq.cli.mqadmin.text import java_text
from cometmq.cli.mqadmin.text.moments import FORMS, Begin, End, moment, past_moment
from cometmq.cli.output import AsJson, print_json
from cometmq.cli.say import say
from cometmq.cli.streams import is_terminal
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker_consumers import END
from cometmq.client.message import MessageExt
from cometmq.client.transfer.pulled import Pulled, PullStatus
from cometmq.insight import message_json
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.names import ALL_TAGS, TOOLS_GROUP
from cometmq.remoting.visible import visible

DEFAULT_COUNT: Final = 128
STATUS_NAMES: Final = {
    PullStatus.FOUND: "FOUND",
    PullStatus.NO_NEW: "NO_NEW_MSG",
    PullStatus.NO_MATCHED: "NO_MATCHED_MSG",
    PullStatus.OFFSET_ILLEGAL: "OFFSET_ILLEGAL",
}

app = Family()

Charset = Annotated[
    str, typer.Option("-c", "--charsetName", help="Encoding of the bodies: UTF-8, GBK.")
]
Expression = Annotated[
    str, typer.Option("-s", "--subExpression", help="Only these tags: 'TagA || TagB'.")
]
BrokerName = Annotated[str, typer.Option("-a", "--brokerName", help="Name of the broker.")]
QueueId = Annotated[int, typer.Option("-i", "--queueId", min=0, help="Number of the queue.")]


class Section(msgspec.Struct, frozen=True):
    """A range of a queue."""

    queue: MessageQueue
    begin: int
    end: int


class Page(msgspec.Struct):
    """Prints messages in the chosen form."""

    charset: str = "UTF-8"
    with_body: bool = True
    as_json: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown encoding before anything is printed."""
        try:
            b"x".decode(self.charset, "replace")
        except (LookupError, UnicodeError) as error:
            raise wrong_usage(f"-c: {error}") from error

    def print(self, messages: Iterable[MessageExt]) -> None:
        """Print messages; bytes invalid in the encoding are replaced."""
        for message in messages:
            if self.as_json:
                say(message_json.render(message))
                continue
            body = message.body.decode(self.charset, "replace")
            shown = body if self.with_body else "NOT PRINT BODY"
            say(f"MSGID: {message.message_id} {java_text.message(message)} BODY: ", nl=False)
            sys.stdout.write(f"{visible(shown) if is_terminal(sys.stdout) else shown}\n")

    def say(self, line: str) -> None:
        """Print an informational line."""
        if not self.as_json:
            say(line)


@app.named("printMsg")
def print_msg(
    topic: Topic,
    charset: Charset = "UTF-8",
    expression: Expression = ALL_TAGS,
    begin: Begin = None,
    end: End = None,
    body: Annotated[
        TrueFalse, typer.Option("-d", "--printBody", help="Whether to print bodies.")
    ] = "true",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a topic, queue by queue; with --json, one per line."""
    page = Page(charset, body == "true", as_json)
    begin_ms, end_ms = _optional(begin), _optional(end)

    async def question(admin: AdminClient) -> None:
        for queue in await admin.queues(topic):
            section = await _section(admin, queue, begin_ms, end_ms)
            page.say(
                f"minOffset={section.begin}, maxOffset={section.end}, {java_text.queue(queue)}"
            )
            await _print_section(admin, section, page, expression)
            page.say("-" * 56)

    ask(namesrv, question)


@app.named("printMsgByQueue")
def print_msg_by_queue(  # one parameter per option
    topic: Topic,
    broker: BrokerName,
    queue_id: QueueId,
    charset: Charset = "UTF-8",
    expression: Expression = ALL_TAGS,
    begin: Begin = None,
    end: End = None,
    printed: Annotated[
        TrueFalse,
        typer.Option("-p", "--print msg", "--printMsg", help="Whether to print messages."),
    ] = "false",
    body: Annotated[
        TrueFalse, typer.Option("-d", "--printBody", help="Whether to print bodies.")
    ] = "false",
    calculate: Annotated[
        TrueFalse, typer.Option("-f", "--calculate", help="Count the messages of each tag.")
    ] = "false",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the messages of a queue, or count them by tag."""
    page = Page(charset, body == "true", as_json)
    begin_ms, end_ms = _optional(begin), _optional(end)
    counts: Counter[str] = Counter()

    async def question(admin: AdminClient) -> None:
        queue = MessageQueue(topic, broker, queue_id)
        section = await _section(admin, queue, begin_ms, end_ms)
        reading = admin.read(queue, section.begin, section.end, expression=expression)
        async for pulled in reading:
            counts.update(message.tag for message in pulled.messages if message.tag)
            if printed == "true":
                page.print(pulled.messages)

    ask(namesrv, question)
    if calculate == "true":
        _print_counts(counts, as_json=as_json)


@app.named("consumeMessage")
def consume_message(  # one parameter per option
    topic: Topic,
    broker: Annotated[
        str | None, typer.Option("-b", "--brokerName", help="Name of the broker.")
    ] = None,
    queue_id: Annotated[
        int | None, typer.Option("-i", "--queueId", min=0, help="Number of the queue; needs -b.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option("-o", "--offset", min=0, help="Offset in the queue; needs -i.")
    ] = None,
    group: Annotated[
        str, typer.Option("-g", "--consumerGroup", help="Group to read as.")
    ] = TOOLS_GROUP,
    begin: Annotated[
        str | None,
        typer.Option(
            "-s", "--beginTimestamp", help=f"Only messages stored since this time: {FORMS}."
        ),
    ] = None,
    end: Annotated[
        str | None,
        typer.Option(
            "-e", "--endTimestamp", help=f"Only messages stored before this time: {FORMS}."
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("-c", "--MessageNumber", min=1, help="Maximum number of messages.")
    ] = DEFAULT_COUNT,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Print the oldest messages of a topic or queue, without committing offsets."""
    if queue_id is not None and broker is None:
        raise wrong_usage("Please set the brokerName before queueId!")
    if offset is not None and queue_id is None:
        raise wrong_usage("Please set queueId before offset!")
    times = (past_moment(begin, "-s"), past_moment(end, "-e"))
    page = Page(as_json=as_json)

    async def question(admin: AdminClient) -> None:
        left = count
        for queue in await admin.queues(topic):
            if broker not in {None, queue.broker_name} or queue_id not in {None, queue.queue_id}:
                continue
            section = await _section(admin, queue, *times)
            first = max(section.begin, offset or 0)
            section = Section(queue, first, min(section.end, first + left))
            left -= max(0, section.end - section.begin)
            await _print_section(admin, section, page, group=group, found="Consume ok")
            if left <= 0:
                return

    ask(namesrv, question)


# -- reading ----------------------------------------------------------------------------------


def _optional(text: str | None) -> int | None:
    return None if text is None or moment(text) == END else moment(text)


async def _section(
    admin: AdminClient, queue: MessageQueue, begin_ms: int | None, end_ms: int | None
) -> Section:
    """Return the range of a queue stored between two times."""
    begin, end = await admin.min_offset(queue), await admin.max_offset(queue)
    if begin_ms is not None:
        begin = await admin.search_offset(queue, begin_ms)
    if end_ms is not None:
        end = await admin.search_offset(queue, end_ms)
    return Section(queue, begin, end)


async def _print_section(
    admin: AdminClient,
    section: Section,
    page: Page,
    expression: str = ALL_TAGS,
    *,
    group: str = TOOLS_GROUP,
    found: str = "",
) -> None:
    queue = section.queue
    reading = admin.read(queue, section.begin, section.end, expression=expression, group=group)
    async for pulled in reading:
        if pulled.status is PullStatus.FOUND:
            if found:
                page.say(found)
            page.print(pulled.messages)
        else:
            page.say(_said(queue, pulled))


def _said(queue: MessageQueue, pulled: Pulled) -> str:
    is_over = pulled.status is not PullStatus.NO_MATCHED
    what = "print msg finished" if is_over else "no matched msg"
    status = STATUS_NAMES[pulled.status]
    return f"{java_text.queue(queue)} {what}. status={status}, offset={pulled.next_offset}"


def _print_counts(counts: Counter[str], *, as_json: bool) -> None:
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    if as_json:
        print_json(dict(ordered))
        return
    for tag, count in ordered:
        say(f"Tag: {tag:<30} Count: {count}")
