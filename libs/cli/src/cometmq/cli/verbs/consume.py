# SPDX-License-Identifier: Apache-2.0
"""`cometmq consume`: print messages, as a member of a group or as an observer.

A member of a group gets messages pushed from its share of the queues, and printed messages are
committed. An observer reads every queue of the topic from the position of `--from` and changes
nothing on the broker.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from shlex import quote
from time import monotonic
from typing import Annotated, Final

import typer

from cometmq.cli.complaints import Complaints
from cometmq.cli.connecting import (
    DEFAULT_NAMESRV,
    Namesrv,
    run,
    with_access,
    wrong_usage,
)
from cometmq.cli.lookup import check_not_reserved
from cometmq.cli.meter import is_terminal, live, rate
from cometmq.cli.outcome import MISSING
from cometmq.cli.output import print_notes
from cometmq.cli.streams import fail_if_output_closes
from cometmq.cli.verbs.observer import FIRST, LAST, PLACES, as_observer, begin_of
from cometmq.cli.verbs.source import Ends, Faults, Printed, Source, queues_to_read, readable
from cometmq.client import (
    ClientOptions,
    ConsumeFrom,
    MessageExt,
    MessageQueue,
    PushConsumer,
    PushOptions,
)
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError
from cometmq.insight import message_json, times
from cometmq.remoting import remarks
from cometmq.remoting.errors import (
    AccessDenied,
    CometError,
    CommandError,
    ConsumerNotOnline,
    NoPermission,
    ServerError,
    SubscriptionGroupNotExist,
    SubscriptionParseFailed,
    TransportError,
)
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.names import ALL_TAGS
from cometmq.runtime.service import new_event_loop

DRAIN_MS: Final = 500
"""Time to acknowledge the last printed message."""

HINT_S: Final = 1.0
"""Idle time after which a terminal shows that the command is waiting."""

_REFUSALS: Final = frozenset(
    {AccessDenied, NoPermission, SubscriptionGroupNotExist, SubscriptionParseFailed}
)
"""Pull refusals that do not go away with time."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Topic = Annotated[str, typer.Argument(help="Topic to read.")]
Group = Annotated[
    str | None,
    typer.Option(
        "-g", "--group", help="Consume as a member of this group; its offsets are committed."
    ),
]
Tag = Annotated[str, typer.Option("--tag", help="Only messages with these tags: 'A || B'.")]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        show_default="last",
        help="first, last or a time (2026-11-20T10:00Z, 90m ago). With -g, this is where a group"
        " without offsets starts; by default the brokers decide (a young topic is read from its"
        " beginning).",
    ),
]
Queue = Annotated[
    str | None, typer.Option("--queue", help="Only this queue, BROKER:NUMBER; not with -g.")
]
Offset = Annotated[int | None, typer.Option(min=0, help="Start at this offset of --queue.")]
Max = Annotated[int | None, typer.Option("--max", min=1, help="Exit after this many messages.")]
Timeout = Annotated[
    float | None,
    typer.Option(min=0.001, help="Exit after this many seconds without a message."),
]
AsJsonLines = Annotated[
    bool, typer.Option("--json", help="Print each message as one line of JSON, with properties.")
]


@app.command()
def consume(  # noqa: PLR0913  # one parameter per option
    topic: Topic,
    *,
    group: Group = None,
    tag: Tag = ALL_TAGS,
    start: From = None,
    queue: Queue = None,
    offset: Offset = None,
    count_max: Max = None,
    timeout: Timeout = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json: AsJsonLines = False,
) -> None:
    """Print messages until Ctrl-C, or until --max or --timeout is reached.

    The exit status is 1 if the timeout expires before --max messages have arrived, or while a
    broker is not answering; the queues of that broker are then named.
    """
    if queue is not None and group is not None:
        raise wrong_usage(
            "--queue cannot be combined with --group: a group shares its queues among its members"
        )
    if offset is not None and queue is None:
        raise wrong_usage("--offset needs --queue")
    if offset is not None and start is not None:
        raise wrong_usage("--offset cannot be combined with --from: both say where to start")
    if start is not None and start not in PLACES:
        now_ms = wall_ms()
        if times.parsed(start, now_ms=now_ms, words=PLACES) > now_ms:
            print_notes([f"{start} is in the future: the last message of each queue is read"])

    if group is not None:
        check_not_reserved(group)

    async def main() -> int:
        if group is not None:
            source = _as_member(namesrv, topic, group, tag, start)
        else:
            source = as_observer(namesrv, topic, tag, start or LAST, queue, offset)
        async with source as messages, asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(fail_if_output_closes())
            printer = Printer(messages, topic, as_json=as_json)
            async with live(printer.progress, beside_output=True):
                count = await printer.print_all(count_max, timeout)
            watch.cancel()
        return count

    printed = run(main(), loop_factory=new_event_loop)
    if count_max is not None and printed < count_max:
        typer.echo(f"cometmq: only {printed} of {count_max} messages arrived in time", err=True)
        raise typer.Exit(1)


