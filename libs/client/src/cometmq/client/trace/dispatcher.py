# SPDX-License-Identifier: Apache-2.0
"""Batches trace records for half a second, and sends them in the background.

Invariants
    Tracing never delays or fails a message. Once `RECORD_COUNT_MAX` records are unsent, new ones
    are dropped and counted; send failures are logged.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from cometmq.client.trace import TraceRecord, encode_record, record_keys
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet, describe

RECORD_COUNT_MAX: Final = 16_384
BODY_CHARS_MAX: Final = 118_000
KEYS_CHARS_MAX: Final = 24_000
"""Limit per message, because its properties together must not reach 32 KiB."""
GATHER_MS: Final = 500
FLUSH_MS: Final = 3_000

SendTrace = Callable[[str, str, Sequence[str]], Awaitable[None]]
"""Sends a trace, given as text, with its keys to a topic."""


class _Segment:
    """The records that the next message to one topic will contain."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.keys: dict[str, None] = {}
        self.chars = 0
        self.keys_chars = 0

    def add(self, text: str, keys: Sequence[str]) -> bool:
        """Add a record; return False, and change nothing, if it belongs in the next message.

        The first record always fits: of too many keys, only the first ones are kept.
        """
        fresh = {key: None for key in keys if key not in self.keys}
        fresh_chars = sum(map(len, fresh)) + len(fresh)
        has_room = (
            self.chars + len(text) <= BODY_CHARS_MAX
            and self.keys_chars + fresh_chars <= KEYS_CHARS_MAX
        )
        if self.texts and not has_room:
            return False
        self.texts.append(text)
        self.chars += len(text)
        for key in fresh:
            if self.keys_chars + len(key) < KEYS_CHARS_MAX:
                self.keys[key] = None
                self.keys_chars += len(key) + 1
        return True


class TraceDispatcher:
    """Sends the traces of one producer or consumer."""

    def __init__(self, send: SendTrace, background: TaskSet, log: Log) -> None:
        """`send` is called in tasks of `background`."""
        self._send = send
        self._background = background
        self._log = log
        self._segments: dict[str, _Segment] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._record_count = 0
        self._dropped_count = 0

    def append(self, topic: str, records: Sequence[TraceRecord]) -> bool:
        """Queue records for sending; return False if the buffer is full."""
        if self._record_count + len(records) > RECORD_COUNT_MAX:
            self._dropped_count += len(records)
            return False
        segment = self._segments.get(topic)
        for record in records:
            text, keys = encode_record(record), record_keys(record)
            if segment is None or not segment.add(text, keys):
                if segment is not None:
                    self._leave(topic)
                segment = self._segments[topic] = _Segment()
                segment.add(text, keys)
        self._record_count += len(records)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(GATHER_MS / 1000, self._leave_all)
        return True

    async def close(self) -> None:
        """Send the remaining records, but only for a limited time."""
        self._leave_all()
        if self._sending:
            _, late = await asyncio.wait(self._sending, timeout=FLUSH_MS / 1000)
            for task in late:
                task.cancel()
            if late:
                self._log.warning("trace.unsent", count=self._record_count, error="no time left")

    def _leave_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for topic in list(self._segments):
            self._leave(topic)
        if self._dropped_count:
            self._log.warning("trace.dropped", count=self._dropped_count)
            self._dropped_count = 0

    def _leave(self, topic: str) -> None:
        segment = self._segments.pop(topic)
        task = self._background.spawn(self._deliver(topic, segment), name="trace")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, topic: str, segment: _Segment) -> None:
        count = len(segment.texts)
        try:
            await self._send(topic, "".join(segment.texts), list(segment.keys))
        except CometError as error:
            self._log.warning("trace.unsent", count=count, error=describe(error))
        finally:
            self._record_count -= count
