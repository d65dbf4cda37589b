# SPDX-License-Identifier: Apache-2.0
"""`cometmq consume`: print messages, as a member of a group or as an observer.

A member of a group gets messages pushed from its share of the queues, and printed messages are
committed. An observer reads every queue of the topic from the position of `--from` and changes
nothing on the broker.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from shlex import quote
from time import monotonic
from typing import Annotated, Final

import typer

from cometmq.cli import message_json, times
from cometmq.cli.connecting import (
    DEFAULT_NAMESRV,
    Complaints,
    Namesrv,
    run,
    with_access,
    wrong_usage,
)
from cometmq.cli.meter import is_terminal, live, rate
from cometmq.cli.output import print_notes
from cometmq.client import (
    ClientOptions,
    ConsumeFrom,
    InvalidArgument,
    LitePullConsumer,
    LitePullOptions,
    MessageExt,
    MessageQueue,
    PushConsumer,
    PushOptions,
)
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, broker_missing
from cometmq.remoting import remarks
from cometmq.remoting.errors import (
    AccessDenied,
    ConsumerNotOnline,
    ServerError,
    TransportError,
)
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.names import ALL_TAGS, TOOLS_GROUP
from cometmq.runtime.service import new_event_loop

FIRST: Final = "first"
LAST: Final = "last"
PLACES: Final = (FIRST, LAST)
WAITING_MAX: Final = 1_000
"""Messages that an observer has read but not printed."""

DRAIN_MS: Final = 500
"""Time to acknowledge the last printed message."""

HINT_S: Final = 1.0
"""Idle time after which a terminal shows that the command is waiting."""

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
        help="first, last or a time (2026-11-20T10:00, 90m ago). With -g: where a group without"
        " offsets starts; by default brokers decide (a young topic is read from its beginning).",
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
    """Print messages until Ctrl-C; exit status 1 if --timeout ends it before --max."""
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

    async def main() -> int:
        if group is not None:
            source = _as_member(namesrv, topic, group, tag, start)
        else:
            source = _as_onlooker(namesrv, topic, tag, start or LAST, queue, offset)
        async with source as messages:
            printer = Printer(messages, topic, as_json=as_json)
            async with live(printer.progress, beside_output=True):
                return await printer.print_all(count_max, timeout)

    printed = run(main(), loop_factory=new_event_loop)
    if count_max is not None and printed < count_max:
        typer.echo(f"cometmq: only {printed} of {count_max} messages arrived in time", err=True)
        raise typer.Exit(1)


# -- printing ---------------------------------------------------------------------------------


class Printed:
    """A message on its way to the output; it is acknowledged once it is printed."""

    def __init__(self, message: MessageExt) -> None:
        self.message = message
        self.is_printed = False
        self.done = asyncio.Event()


Source = asyncio.Queue[Printed]


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
        while self.count != count_max:
            printed = await self._next(timeout_s)
            if printed is None:
                break
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
            self._is_hint_due = True  # a message arrived meanwhile

    def _waiting(self) -> str:
        return f"waiting for messages on {self._topic}, Ctrl-C to exit"

    def progress(self) -> str:
        """Return the text shown on a terminal while the output goes elsewhere."""
        shown = rate(self.count, self._begin)
        return f"{shown}; {self._waiting()}" if self._is_waiting else shown


# -- sources ----------------------------------------------------------------------------------


@asynccontextmanager
async def _as_member(
    namesrv: str, topic: str, group: str, tag: str, start: str | None
) -> AsyncIterator[Source]:
    """Consume for a group; messages not printed at the end are redelivered to the next member."""
    source = Source(1)
    is_leaving = False

    async def listen(messages: list[MessageExt]) -> None:
        for message in messages:
            printed = Printed(message)
            if not is_leaving:
                await source.put(printed)
                await printed.done.wait()
            if not printed.is_printed:
                await _abandon()

    consume_from, moment_ms = _group_start(start or LAST)
    options = PushOptions(
        consume_from=consume_from, consume_timestamp_ms=moment_ms, concurrency=1, drain_ms=DRAIN_MS
    )
    log = MemberComplaints(group)
    consumer = PushConsumer(group, namesrv, listener=listen, options=with_access(options), log=log)
    consumer.subscribe(topic, tag)
    async with AdminClient(namesrv, options=with_access(ClientOptions()), log=NO_LOG) as admin:
        await admin.route(topic)  # raises if there is no such topic
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


class MemberComplaints(Complaints):
    """Ends the command if a broker refuses the group's pulls, because retrying would not help."""

    def __init__(self, group: str) -> None:
        super().__init__()
        self._group = group
        self._refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def warning(self, event: str, /, **facts: object) -> None:
        """Print the event, unless it is a refusal, which becomes the command's error."""
        kind, _, text = str(facts.get("error", "")).partition(": ")
        if remarks.group_pull_forbidden(self._group) in text:
            text = (
                f"the consumer group {self._group} is disabled: nothing is delivered to it; to"
                f" enable it: cometmq group alter {self._group} --enabled"
            )
        elif kind != AccessDenied.__name__:
            super().warning(event, **facts)
            return
        if not self._refusal.done():
            self._refusal.set_result(text)

    async def fail_if_refused(self) -> None:
        """Wait for a refusal and raise it."""
        raise ClientError(await self._refusal)


