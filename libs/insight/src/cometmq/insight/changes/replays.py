# SPDX-License-Identifier: Apache-2.0
"""Dead letters: selection, JSON form, pace, and replays that continue where the last one ended."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Annotated, Any, Final

import msgspec

from cometmq.client import MessageQueue
from cometmq.client.admin import AdminClient
from cometmq.client.admin.dead_letters import announced, origin_message_id, origin_topic
from cometmq.client.clock import wall_ms
from cometmq.client.errors import InvalidArgument
from cometmq.client.message import DamagedMessage, MessageExt, UnreadableMessage
from cometmq.insight import message_json, times
from cometmq.insight.changes.change import Declared, Group, arg
from cometmq.insight.life import replayed_ms
from cometmq.insight.model import Unknown
from cometmq.insight.words import listed
from cometmq.remoting.bodies.stats import TopicOffset
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import NO_ANSWER, CometError, CommandError
from cometmq.remoting.names import DLQ_REPLAY_GROUP, dead_letter_topic

SAVE_EVERY: Final = 100
"""The position of a replay is committed after this many messages. After a kill, at most this many
are sent again.
"""
LOOKED_UP_MAX: Final = 1_000
"""The most dead letters that a dry run looks up; it counts further ones as never sent."""


class Choice(msgspec.Struct, frozen=True):
    """Which dead letters of a group are read."""

    tag: str | None
    key: str | None
    origin: str | None
    ids: frozenset[str] | None
    """Select messages by message id, original id or offset message id; None selects by the other
    fields only.
    """
    begin_ms: int | None
    end_ms: int | None
    count_max: int | None

    def has(self, message: MessageExt) -> bool:
        """Return whether a message is selected."""
        return (
            (self.tag is None or message.tag == self.tag)
            and (self.key is None or self.key in message.keys)
            and (self.origin is None or origin_topic(message) == self.origin)
            and (self.ids is None or not self.ids.isdisjoint(_ids_of(message)))
        )

    @property
    def is_everything(self) -> bool:
        """Whether the options select all messages, or just the first N."""
        return self == Choice(None, None, None, None, None, None, self.count_max)

    async def read(
        self,
        admin: AdminClient,
        group: str,
        skip: Callable[[MessageExt], Awaitable[bool]] | None = None,
    ) -> AsyncIterator[MessageExt]:
        """Yield the selected messages that `skip` does not reject, queue by queue."""
        left = self.count_max
        async for message in admin.dead_letters(group, begin_ms=self.begin_ms, end_ms=self.end_ms):
            if left == 0:
                return
            if self.has(message) and not (skip is not None and await skip(message)):
                left = None if left is None else left - 1
                yield message


_TEXT: Final = {"max_length": 255}


class Selection(Declared, frozen=True, kw_only=True):
    """Some of the dead letters of a group, as a user selects them."""

    group: Group
    tag: Annotated[str | None, arg("Only those with this tag.", **_TEXT)] = None
    key: Annotated[str | None, arg("Only those with this key.", **_TEXT)] = None
    origin: Annotated[str | None, arg("Only those first sent to this topic.", **_TEXT)] = None
    ids: Annotated[
        tuple[str, ...], arg("Only this id; may be repeated.", "Only this id", flags="--id")
    ] = ()
    since: Annotated[str | None, arg("Only since 90m ago, or 2026-11-20T10:00Z.", **_TEXT)] = None
    until: Annotated[str | None, arg("Only those that became dead letters before.", **_TEXT)] = None

    def chosen(self, count_max: int | None) -> Choice:
        """Return the choice; relative times count from now."""
        now_ms = wall_ms()
        begin_ms, end_ms = (
            times.parsed(it, now_ms=now_ms) if it else None for it in (self.since, self.until)
        )
        given = (self.tag or None, self.key or None, self.origin or None)
        return Choice(*given, frozenset(self.ids) or None, begin_ms, end_ms, count_max)


def _ids_of(message: MessageExt) -> set[str]:
    return {message.message_id, message.offset_message_id, origin_message_id(message)}


class Replayed:
    """Which of a group's dead letters earlier replays have sent.

    A replay of all dead letters has a position, the committed offset of `DLQ_REPLAY_GROUP` in the
    dead-letter topic. Messages that other replays have sent are found in the group's retry topic.
    """

    def __init__(self, admin: AdminClient, group: str, *, is_ignored: bool) -> None:
        """If `is_ignored` is set, no message counts as already sent."""
        self._admin = admin
        self._group = group
        self._topic = dead_letter_topic(group)
        self._is_ignored = is_ignored
        self._begins: dict[MessageQueue, int] = {}
        self._ends: dict[MessageQueue, int] = {}
        self.skipped_count = 0
        self.look_ups_left = sys.maxsize

    async def load(self) -> None:
        """Read the positions; queues whose broker does not answer are left out."""
        for queue in await self._admin.queues(self._topic):
            with suppress(*NO_ANSWER):  # reading the messages reports it
                self._begins[queue] = await self._stored(queue)

    async def _stored(self, queue: MessageQueue) -> int:
        """Return the committed position; 0 if it belongs to a deleted topic of the same name."""
        offset = await self._admin.committed_offset(DLQ_REPLAY_GROUP, queue) or 0
        return 0 if offset > await self._admin.max_offset(queue) else offset

    def sent_count(self, stats: Mapping[MessageQueue, TopicOffset]) -> int:
        """Return how many dead letters in these queues are before the positions."""
        return sum(
            max(0, min(self._begins.get(queue, 0), it.max_offset) - it.min_offset)
            for queue, it in stats.items()
        )

    async def was_sent(self, message: MessageExt) -> bool:
        """Return whether an earlier replay has sent a message; if so, count it as skipped.

        A message beyond the position is looked up in the retry topic; if that fails, it counts as
        not sent.
        """
        if self._is_ignored:
            return False
        is_sent = message.queue_offset < self._begins.get(self._queue(message), 0)
        if not is_sent and self.look_ups_left:
            self.look_ups_left -= 1
            at_ms = await replayed_ms(self._admin, self._group, message)
            is_sent = not isinstance(at_ms, Unknown) and at_ms > 0
        self.skipped_count += is_sent
        return is_sent

    def sent(self, message: MessageExt) -> None:
        """Advance the position beyond a message; `save` commits it."""
        queue, end = self._queue(message), message.queue_offset + 1
        if end > self._begins.get(queue, 0):
            self._begins[queue] = self._ends[queue] = end

    async def save(self) -> None:
        """Commit the positions that have advanced, unless another replay of the group, which runs
        at the same time, has committed a later one.
        """
        while self._ends:
            queue, end = next(iter(self._ends.items()))
            if end > await self._stored(queue):
                await self._admin.commit_offset(DLQ_REPLAY_GROUP, queue, end)
            del self._ends[queue]

    def _queue(self, message: MessageExt) -> MessageQueue:
        return MessageQueue(self._topic, message.queue.broker_name, message.queue.queue_id)


def replays_text(group: str, clients: Sequence[str]) -> str:
    """Return the warning that other programs send the same dead letters; empty without any."""
    if not clients:
        return ""
    runs = "a replay" if len(clients) == 1 else "replays"
    return (
        f"{runs} of {group} by {listed(clients)} {'runs' if len(clients) == 1 else 'run'} now:"
        " messages that it has not reached yet would be sent twice"
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


class Replay:
    """Sends dead letters again, and counts what it has sent so far."""

    def __init__(
        self,
        group: str,
        topic: str | None = None,
        *,
        pace: Pace | None = None,
        is_dry: bool = False,
    ) -> None:
        """Send to `topic`, or only to the group. If `is_dry` is set, count without sending."""
        self.sent: list[str] = []
        """Offset message ids of the messages that were sent, or would have been."""
        self.wanted: Sequence[str] = ()
        """Those of the messages that are to be sent, if they are known."""
        self.broken: dict[str, str] = {}
        """Offset message ids of the messages that can never be sent, with the reasons."""
        self.skipped_count = 0
        """Number of messages that were replayed before."""
        self.is_stopping = False
        """Set this to end the run after its current message."""
        self._group = group
        self._topic = topic
        self._pace = pace or Pace(None)
        self._is_dry = is_dry

    async def run(self, admin: AdminClient, choice: Choice, replayed: Replayed) -> None:
        """Send the chosen dead letters again; the position is committed also after a failure."""
        if self._topic is not None:
            replayed.look_ups_left = 0  # they would find replays to the group
        elif self._is_dry:
            replayed.look_ups_left = LOOKED_UP_MAX
        await replayed.load()
        seen = nullcontext() if self._is_dry else announced(admin, self._group)
        async with seen, _saved(replayed):
            async for message in self._chosen(admin, choice, replayed):
                if not self._is_dry:
                    await self._pace.wait()
                    if not await self._is_sent(admin, message):
                        continue
                    if choice.is_everything:
                        replayed.sent(message)
                self.sent.append(message.offset_message_id)
                if len(self.sent) % SAVE_EVERY == 0:
                    await replayed.save()
        self.skipped_count = replayed.skipped_count

    async def _chosen(
        self, admin: AdminClient, choice: Choice, replayed: Replayed
    ) -> AsyncIterator[MessageExt]:
        """Yield the messages to send: neither those that were sent before, nor damaged ones."""

        async def was_sent(message: MessageExt) -> bool:
            is_sent = not self.is_stopping and await replayed.was_sent(message)
            if is_sent and choice.is_everything and not self._is_dry:
                replayed.sent(message)
            return is_sent

        async for message in choice.read(admin, self._group, was_sent):
            if self.is_stopping:
                return
            if reason := _damage(message):
                self.broken[message.offset_message_id] = reason
            else:
                yield message

    async def _is_sent(self, admin: AdminClient, message: MessageExt) -> bool:
        """Resend a dead letter; return False for one that can never be sent, so that the run
        continues without it.
        """
        try:
            await admin.replay(message, self._group, topic=self._topic)
        except CometError as error:
            if not concerns_message(error):
                raise
            self.broken[message.offset_message_id] = f"it cannot be sent again: {error}"
            return False
        return True


def _damage(message: MessageExt) -> str:
    if isinstance(message, UnreadableMessage):
        return "its body is unreadable"
    return "its body is damaged" if isinstance(message, DamagedMessage) else ""


def concerns_message(error: CometError) -> bool:
    """Return whether an error concerns this message only; otherwise, further sends fail too."""
    is_illegal = isinstance(error, CommandError) and error.code == ResponseCode.MESSAGE_ILLEGAL
    return is_illegal or isinstance(error, InvalidArgument)


@asynccontextmanager
async def _saved(replayed: Replayed) -> AsyncIterator[None]:
    """Commit the position at the end, also after a failure or Ctrl-C."""
    try:
        yield
    except BaseException:
        with suppress(CometError):  # the first error is reported
            await replayed.save()
        raise
    await replayed.save()
