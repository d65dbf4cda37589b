# SPDX-License-Identifier: Apache-2.0
"""Reads messages of a topic from an offset, from a time, or the newest ones, with a filter and
limits.

Nothing is committed, so groups are not affected. The result says which messages were left out.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_messages import FOREVER_MS, KEY_COUNT_MAX, PULL_COUNT_MAX
from cometmq.client.clock import monotonic_ms
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import MessageExt
from cometmq.client.subscriptions import ExpressionType, doubt, subscription
from cometmq.insight.times import shown
from cometmq.insight.words import command, counted
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import ClientConfigCheck, SubscriptionData
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.errors import CometError
from cometmq.remoting.names import ALL_TAGS, TOOLS_GROUP

FOUND_MAX: Final = 1_000
"""Default number of messages that a search returns."""

SECOND_MS: Final = 1_000
"""Java brokers compare whole seconds, counted from the start of an index file."""


class Found(msgspec.Struct):
    """The messages that one broker has returned, and the store times at which it may have more."""

    messages: list[MessageExt]
    crowded_ms: list[int]
    limit: int
    """The broker's `maxMsgsNumBatch`."""


async def find_by_key(
    admin: AdminClient,
    topic: str,
    key: str,
    *,
    count_max: int = FOUND_MAX,
    begin_ms: int = 0,
    end_ms: int = FOREVER_MS,
) -> tuple[list[MessageExt], list[str]]:
    """Return the newest messages with a key, oldest first, and a list of notes on missing ones.

    The period includes `begin_ms` and `end_ms`. Raise ClientError for the id of a message, which is
    not one of its keys.
    """

    async def ask(broker: BrokerAdmin) -> Found:
        # one message more than wanted tells whether there are older ones
        return await search(broker, topic, key, count_max + 1, begin_ms, end_ms)

    answers = await admin.ask_brokers_of(topic, ask, timeout_ms=admin.query_timeout_ms)
    found = [message for _, some in answers for message in some.messages]
    if not found:
        await _query(admin, topic, key)
    found.sort(key=lambda it: (it.store_timestamp, it.offset_message_id))
    notes = [_crowded(broker, some) for broker, some in answers if some.crowded_ms]
    if len(found) > count_max:
        notes.append(
            f"only the newest {count_max:,} messages are shown; to see older ones, give --max a"
            " larger number"
        )
    return found[-count_max:], notes


async def find_some_by_key(
    admin: AdminClient, topic: str, key: str
) -> tuple[list[MessageExt], list[str]]:
    """Return up to 64 messages per broker, as mqadmin does, and a note if there may be more."""
    found = await _query(admin, topic, key)
    counts = Counter(message.queue.broker_name for message in found)
    masters = {it.name: it for it in await admin.masters_of(topic)} if counts else {}
    full: list[str] = []
    for name, count in sorted(counts.items()):
        limit = await _limit(masters[name]) if name in masters else KEY_COUNT_MAX
        if count >= min(limit, KEY_COUNT_MAX):
            full.append(f"{name} ({count})")
    if not full:
        return found, []
    note = (
        f"only the newest messages are shown of {', '.join(full)}: there may be older ones; to find"
        f" them: {command('message find', topic, options=('--key', key))}"
    )
    return found, [note]


async def search(
    broker: BrokerAdmin, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
) -> Found:
    """Ask a broker for the newest messages with a key until it has no more, or `count_max` are
    found.

    The result may be larger, and is not sorted.
    """
    found: dict[str, MessageExt] = {}
    limit = await _limit(broker)
    crowded_ms: list[int] = []
    last_ms, count = end_ms, min(count_max, KEY_COUNT_MAX)
    while begin_ms <= last_ms:
        page = await broker.query(topic, key, count_max=count, begin_ms=begin_ms, end_ms=last_ms)
        known_count = len(found)
        found.update((it.offset_message_id, it) for it in page)
        if len(page) not in {count, limit} or len(found) >= count_max:
            break
        times_ms = [it.store_timestamp for it in page]
        if len(found) > known_count:
            last_ms, count = min(last_ms, *times_ms), KEY_COUNT_MAX
        elif len(page) == count:
            count *= 2
        else:
            crowded_ms.append(min(times_ms))
            is_in_seconds = max(times_ms) > last_ms
            last_ms, count = min(times_ms) - (SECOND_MS if is_in_seconds else 1), KEY_COUNT_MAX
    inside = [it for it in found.values() if begin_ms <= it.store_timestamp <= end_ms]
    return Found(inside, crowded_ms, limit)


async def _query(admin: AdminClient, topic: str, key: str) -> list[MessageExt]:
    try:
        return await admin.query_by_key(topic, key)
    except InvalidArgument as error:
        raise ClientError(
            f"{key} is the id of a message, not one of its keys:"
            f" {command('message show', key, options=('-t', topic))}"
        ) from error


