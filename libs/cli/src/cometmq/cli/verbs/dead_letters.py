# SPDX-License-Identifier: Apache-2.0
"""Dead letters on the command line: selection, JSON form and pace."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any

import msgspec
import typer

from cometmq.cli import message_json, times
from cometmq.cli.option_sets import OptionSet
from cometmq.client import MessageQueue
from cometmq.client.admin import AdminClient
from cometmq.client.admin.dead_letters import origin_message_id, origin_topic
from cometmq.client.clock import wall_ms
from cometmq.client.message import MessageExt
from cometmq.remoting.errors import TransportError
from cometmq.remoting.names import DLQ_REPLAY_GROUP, dead_letter_topic


class Selection(OptionSet, frozen=True, kw_only=True):
    """The options that select some of a group's dead letters."""

    tag: Annotated[str | None, typer.Option("--tag", help="Only messages with this tag.")] = None
    key: Annotated[str | None, typer.Option("--key", help="Only messages with this key.")] = None
    origin: Annotated[
        str | None, typer.Option("--origin", help="Only messages originally sent to this topic.")
    ] = None
    message_id: Annotated[
        str | None, typer.Option("--id", help="Only the message with this original message id.")
    ] = None
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="Only messages dead-lettered since 2026-11-20T10:00Z, or 90m (ago)."
        ),
    ] = None
    until: Annotated[
        str | None, typer.Option("--until", help="Only messages dead-lettered before this time.")
    ] = None


class Choice(msgspec.Struct, frozen=True):
    """The dead letters that a command reads."""

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

    @property
    def is_everything(self) -> bool:
        """Whether the options select all messages, or just the first N."""
        return self == Choice(None, None, None, None, None, None, self.count_max)

    async def read(
        self, admin: AdminClient, group: str, skip: Callable[[MessageExt], bool] | None = None
    ) -> AsyncIterator[MessageExt]:
        """Yield the selected messages that `skip` does not reject, queue by queue."""
        left = self.count_max
        async for message in admin.dead_letters(group, begin_ms=self.begin_ms, end_ms=self.end_ms):
            if left == 0:
                return
            if self.has(message) and not (skip is not None and skip(message)):
                left = None if left is None else left - 1
                yield message


class Replayed:
    """How far earlier replays of a group's dead letters have got.

    The positions are committed offsets of `DLQ_REPLAY_GROUP` in the dead-letter topic.
    """

    def __init__(self, admin: AdminClient, group: str, *, is_ignored: bool) -> None:
        """If `is_ignored` is set, no message counts as already sent."""
        self._admin = admin
        self._topic = dead_letter_topic(group)
        self._is_ignored = is_ignored
        self._begins: dict[MessageQueue, int] = {}
        self._ends: dict[MessageQueue, int] = {}
        self.skipped_count = 0

    async def load(self) -> None:
        """Read the positions; queues whose broker does not answer are left out."""
        for queue in await self._admin.queues(self._topic):
            with suppress(TransportError):  # reading the messages reports it
                offset = await self._admin.committed_offset(DLQ_REPLAY_GROUP, queue) or 0
                is_of_older_topic = offset > await self._admin.max_offset(queue)
                self._begins[queue] = 0 if is_of_older_topic else offset

    def was_sent(self, message: MessageExt) -> bool:
        """Return whether an earlier replay has sent a message; if so, count it as skipped."""
        is_sent = message.queue_offset < self._begins.get(self._queue(message), 0)
        self.skipped_count += is_sent and not self._is_ignored
        return is_sent and not self._is_ignored

    def sent(self, message: MessageExt) -> None:
        """Advance the position beyond a message; `save` commits it."""
        queue, end = self._queue(message), message.queue_offset + 1
        if end > self._begins.get(queue, 0):
            self._begins[queue] = self._ends[queue] = end

    async def save(self) -> None:
        """Commit the positions that have advanced."""
        while self._ends:
            queue, end = next(iter(self._ends.items()))
            await self._admin.commit_offset(DLQ_REPLAY_GROUP, queue, end)
            del self._ends[queue]

    def _queue(self, message: MessageExt) -> MessageQueue:
        return MessageQueue(self._topic, message.queue.broker_name, message.queue.queue_id)


def chosen(options: Selection, count_max: int | None) -> Choice:
    """Return the choice that these options make; relative times count from now."""
    now_ms = wall_ms()
    begin_ms = None if options.since is None else times.parsed(options.since, now_ms=now_ms)
    end_ms = None if options.until is None else times.parsed(options.until, now_ms=now_ms)
    return Choice(
        options.tag, options.key, options.origin, options.message_id, begin_ms, end_ms, count_max
    )


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
