# SPDX-License-Identifier: Apache-2.0
"""Searches for messages by key, and reports when a broker has returned only some of them.

A broker returns the newest messages of a period, at most `maxMsgsNumBatch`. To get more, a search
repeats the query for the period up to the time of the oldest message received so far. The new
period includes that time, because other messages may have been stored at the same time.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.broker_messages import FOREVER_MS, KEY_COUNT_MAX
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import MessageExt
from cometmq.insight.times import shown
from cometmq.insight.words import command
from cometmq.remoting.errors import CometError

COUNT_MAX: Final = 1_000
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
    count_max: int = COUNT_MAX,
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