# -- printing ---------------------------------------------------------------------------------


class Printer:
    """Prints messages and, on a terminal, a hint when there are none."""

    def __init__(self, source: Source, topic: str, *, as_json: bool) -> None:
        self._source = source
        self._topic = topic
        self._as_json = as_json
        self._begin = monotonic()
        self._is_waiting = False
        self._is_hint_due = is_terminal(sys.stderr)
        self.count = 0

    async def print_all(self, count_max: int | None, timeout_s: float | None) -> int:
        """Print until the count is reached or the timeout passes; return the count."""
        out, source, as_json = sys.stdout.buffer, self._source, self._as_json
        is_last_wait = False
        while self.count != count_max:
            printed = await self._next(timeout_s)
            if printed is None:
                unread = await source.unread()
                if source.empty() and (is_last_wait or not unread.is_coming):
                    MISSING.update(unread.lines)
                    break
                is_last_wait = True
                continue
            is_last_wait = False
            message = printed.message
            out.write((message_json.render(message) if as_json else message.body) + b"\n")
            if source.empty() or self.count + 1 == count_max:
                out.flush()
            printed.is_printed = True
            printed.done.set()
            self.count += 1
        return self.count

    async def _next(self, timeout_s: float | None) -> Printed | None:
        if not self._source.empty():
            return self._source.get_nowait()
        self._is_waiting = True
        if self._is_hint_due:
            asyncio.get_running_loop().call_later(HINT_S, self._hint)
            self._is_hint_due = False
        try:
            async with asyncio.timeout(timeout_s):
                return await self._source.get()
        except TimeoutError:
            return None
        finally:
            self._is_waiting = False

    def _hint(self) -> None:
        """Show that the command is waiting, not stuck."""
        if self._is_waiting:
            typer.echo(self._waiting(), err=True)
        else:
            self._is_hint_due = True  # a message has arrived since

    def _waiting(self) -> str:
        return f"waiting for messages on {self._topic}, Ctrl-C to exit"

    def progress(self) -> str:
        """Return the text shown on a terminal while the output is redirected."""
        shown = rate(self.count, self._begin)
        return f"{shown}; {self._waiting()}" if self._is_waiting else shown


# -- sources ----------------------------------------------------------------------------------


@asynccontextmanager
async def _as_member(
    namesrv: str, topic: str, group: str, tag: str, start: str | None
) -> AsyncIterator[Source]:
    """Consume for a group; messages not printed at the end are redelivered to the next member."""
    ends = Ends(namesrv, topic)
    faults = Faults(topic)
    source = Source(1, ends, faults.positions, faults)
    is_leaving = False

    async def listen(messages: list[MessageExt]) -> None:
        for message in messages:
            printed = Printed(message)
            faults.passed(message)
            if not is_leaving:
                await source.put(printed)
                await printed.done.wait()
            if not printed.is_printed:
                await _abandon()

    consume_from, moment_ms = _group_start(start or LAST)
    options = PushOptions(
        consume_from=consume_from, consume_timestamp_ms=moment_ms, concurrency=1, drain_ms=DRAIN_MS
    )
    log = MemberComplaints(group, faults)
    consumer = PushConsumer(group, namesrv, listener=listen, options=with_access(options), log=log)
    consumer.subscribe(topic, tag)
    async with AdminClient(namesrv, options=with_access(ClientOptions()), log=NO_LOG) as admin:
        queues, brokers = await queues_to_read(admin, topic), await readable(admin, topic)
        ends.begin(queues, brokers)
        await _try_to_pull(brokers, group, queues, tag)
        if start is not None:
            await _place_group(admin, group, topic, start)
    async with consumer, asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(log.fail_if_refused())
        try:
            yield source
        finally:
            watch.cancel()
            is_leaving = True
            while not source.empty():
                source.get_nowait().done.set()