async def _place_group(admin: AdminClient, group: str, topic: str, start: str) -> None:
    """Store the start offsets of a group that has neither members nor offsets.

    Otherwise brokers would start the group at offset 0 of a young queue, whatever the group asks
    for (youngQueueStartsAtZero).
    """
    queues = await admin.queues(topic)
    is_placed = False
    for broker in (await _readable(admin, topic)).values():
        try:
            await broker.consumer_connections(group)
            continue
        except (ConsumerNotOnline, ServerError):
            stats = await broker.consume_stats(group)
        except TransportError:
            continue  # the consumer reports it, and reads the other brokers
        if any(queue.topic == topic for queue in stats.offset_table):
            continue
        is_placed = True
        for queue in queues:
            if queue.broker_name == broker.name:
                begin = await _begin(broker, queue, start, None)
                await broker.commit_offset(group, topic, queue.queue_id, begin)
    if not is_placed:
        typer.echo(
            f"cometmq: {group} has members or offsets in {topic}: it goes on there, whatever --from"
            f" says; to move it: cometmq group reset {group} {topic} --to {quote(start)}",
            err=True,
        )


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


@asynccontextmanager
async def _as_onlooker(
    namesrv: str, topic: str, tag: str, start: str, queue: str | None, offset: int | None
) -> AsyncIterator[Source]:
    """Read queues without committing any offset."""
    async with AdminClient(namesrv, options=with_access(ClientOptions()), log=NO_LOG) as admin:
        queues = _chosen(await admin.queues(topic), topic, queue)
        brokers = await _readable(admin, topic)
        begins = {
            chosen: await _begin(brokers.get(chosen.broker_name), chosen, start, offset)
            for chosen in queues
        }
    consumer = LitePullConsumer(
        TOOLS_GROUP,
        namesrv,
        options=with_access(LitePullOptions(auto_commit=False, pull_count_max=32)),
        offsets=GivenOffsets(begins),
        log=Complaints(),
    )
    consumer.assign(begins, tag)
    source = Source(WAITING_MAX)

    async def read() -> None:
        while True:
            for message in await consumer.poll():
                await source.put(Printed(message))

    async with consumer, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(read())
        yield source
        task.cancel()


def _chosen(queues: Iterable[MessageQueue], topic: str, wanted: str | None) -> list[MessageQueue]:
    if wanted is None:
        return list(queues)
    found = [queue for queue in queues if wanted == f"{queue.broker_name}:{queue.queue_id}"]
    if not found:
        names = " ".join(f"{queue.broker_name}:{queue.queue_id}" for queue in queues)
        raise ClientError(f"the topic {topic} has no queue {wanted}; it has {names}")
    return found


async def _readable(admin: AdminClient, topic: str) -> dict[str, BrokerAdmin]:
    """Return the master of each broker that has the topic; if it is missing, a slave."""
    return {
        data.broker_name: admin.broker(
            data.broker_addrs[min(data.broker_addrs)], name=data.broker_name
        )
        for data in (await admin.route(topic)).broker_datas
        if data.broker_addrs
    }


async def _begin(
    broker: BrokerAdmin | None, queue: MessageQueue, start: str, offset: int | None
) -> int:
    if broker is None:
        raise broker_missing(queue.broker_name)
    place = (queue.topic, queue.queue_id)
    if offset is not None:
        least, end = await broker.min_offset(*place), await broker.max_offset(*place)
        if not least <= offset <= end:
            raise InvalidArgument(
                f"--offset {offset} is out of range: the queue has {least} to {end}"
            )
        return offset
    if start == FIRST:
        return await broker.min_offset(*place)
    if start == LAST:
        return await broker.max_offset(*place)
    at_ms = times.parsed(start, now_ms=wall_ms(), words=PLACES)
    return await broker.search_offset(*place, at_ms)


class GivenOffsets:
    """Start offsets of an observer; implements the offset store without storing anything."""

    def __init__(self, begins: Mapping[MessageQueue, int]) -> None:
        self._offsets = dict(begins)

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the start offset."""
        return self._offsets.get(queue)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the current offset."""
        return self._offsets.get(queue)

    def unsaved(self, _queue: MessageQueue) -> int | None:
        """Return None, so that no pull commits an offset."""
        return None

    def update(self, queue: MessageQueue, offset: int, *, is_reset: bool = False) -> None:
        """Advance the current offset."""
        if is_reset or offset > self._offsets.get(queue, -1):
            self._offsets[queue] = offset

    async def persist(self, _queues: Iterable[MessageQueue]) -> None:
        """Store nothing, because an observer must not change offsets."""

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Store nothing, because an observer must not change offsets."""
        await self.persist(queues)

    def forget(self, queue: MessageQueue) -> None:
        """Drop a queue."""
        self._offsets.pop(queue, None)
