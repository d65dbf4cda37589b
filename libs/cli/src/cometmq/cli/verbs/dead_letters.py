# SPDX-License-Identifier: Apache-2.0
"""Dead letters on the command line: selection, JSON form and pace."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import typer

from cometmq.cli import message_json, times
from cometmq.cli.option_sets import OptionSet
from cometmq.client.admin import AdminClient
from cometmq.client.admin.dead_letters import origin_message_id, origin_topic
from cometmq.client.clock import wall_ms
from cometmq.client.message import MessageExt


class Selection(OptionSet, frozen=True, kw_only=True):
    """The options that select dead letters of a group."""

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
            "--since", help="Only messages dead-lettered since 2026-11-20T10:00, or 90m (ago)."
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

    async def read(self, admin: AdminClient, group: str) -> AsyncIterator[MessageExt]:
        """Yield the selected messages, queue by queue."""
        left = self.count_max
        async for message in admin.dead_letters(group, begin_ms=self.begin_ms, end_ms=self.end_ms):
            if left == 0:
                return
            if self.has(message):
                left = None if left is None else left - 1
                yield message


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