async def _try_to_pull(
    brokers: Mapping[str, BrokerAdmin], group: str, queues: Sequence[MessageQueue], tag: str
) -> None:
    """Raise a broker's refusal before the group joins or gets offsets there, so that a refused
    command leaves nothing behind.
    """

    async def attempt(broker: BrokerAdmin) -> None:
        queue = next((it for it in queues if it.broker_name == broker.name), None)
        if queue is None:
            return
        place = (queue.topic, queue.queue_id)
        with suppress(TransportError):  # the consumer reports it, and reads the other brokers
            try:
                end = await broker.max_offset(*place)
                await broker.pull(*place, end, count_max=1, expression=tag, group=group)
            except CommandError as error:
                if type(error) in _REFUSALS:
                    raise _refusal(group, broker.name, error) from error

    async with asyncio.TaskGroup() as tasks:
        for broker in brokers.values():
            tasks.create_task(attempt(broker))


def _refusal(group: str, broker: str, error: CommandError) -> CometError:
    """Return the error for a refused pull, with a remedy if there is one."""
    if remarks.group_pull_forbidden(group) in str(error):
        return ClientError(_disabled_text(group))
    if isinstance(error, SubscriptionGroupNotExist):
        return ClientError(
            f"broker {broker} does not know the consumer group {group}, and does not create groups"
            f" itself (autoCreateSubscriptionGroup): cometmq group create {group}"
        )
    return error


def _disabled_text(group: str) -> str:
    """Return the error for a group that may not consume."""
    return (
        f"the consumer group {group} is disabled: nothing is delivered to it; to enable it: cometmq"
        f" group alter {group} --enabled"
    )


class MemberComplaints(Complaints):
    """Remembers failing pulls, and ends the command if a broker refuses the group's pulls, because
    retrying would not help.
    """

    def __init__(self, group: str, faults: Faults) -> None:
        super().__init__()
        self._group = group
        self._faults = faults
        self._refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def warning(self, event: str, /, **facts: object) -> None:
        """Print the event, unless it is a refusal, which becomes the command's error."""
        if event == "task.cancelled":  # by `_abandon`
            return
        kind, _, text = str(facts.get("error", "")).partition(": ")
        if remarks.group_pull_forbidden(self._group) in text:
            text = _disabled_text(self._group)
        elif kind != AccessDenied.__name__:
            self._faults.note(facts)
            super().warning(event, **facts)
            return
        if not self._refusal.done():
            self._refusal.set_result(text)

    async def fail_if_refused(self) -> None:
        """Wait for a refusal and raise it."""
        raise ClientError(await self._refusal)


async def _place_group(admin: AdminClient, group: str, topic: str, start: str) -> None:
    """Store the start offsets of a group that has neither members nor offsets.

    Otherwise brokers would start the group at offset 0 of a young queue, regardless of the group's
    request (youngQueueStartsAtZero).
    """
    queues = await admin.queues(topic)
    placed: list[bool] = []
    silent: list[str] = []
    for broker in (await readable(admin, topic)).values():
        here = [queue for queue in queues if queue.broker_name == broker.name]
        try:
            placed.append(await _place_at(broker, group, here, start))
        except TransportError:
            silent.append(broker.name)  # the consumer reports it, and reads the other brokers
    if placed and not any(placed):
        typer.echo(
            f"cometmq: {group} has members or offsets in {topic}: it goes on there, whatever --from"
            f" says; to move it: cometmq group reset {group} {topic} --to {quote(start)}",
            err=True,
        )
    if silent:
        typer.echo(
            f"cometmq: {' and '.join(silent)} did not answer: if {group} is new there, the broker"
            " decides where it starts, whatever --from says",
            err=True,
        )


async def _place_at(
    broker: BrokerAdmin, group: str, queues: Sequence[MessageQueue], start: str
) -> bool:
    """Store the start offsets of a group on a broker; return False if the broker knows the
    group.
    """
    try:
        await broker.consumer_connections(group)
    except (ConsumerNotOnline, ServerError):
        stats = await broker.consume_stats(group)
    else:
        return False
    if any(queue.topic == queues[0].topic for queue in stats.offset_table):
        return False
    for queue in queues:
        begin = await begin_of(broker, queue, start, None)
        await broker.commit_offset(group, queue.topic, queue.queue_id, begin)
    return True


async def _abandon() -> None:
    """End this listener call without a result, so that the next member gets its message."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def _group_start(start: str) -> tuple[ConsumeFrom, int]:
    if start == FIRST:
        return ConsumeFrom.FIRST_OFFSET, 0
    if start == LAST:
        return ConsumeFrom.LAST_OFFSET, 0
    return ConsumeFrom.TIMESTAMP, times.parsed(start, now_ms=wall_ms(), words=PLACES)
