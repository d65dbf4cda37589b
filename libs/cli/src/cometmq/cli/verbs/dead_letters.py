# SPDX-License-Identifier: Apache-2.0
"""Dead letters on the command line: selection, JSON form and pace."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from cometmq.cli import message_json, times
from cometmq.client.admin import AdminClient
from cometmq.client.admin.dead_letters import origin_message_id, origin_topic
from cometmq.client.clock import wall_ms
from cometmq.client.message import MessageExt


class Choice(msgspec.Struct, frozen=True):
    """The selection made by options."""

    tag: str | None
    key: str | None
    origin: str | None
    message_id: str | None
    begin_ms: int | None
    end_ms: int | None
    count_max: int | None

    def has(self, message: MessageExt) -> bool:
        """Return whether a message is selected."""
        return (
            (self.tag is None or message.tag == self.tag)
            and (self.key is None or self.key in message.keys)
            and (self.origin is None or origin_topic(message) == self.origin)
            and (
                self.message_id is None
                or self.message_id in {message.message_id, origin_message_id(message)}
            )
        )

    async def read(self, admin: AdminClient, group: str) -> AsyncIterator[MessageExt]:
        """Yield the selected messages, queue by queue."""
        left = self.count_max
        async for message in admin.dead_letters(group, begin_ms=self.begin_ms, end_ms=self.end_ms):
            if left == 0:
                return
            if self.has(message):
                left = None if left is None else left - 1
                yield message


def chosen(  # one parameter per option
    *,
    tag: str | None,
    key: str | None,
    origin: str | None,
    message_id: str | None,
    since: str | None,
    until: str | None,
    count_max: int | None,
) -> Choice:
    """Return the selection made by these options."""
    now_ms = wall_ms()
    begin_ms = None if since is None else times.parsed(since, now_ms=now_ms)
    end_ms = None if until is None else times.parsed(until, now_ms=now_ms)
    return Choice(tag, key, origin, message_id, begin_ms, end_ms, count_max)


def as_object(message: MessageExt) -> dict[str, Any]:
    """Return a dead letter as JSON data, with its origin."""
    found: dict[str, Any] = msgspec.json.decode(message_json.render(message))
    origin = {
        "origin_topic": origin_topic(message),
        "origin_message_id": origin_message_id(message),
    }
    return found | origin


class Pace:
    """Limits calls to `rate` per second, evenly spaced."""

    def __init__(self, rate: float | None) -> None:
        self._interval_s = 0.0 if rate is None else 1 / rate
        self._next_s = 0.0

    async def wait(self) -> None:
        """Wait until the next call is due."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._next_s:
            await asyncio.sleep(self._next_s - now_s)
        self._next_s = max(now_s, self._next_s) + self._interval_s
