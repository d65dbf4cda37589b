# SPDX-License-Identifier: Apache-2.0
"""The observer of `cometmq consume`: reads queues and changes nothing on brokers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from cometmq.cli.admin import missing_text
from cometmq.cli.connecting import with_access
from cometmq.cli.consuming.source import (
    UNANSWERED,
    EndingComplaints,
    Ends,
    Faults,
    Positions,
    Printed,
    Source,
    Wanted,
    names_of,
    queues_to_read,
    readable,
)
from cometmq.cli.say import say
from cometmq.client import (
    InvalidArgument,
    LitePullConsumer,
    LitePullOptions,
    MessageQueue,
)
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, broker_missing
from cometmq.insight import times
from cometmq.insight.changes.deletions import chosen_queues
from cometmq.remoting.errors import NO_ANSWER
from cometmq.remoting.names import TOOLS_GROUP

FIRST: Final = "first"
LAST: Final = "last"
PLACES: Final = (FIRST, LAST)
WAITING_MAX: Final = 1_000
"""Messages that an observer has read but not printed."""


@asynccontextmanager
async def as_observer(
    wanted: Wanted, start: str, last: int | None, queue: str | None, offset: int | None
) -> AsyncIterator[Source]:
    """Read queues without committing any offset; `last` is a number of messages before each end."""
    topic = wanted.topic
    async with wanted.admin() as admin:
        queues = chosen_queues(await queues_to_read(admin, topic), topic, queue)
        brokers = await readable(admin, topic)

        async def begin(chosen: MessageQueue) -> int:
            broker = brokers.get(chosen.broker_name)
            if last is None or broker is None:
                return await begin_of(broker, chosen, start, offset)
            place = (chosen.topic, chosen.queue_id)
            return max(await broker.min_offset(*place), await broker.max_offset(*place) - last)

        offsets = GivenOffsets(queues, begin)
        await _find_begins(offsets, queues, brokers)
        ends = Ends(wanted)
        ends.begin(queues, brokers)
        async with _read(wanted, offsets, ends) as source:
            yield source


async def _find_begins(
    offsets: "GivenOffsets", queues: Iterable[MessageQueue], brokers: Mapping[str, BrokerAdmin]
) -> None:
    """Find where to begin in each queue, and name the brokers that do not answer.

    The consumer queries these brokers again and reads their queues later. Raise ClientError if no
    broker answers.
    """
    silent: dict[str, str] = {}
    for queue in queues:
        name = queue.broker_name
        if name in silent:
            continue
        try:
            await offsets.read(queue)
        except NO_ANSWER as error:
            silent[name] = missing_text(name, brokers[name].address, error)
    if silent and not silent.keys() ^ {queue.broker_name for queue in queues}:
        raise ClientError("; ".join(silent.values()))
    for name, text in silent.items():
        names = names_of(queue for queue in queues if queue.broker_name == name)
        say(f"cometmq: {names} can only be read once the broker answers: {text}", err=True)


@asynccontextmanager
async def _read(wanted: Wanted, offsets: "GivenOffsets", ends: Ends) -> AsyncIterator[Source]:
    faults = Faults(wanted.topic)
    log = ObserverComplaints(faults)
    consumer = LitePullConsumer(
        TOOLS_GROUP,
        wanted.namesrv,
        options=with_access(LitePullOptions(auto_commit=False, pull_count_max=32)),
        offsets=offsets,
        log=log,
    )
    consumer.assign(offsets.positions, wanted.selector)

    async def positions() -> Positions:
        await consumer.commit()  # moves only `offsets`
        return offsets.positions

    source = Source(WAITING_MAX, ends, positions, faults)

    async def read() -> None:
        while True:
            for message in await consumer.poll():
                faults.passed(message)
                await source.put(Printed(message))

    async with consumer, asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(it) for it in (read(), log.fail_if_refused())]
        yield source
        for task in running:
            task.cancel()


class ObserverComplaints(EndingComplaints):
    """Says nothing of brokers whose first offsets are unknown: they were named at the start."""

    def warning(self, event: str, /, **facts: object) -> None:
        """Print the event, unless it is a refusal or is known."""
        kind = str(facts.get("error")).partition(": ")[0]
        if event != "offset.unknown" or kind not in UNANSWERED:
            super().warning(event, **facts)


async def begin_of(
    broker: BrokerAdmin | None, queue: MessageQueue, start: str, offset: int | None
) -> int:
    """Return the offset at which `--from` or `--offset` begins in a queue."""
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

    def __init__(
        self, queues: Iterable[MessageQueue], begin: Callable[[MessageQueue], Awaitable[int]]
    ) -> None:
        """`begin` finds the start offset of a queue."""
        self._queues = list(queues)
        self._begin = begin
        self._offsets: dict[MessageQueue, int] = {}

    @property
    def positions(self) -> Positions:
        """The current offsets; 0 for a queue whose start offset is not known yet."""
        return {queue: self._offsets.get(queue, 0) for queue in self._queues}

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the start offset; ask the broker for it if necessary."""
        if queue not in self._offsets:
            self._offsets[queue] = await self._begin(queue)
        return self._offsets[queue]

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