async def _limit(broker: BrokerAdmin) -> int:
    """Return the maximum number of messages that a broker returns."""
    with suppress(CometError, KeyError, ValueError):  # only administrators may read settings
        return int((await broker.config())["maxMsgsNumBatch"])
    return KEY_COUNT_MAX


def _crowded(broker: BrokerAdmin, found: Found) -> str:
    times: Sequence[str | None] = [shown(stored_ms) for stored_ms in found.crowded_ms]
    more = f" and {len(times) - 1:,} other times" if len(times) > 1 else ""
    limit = ("-b", broker.address, "-k", "maxMsgsNumBatch", "-v", str(found.limit * 16))
    return (
        f"{broker.name} may have more messages of {times[0]}{more}: it returns at most"
        f" {found.limit:,} that were stored at the same time (maxMsgsNumBatch); to find them, raise"
        f" this limit and repeat the search: {command('updateBrokerConfig', options=limit)}"
    )


COUNT_MAX: Final = 500
SCANNED_MAX: Final = 20_000
"""The most messages that one call of `browse` examines, over all queues."""
FILTERED_NEWEST: Final = 2_000
"""If the newest messages are wanted and a filter is given, this many messages of each queue are
searched.
"""
BYTES_MAX: Final = 48 << 20
TIME_MS_MAX: Final = 8_000
BODY_BYTES_MAX: Final = 8 << 20
"""The most bytes to which a compressed body may expand; a longer one is shown compressed. The
reason is that QUEUES_AT_ONCE bodies are read at once, and each could have 64 MiB. The page of a
single message shows its whole body.
"""
QUEUES_AT_ONCE: Final = 8


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which messages to read."""

    topic: str
    broker: str = ""
    """Read only the queues of this broker; empty for all brokers."""
    queue_id: int | None = None
    offset: int | None = None
    """Read from this offset of one queue; needs `broker` and `queue_id`."""
    begin_ms: int | None = None
    end_ms: int | None = None
    tag: str = ""
    """The wanted tags, as in a subscription: `a || b`."""
    sql: str = ""
    """A SQL92 condition; instead of `tag`."""
    count_max: int = 50


class Browsed(msgspec.Struct, frozen=True):
    """The messages, oldest first, and what was left out."""

    messages: Sequence[MessageExt]
    notes: Sequence[str]
    unanswered: dict[str, str]
    """Why queues could not be read, by broker and queue."""


class _Limits:
    """The limits of one request, and what it has read so far."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._deadline_ms = clock_ms() + TIME_MS_MAX
        self.scanned = 0
        self.size = 0

    @property
    def reason(self) -> str:
        """Why reading must end; empty while no limit is reached."""
        if self.scanned >= SCANNED_MAX:
            return f"{SCANNED_MAX:,} messages were looked at"
        if self.size >= BYTES_MAX:
            return f"the messages have more than {BYTES_MAX >> 20} MiB"
        if self._clock_ms() >= self._deadline_ms:
            return f"{TIME_MS_MAX // 1_000} seconds have passed"
        return ""


async def browse(
    admin: AdminClient, wanted: Wanted, *, clock_ms: Callable[[], int] = monotonic_ms
) -> Browsed:
    """Return messages of a topic: from an offset, from a time, or the newest ones.

    Raise NoRoute if the topic does not exist, and InvalidArgument if the arguments contradict each
    other.
    """
    _check(wanted)
    queues = [it for it in await admin.queues(wanted.topic) if _is_wanted(it, wanted)]
    if not queues:
        raise InvalidArgument(f"{wanted.topic} has no such queue to read")
    limits, room = _Limits(clock_ms), asyncio.Semaphore(QUEUES_AT_ONCE)
    brokers = {it.name: it for it in await admin.masters_of(wanted.topic)}
    selection = _selection(wanted)
    refusals = {
        name: await _refusal(broker, selection) if wanted.sql else ""
        for name, broker in brokers.items()
    }
    failures: dict[str, str] = {}
    notes: list[str] = [it for it in [doubt(selection)] if it]

    async def read(queue: MessageQueue) -> list[MessageExt]:
        place = f"{queue.broker_name}:{queue.queue_id}"
        broker = brokers.get(queue.broker_name)
        if broker is None or refusals[queue.broker_name]:
            failures[place] = refusals.get(queue.broker_name) or "the broker has no master"
            return []
        async with room:
            try:
                found, note = await _read(broker, queue, wanted, limits)
            except CometError as error:
                failures[place] = str(error) or type(error).__name__
                return []
        notes.extend([f"{place}: {note}"] if note else [])
        return found

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(read(queue)) for queue in queues]
    messages = [message for task in asked for message in task.result()]
    messages.sort(key=lambda it: (it.store_timestamp, it.queue, it.queue_offset))
    if len(messages) > wanted.count_max:
        is_newest = wanted.offset is None and wanted.begin_ms is None
        which = "newest" if is_newest else "oldest"
        notes.append(f"only the {which} {counted(wanted.count_max, 'message')} are shown")
        messages = messages[-wanted.count_max :] if is_newest else messages[: wanted.count_max]
    return Browsed(messages, notes, failures)


