# SPDX-License-Identifier: Apache-2.0
"""The mqadmin commands that print ranges of queues."""

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Annotated, Final, NamedTuple

import msgspec

from cometmq.cli.connecting import DEFAULT_NAMESRV, wrong_usage
from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.frame import Family, Namesrv, Reply, Topic, TrueFalse
from cometmq.cli.mqadmin.java_text import FORMS, Begin, End, past_moment
from cometmq.cli.mqadmin.java_text import parsed_moment as moment
from cometmq.cli.option_sets import opt
from cometmq.cli.output import AsJson
from cometmq.cli.say import say
from cometmq.cli.streams import is_terminal
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker_consumers import END
from cometmq.client.clock import wall_ms
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import BrokerMissing
from cometmq.client.message import MessageExt
from cometmq.client.transfer.pulled import Pulled, PullStatus
from cometmq.insight import message_json
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.stats import ConsumeQueueEntries, ConsumeQueueEntry
from cometmq.remoting.names import ALL_TAGS, TOOLS_GROUP
from cometmq.remoting.visible import visible

app = Family()


_ADDRESS_BYTES: Final = {16: 4, 28: 16}
"""The length of the address in a unique key, by the length of the key."""
_PROCESS_BYTES: Final = 6
_ENTRY_FIELDS: Final = ("physicOffset", "physicSize", "tagsCode")
_LINE: Final = "=" * 38


class Origin(NamedTuple):
    """The machine and the time in a unique key."""

    ip: str
    date: datetime


