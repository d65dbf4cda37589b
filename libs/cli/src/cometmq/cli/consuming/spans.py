# SPDX-License-Identifier: Apache-2.0
"""Reads a known part of a topic once: up to a time, the newest messages, or what exists now.

The ends of all queues are determined before the first message is read, so the command ends even if
producers keep sending.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from cometmq.cli.admin import CommandAdmin
from cometmq.cli.connecting import with_access
from cometmq.cli.consuming.observer import FIRST, LAST, PLACES, begin_of
from cometmq.cli.consuming.source import (
    Ends,
    Printed,
    Source,
    Unread,
    Wanted,
    queues_to_read,
    readable,
)
from cometmq.cli.limits import with_limit
from cometmq.cli.output import print_notes
from cometmq.client import ClientOptions, InvalidArgument, MessageExt, MessageQueue
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.subscriptions import MessageSelector, doubt, subscription
from cometmq.client.transfer.pulled import EmptyAnswers
from cometmq.insight import times
from cometmq.insight.changes.deletions import chosen_queues
from cometmq.remoting.errors import NO_ANSWER, CometError, RemoteProtocolError
from cometmq.remoting.names import ALL_TAGS

LAST_MAX: Final = 10_000
"""Maximum of --last: the messages are held in memory until they are sorted."""
BYTES_MAX: Final = 256 << 20
"""Limit of the bytes in the bodies that --last holds in memory."""
AHEAD_MAX: Final = 64
"""Messages that are read but not printed yet."""


class Span(msgspec.Struct, frozen=True):
    """The part of a topic to read."""

    start: str | None = None
    """`first`, `last` or a time."""
    begin_ms: int = 0
    """Messages stored before this time are left out."""
    until_ms: int | None = None
    """Messages stored at this time or later are left out."""
    last: int | None = None
    """Only this many of the newest messages."""
    follow: bool | None = None
    """Whether to wait for more messages at the end; None means that `is_bounded` decides by the
    other fields.
    """

    @property
    def is_bounded(self) -> bool:
        """Return whether reading ends by itself."""
        if self.follow is not None:
            return not self.follow
        return self.last is not None or self.until_ms is not None


def parse_span(start: str | None, until: str | None, last: int | None, follow: bool | None) -> Span:
    """Return the part that the options name; raise InvalidArgument if they contradict each other.

    `start` may be a range `@TIME:TIME`, in which either time may be missing.
    """
    now_ms = wall_ms()
    if start is not None and start.startswith("@"):
        if until is not None:
            raise InvalidArgument("--until cannot be combined with a range: both say where to end")
        start, until = _range(start[1:], now_ms)
    if last is not None and (start is not None or until is not None):
        raise InvalidArgument("--last cannot be combined with --from, --until or --offset")
    until_ms = None if until is None else times.parsed(until, now_ms=now_ms)
    if follow and until_ms is not None:
        raise InvalidArgument("--follow cannot be combined with an end: leave one out")
    begin_ms = 0
    if start is not None and start not in PLACES:
        begin_ms = times.parsed(start, now_ms=now_ms, words=PLACES)
    if until_ms is not None and begin_ms >= until_ms:
        raise InvalidArgument(
            f"the range is empty: it begins at {times.shown(begin_ms)}, and ends at"
            f" {times.shown(until_ms)}"
        )
    if start is None and until_ms is not None:
        start = FIRST
    return Span(start, begin_ms, until_ms, last, follow)


def _range(text: str, now_ms: int) -> tuple[str | None, str | None]:
    """Split `TIME:TIME` at the colon between two times; times may contain colons themselves."""

    def is_time(part: str) -> bool:
        try:
            times.parsed(part, now_ms=now_ms)
        except InvalidArgument:
            return False
        return True

    found = [
        (text[:at] or None, text[at + 1 :] or None)
        for at, sign in enumerate(text)
        if sign == ":" and all(not part or is_time(part) for part in (text[:at], text[at + 1 :]))
    ]
    if is_time(text):
        return text, None
    if len(found) != 1 or found[0] == (None, None):
        raise InvalidArgument(
            f"@{text} is no range: give @TIME:TIME, as @90m:60m or"
            " @2026-11-20T10:00Z:2026-11-20T11:00Z; either time may be missing"
        )
    return found[0]


@asynccontextmanager
async def as_reader(
    wanted: Wanted, span: Span, queue: str | None, offset: int | None
) -> AsyncIterator[Source]:
    """Read a span, and end the source at its end; brokers that do not answer are recorded."""
    topic, options = wanted.topic, with_limit(with_access(ClientOptions()), wanted.limit_s)
    async with CommandAdmin(wanted.namesrv, options=options) as admin:
        queues = chosen_queues(await queues_to_read(admin, topic), topic, queue)
        brokers = await readable(admin, topic)
        reader = _Reader(admin, brokers, wanted.selector, span)
        await reader.find_ends(queues, offset)
        source = _SpanSource(AHEAD_MAX, Ends(wanted))

        async def feed() -> None:
            async for message in reader.messages():
                await source.put(Printed(message))
            source.is_finished = True
            await source.put(None)

        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(feed())
            yield source
            task.cancel()
        admin.check_answers()


class _SpanSource(Source):
    async def unread(self) -> Unread:
        """Return a note that the time limit ended before the span was read."""
        return Unread({"--timeout": "the rest was not read: give a longer --timeout"})


class _Reader:
    def __init__(
        self,
        admin: CommandAdmin,
        brokers: Mapping[str, BrokerAdmin],
        selector: str | MessageSelector,
        span: Span,
    ) -> None:
        self._admin = admin
        self._brokers = brokers
        wanted = subscription("-", selector, version_ms=0)
        self._expression, self._kind = wanted.sub_string, wanted.expression_type
        self._tags = frozenset(wanted.tags_set)
        if text := doubt(wanted):
            print_notes([text])
        self._span = span
        self._spans: dict[MessageQueue, tuple[int, int]] = {}

    async def find_ends(self, queues: Iterable[MessageQueue], offset: int | None) -> None:
        """Find where each queue begins and ends."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)

        async def find(broker: BrokerAdmin) -> None:
            for queue in by_broker[broker.name]:
                self._spans[queue] = await self._bounds(broker, queue, offset)

        wanted = [self._brokers[name] for name in by_broker if name in self._brokers]
        await self._admin.ask_each(wanted, find)
        self._spans = {it: self._spans[it] for it in queues if it in self._spans}

    async def _bounds(
        self, broker: BrokerAdmin, queue: MessageQueue, offset: int | None
    ) -> tuple[int, int]:
        place = (queue.topic, queue.queue_id)
        end = await broker.max_offset(*place)
        if self._span.until_ms is not None:
            end = min(end, await broker.last_offset_until(*place, self._span.until_ms) + 1)
        if self._span.last is not None:
            return max(await broker.min_offset(*place), end - self._span.last), end
        return await begin_of(broker, queue, self._span.start or LAST, offset), end

    async def messages(self) -> AsyncIterator[MessageExt]:
        """Yield the messages, queue by queue; with --last, in the order in which they were
        stored.
        """
        if self._span.last is None:
            for queue in self._spans:
                async for message in self._read(queue):
                    yield message
            return
        newest: list[tuple[int, int, int, MessageExt]] = []
        number = held_bytes = 0
        for queue in self._spans:
            async for message in self._read(queue):
                number += 1
                place = (message.store_timestamp, message.physical_offset, number)
                heapq.heappush(newest, (*place, message))
                held_bytes += len(message.body)
                while len(newest) > self._span.last or held_bytes > BYTES_MAX:
                    held_bytes -= len(heapq.heappop(newest)[-1].body)
        for *_, message in sorted(newest):
            yield message

    async def _read(self, queue: MessageQueue) -> AsyncIterator[MessageExt]:
        at, end = self._spans[queue]
        broker = self._brokers[queue.broker_name]
        empty = EmptyAnswers(queue, is_filtered=self._expression != ALL_TAGS)
        while at < end:
            try:
                found = await broker.pull(
                    queue.topic, queue.queue_id, at,
                    expression=self._expression, expression_type=str(self._kind),
                )  # fmt: skip
            except NO_ANSWER as error:
                self._admin.unreachable(broker, error)
                return
            for message in found.messages:
                if message.queue_offset < end and self._is_wanted(message):
                    yield message
            if found.next_offset <= at:
                raise _stuck(queue, at, found.next_offset)
            empty.check(found)
            at = found.next_offset

    def _is_wanted(self, message: MessageExt) -> bool:
        stored_ms, until_ms = message.store_timestamp, self._span.until_ms
        if stored_ms < self._span.begin_ms or (until_ms is not None and stored_ms >= until_ms):
            return False
        return not self._tags or message.tag in self._tags


def _stuck(queue: MessageQueue, at: int, after: int) -> CometError:
    return RemoteProtocolError(
        f"broker {queue.broker_name} answers a pull of {queue.topic}, queue {queue.queue_id}, at"
        f" {at} with {after} as the next offset, which would never end"
    )