def _check(wanted: Wanted) -> None:
    if wanted.tag and wanted.sql:
        raise InvalidArgument("give either tags or a SQL92 condition, not both")
    if wanted.offset is not None and (not wanted.broker or wanted.queue_id is None):
        raise InvalidArgument("an offset needs a broker and a queue")
    if wanted.offset is not None and wanted.begin_ms is not None:
        raise InvalidArgument("give either an offset or a time, not both")
    if not 0 < wanted.count_max <= COUNT_MAX:
        raise InvalidArgument(f"read between 1 and {COUNT_MAX} messages at a time")


def _is_wanted(queue: MessageQueue, wanted: Wanted) -> bool:
    is_broker = wanted.broker in ("", queue.broker_name)
    return is_broker and wanted.queue_id in (None, queue.queue_id)


def _selection(wanted: Wanted) -> SubscriptionData:
    kind = ExpressionType.SQL92 if wanted.sql else ExpressionType.TAG
    expression = wanted.sql or wanted.tag or ALL_TAGS
    return subscription(wanted.topic, expression, kind, version_ms=0)


async def _refusal(broker: BrokerAdmin, selection: SubscriptionData) -> str:
    """Return why a broker does not accept a condition; empty if it does.

    The caller checks this, because pulls from such a broker would return every message.
    """
    check = ClientConfigCheck(client_id=TOOLS_GROUP, group=TOOLS_GROUP, subscription_data=selection)
    try:
        await broker.invoke(Code.CHECK_CLIENT_CONFIG, None, encode_json(check))
    except CometError as error:
        return str(error) or type(error).__name__
    return ""


async def _read(
    broker: BrokerAdmin, queue: MessageQueue, wanted: Wanted, limits: _Limits
) -> tuple[list[MessageExt], str]:
    """Return the messages of one queue, and a note if reading has ended early."""
    place = (queue.topic, queue.queue_id)
    offset, end = await _bounds(broker, queue, wanted)
    tags = frozenset(_selection(wanted).tags_set)
    is_newest = wanted.offset is None and wanted.begin_ms is None
    found: list[MessageExt] = []
    while offset < end and (is_newest or len(found) <= wanted.count_max):
        if reason := limits.reason:
            return found, f"reading ended at offset {offset:,} of {end:,}: {reason}"
        pulled = await broker.pull(
            *place,
            offset,
            count_max=min(PULL_COUNT_MAX, end - offset),
            expression=wanted.sql or wanted.tag or ALL_TAGS,
            expression_type=ExpressionType.SQL92 if wanted.sql else None,
            body_bytes_max=BODY_BYTES_MAX,
        )
        following = min(pulled.next_offset, end)
        limits.scanned += max(0, following - offset)
        for message in pulled.messages:
            if wanted.end_ms is not None and message.store_timestamp >= wanted.end_ms:
                return found, ""
            is_early = wanted.begin_ms is not None and message.store_timestamp < wanted.begin_ms
            is_other = bool(tags) and message.tag not in tags  # of the same hash
            if message.queue_offset < end and not (is_early or is_other):
                limits.size += len(message.body)
                found.append(message)
        if following <= offset:
            break
        offset = following
    return found[-wanted.count_max - 1 :] if is_newest else found, ""


async def _bounds(broker: BrokerAdmin, queue: MessageQueue, wanted: Wanted) -> tuple[int, int]:
    """Return the first offset to read, and the end; raise InvalidArgument for an offset out of
    range.
    """
    place = (queue.topic, queue.queue_id)
    first, end = await broker.min_offset(*place), await broker.max_offset(*place)
    if wanted.offset is not None:
        if not first <= wanted.offset <= end:
            raise InvalidArgument(
                f"queue {queue.queue_id} at {queue.broker_name} has the offsets {first:,} to"
                f" {end:,}, not {wanted.offset:,}"
            )
        return wanted.offset, end
    if wanted.begin_ms is not None:
        return max(first, await broker.search_offset(*place, wanted.begin_ms)), end
    is_filtered = bool(wanted.tag or wanted.sql)
    return max(first, end - (FILTERED_NEWEST if is_filtered else wanted.count_max)), end
