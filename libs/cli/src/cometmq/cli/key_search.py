# SPDX-License-Identifier: Apache-2.0
"""Searches for messages by key, and tells when a broker has returned only some of them."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from cometmq.cli.times import shown
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker_messages import FOREVER_MS, KEY_COUNT_MAX
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.client.message import MessageExt
from cometmq.remoting.errors import CometError


async def find_by_key(
    admin: AdminClient,
    topic: str,
    key: str,
    *,
    count_max: int = KEY_COUNT_MAX,
    begin_ms: int = 0,
    end_ms: int = FOREVER_MS,
) -> tuple[list[MessageExt], list[str]]:
    """Return the newest messages with a key, oldest of them first, and a note if there may be more.

    Each broker returns at most `count_max` messages and at most `maxMsgsNumBatch`. Raise
    ClientError for the id of a message, which is not one of its keys.
    """
    try:
        found = await admin.query_by_key(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )
    except InvalidArgument as error:
        raise ClientError(
            f"{key} is the id of a message, not one of its keys: cometmq message show {key} -t"
            f" {topic}"
        ) from error
    return found, await _notes(admin, topic, key, found, count_max)


async def _notes(
    admin: AdminClient, topic: str, key: str, found: Sequence[MessageExt], count_max: int
) -> list[str]:
    counts = Counter(message.queue.broker_name for message in found)
    masters = {it.name: it for it in await admin.masters_of(topic)} if counts else {}
    full: list[str] = []
    for name, count in sorted(counts.items()):
        limit = KEY_COUNT_MAX
        with suppress(CometError, KeyError, ValueError):  # only administrators may read settings
            limit = int((await masters[name].config())["maxMsgsNumBatch"])
        if count >= min(limit, count_max):
            full.append(f"{name} ({count})")
    if not full:
        return []
    until = shown(max(_oldest(found, name.partition(" ")[0]) for name in full))
    note = (
        f"only the newest messages are shown of {', '.join(full)}: there may be older ones; to find"
        f" them: cometmq message find {topic} --key {key} --until {until}"
    )
    return [note]


def _oldest(found: Sequence[MessageExt], broker: str) -> int:
    return min(it.store_timestamp for it in found if it.queue.broker_name == broker)