@app.named("DecodeMessageId")
def decode_message_id(
    message_id: Annotated[str, opt("-i", "--messageId", "Unique key of a message.")],
    _namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Decode the machine and time in a unique key."""
    try:
        origin = decoded(message_id, now_ms=wall_ms())
    except ValueError as error:
        raise wrong_usage(f"{message_id} is not a unique key: {error}") from error
    moment = origin.date.astimezone(UTC).isoformat(timespec="milliseconds")
    text = f"{origin.date:%Y-%m-%d#%H:%M:%S}:{origin.date.microsecond // 1000:03}"
    facts = {"ip": origin.ip, "date": moment.replace("+00:00", "Z")}
    Reply(f"ip={origin.ip}\ndate={text}", facts).print(as_json=as_json)


def decoded(text: str, *, now_ms: int) -> Origin:
    """Return the content of a unique key, whose time counts from the start of a local month.

    The month is the current one, or the previous one if the time would be in the future.
    """
    data = bytes.fromhex(text)
    if len(data) not in _ADDRESS_BYTES or len(text) != 2 * len(data):
        raise ValueError("it has 32 or 56 hex digits")
    address_bytes = _ADDRESS_BYTES[len(data)]
    begin = address_bytes + _PROCESS_BYTES
    elapsed = timedelta(milliseconds=int.from_bytes(data[begin : begin + 4], "big"))
    now = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone()
    month = _month(now)
    if month + elapsed >= now:
        month = _month(month - timedelta(days=1))
    return Origin(str(ip_address(data[:address_bytes])), (month + elapsed).astimezone())


def _month(moment: datetime) -> datetime:
    """Return the start of a local time's month; the UTC offset may differ from today's."""
    return datetime(moment.year, moment.month, 1).astimezone()  # local time


@app.asks("queryCq")
async def _query_cq(
    admin: AdminClient,
    topic: Topic,
    queue_id: Annotated[int, opt("-q", "--queue", "Number of the queue.", min=0)],
    index: Annotated[int, opt("-i", "--index", "Index of the first entry.", min=0)],
    count: Annotated[int, opt("-c", "--count", "Number of entries.", min=1)] = 10,
    broker: Annotated[str | None, opt("-b", "--broker", "Address of the broker.")] = None,
    group: Annotated[str | None, opt("-g", "--consumer", "Group whose filter is applied.")] = None,
) -> Reply:
    """Show entries of a consume queue and whether a group's filter matches them."""
    chosen = admin.broker(broker or await _first_master(admin, topic))
    found = await chosen.queue_entries(topic, queue_id, index, count=count, group=group)
    return Reply(_entries(found, index), found)


async def _first_master(admin: AdminClient, topic: str) -> str:
    for data in (await admin.route(topic)).broker_datas:
        if MASTER_ID in data.broker_addrs:
            return data.broker_addrs[MASTER_ID]
    raise BrokerMissing(f"no master has the topic {topic}")


def _entries(found: ConsumeQueueEntries, index: int) -> str:
    lines = []
    if found.subscription_data is not None:
        text = msgspec.json.format(msgspec.json.encode(found.subscription_data), indent=2)
        lines.append(f"Subscription data: \n{text.decode()}\n{_LINE}")
    if found.filter_data is not None:
        lines.append(f"Filter data: \n{found.filter_data}\n{_LINE}")
    bounds = f"max: {found.max_queue_index}, min: {found.min_queue_index}"
    lines.append(f"Queue data: \n{bounds}\n{_LINE}")
    for number, entry in enumerate(found.queue_data, index):
        lines.append(f"idx: {number}\n{_entry(entry)}\n{_LINE}")
    return "\n".join(lines)


def _entry(entry: ConsumeQueueEntry) -> str:
    numbers = [f"{name}={value}" for name, value in java_text.fields(entry, _ENTRY_FIELDS)]
    word = java_text.word
    filtered = f"extendDataJson='{word(entry.extend_data_json)}', bitMap='{word(entry.bit_map)}'"
    judged = f"eval={word(entry.eval)}, msg='{word(entry.msg)}'"
    return f"ConsumeQueueData{{{', '.join(numbers)}, {filtered}, {judged}}}"


DEFAULT_COUNT: Final = 128
STATUS_NAMES: Final = {
    PullStatus.FOUND: "FOUND",
    PullStatus.NO_NEW: "NO_NEW_MSG",
    PullStatus.NO_MATCHED: "NO_MATCHED_MSG",
    PullStatus.OFFSET_ILLEGAL: "OFFSET_ILLEGAL",
}

Charset = Annotated[str, opt("-c", "--charsetName", "Encoding of the bodies: UTF-8, GBK.")]
Expression = Annotated[str, opt("-s", "--subExpression", "Only these tags: 'TagA || TagB'.")]
BrokerName = Annotated[str, opt("-a", "--brokerName", "Name of the broker.")]
QueueId = Annotated[int, opt("-i", "--queueId", "Number of the queue.", min=0)]


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


@app.asks("printMsg")
async def _print_msg(
    admin: AdminClient,
    topic: Topic,
    charset: Charset = "UTF-8",
    expression: Expression = ALL_TAGS,
    begin: Begin = None,
    end: End = None,
    body: Annotated[TrueFalse, opt("-d", "--printBody", "Whether to print bodies.")] = "true",
    *,
    as_json: bool,
) -> None:
    """Print the messages of a topic, queue by queue; with --json, one per line."""
    page = Page(charset, body == "true", as_json)
    begin_ms, end_ms = _optional(begin), _optional(end)
    for queue in await admin.queues(topic):
        section = await _section(admin, queue, begin_ms, end_ms)
        page.say(f"minOffset={section.begin}, maxOffset={section.end}, {java_text.queue(queue)}")
        await _print_section(admin, section, page, expression)
        page.say("-" * 56)


@app.asks("printMsgByQueue")
async def _print_msg_by_queue(
    admin: AdminClient,
    topic: Topic,
    broker: BrokerName,
    queue_id: QueueId,
    charset: Charset = "UTF-8",
    expression: Expression = ALL_TAGS,
    begin: Begin = None,
    end: End = None,
    printed: Annotated[
        TrueFalse, opt("-p", "--print msg", "--printMsg", "Whether to print messages.")
    ] = "false",
    body: Annotated[TrueFalse, opt("-d", "--printBody", "Whether to print bodies.")] = "false",
    calculate: Annotated[
        TrueFalse, opt("-f", "--calculate", "Count the messages of each tag.")
    ] = "false",
    *,
    as_json: bool,
) -> Reply:
    page = Page(charset, body == "true", as_json)
    counts: Counter[str] = Counter()
    queue = MessageQueue(topic, broker, queue_id)
    section = await _section(admin, queue, _optional(begin), _optional(end))
    reading = admin.read(queue, section.begin, section.end, expression=expression)
    async for pulled in reading:
        counts.update(message.tag for message in pulled.messages if message.tag)
        if printed == "true":
            page.print(pulled.messages)
    if calculate != "true":
        return Reply()
    ordered = dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))
    lines = [f"Tag: {tag:<30} Count: {count}" for tag, count in ordered.items()]
    return Reply("\n".join(lines), ordered)


@app.asks("consumeMessage")
async def _consume_message(
    admin: AdminClient,
    topic: Topic,
    broker: Annotated[str | None, opt("-b", "--brokerName", "Name of the broker.")] = None,
    queue_id: Annotated[
        int | None, opt("-i", "--queueId", "Number of the queue; needs -b.", min=0)
    ] = None,
    offset: Annotated[
        int | None, opt("-o", "--offset", "Offset in the queue; needs -i.", min=0)
    ] = None,
    group: Annotated[str, opt("-g", "--consumerGroup", "Group to read as.")] = TOOLS_GROUP,
    begin: Annotated[
        str | None, opt("-s", "--beginTimestamp", f"Only messages stored since this time: {FORMS}.")
    ] = None,
    end: Annotated[
        str | None, opt("-e", "--endTimestamp", f"Only messages stored before this time: {FORMS}.")
    ] = None,
    count: Annotated[
        int, opt("-c", "--MessageNumber", "Maximum number of messages.", min=1)
    ] = DEFAULT_COUNT,
    *,
    as_json: bool,
) -> None:
    """Print the oldest messages of a topic or queue, without committing offsets."""
    if queue_id is not None and broker is None:
        raise wrong_usage("Please set the brokerName before queueId!")
    if offset is not None and queue_id is None:
        raise wrong_usage("Please set queueId before offset!")
    times = (past_moment(begin, "-s"), past_moment(end, "-e"))
    page = Page(as_json=as_json)
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
