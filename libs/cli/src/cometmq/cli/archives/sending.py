# SPDX-License-Identifier: Apache-2.0
"""Sends the messages of a backup to the queues of a topic, in order, and records the progress."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import Final

import msgspec

from cometmq.cli.archives.copying import PAUSE_S, Reader, may_pass
from cometmq.cli.archives.form import Folder, QueueKey, Segment, by_queue
from cometmq.cli.archives.progress import Batch, Progress, Target
from cometmq.cli.archives.segments import Position, lines_of
from cometmq.cli.output import print_notes
from cometmq.client import Message, MessageExt, Producer
from cometmq.client.admin import AdminClient
from cometmq.client.errors import ClientError, InvalidArgument, SendFailed
from cometmq.client.message import DamagedMessage
from cometmq.client.transfer.pulled import EmptyAnswers
from cometmq.insight import message_json
from cometmq.insight.changes.replays import Pace, concerns_message
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import UNREADABLE_JSON, CometError

BATCH_COUNT: Final = 64
BATCH_BYTES: Final = 256 << 10
DIFFERENCES_MAX: Final = 20
"""Number of differences that are described."""
QUEUES_MAX: Final = 8
"""Target queues that are written at the same time; each holds one batch."""

_position: Final = msgspec.json.Decoder(Position)


class Item(msgspec.Struct):
    """A line of a file, and the message in it; None if it is left out."""

    line: int
    position: Position
    message: Message | None


class Sending:
    """Sends what earlier runs of a restore have not sent."""

    def __init__(  # one parameter per option
        self,
        admin: AdminClient,
        producer: Producer,
        folder: Folder,
        progress: Progress,
        *,
        rate: float | None,
        patience_s: float,
        has_proof: bool,
    ) -> None:
        """Send `rate` messages per second; wait `patience_s` for brokers that do not answer. With
        `has_proof`, read all messages back, and compare them with the backup.
        """
        self._has_proof = has_proof
        self.repeated_count = 0
        """Number of messages of which an unanswered attempt may store another copy."""
        self._reader = Reader(admin, patience_s, is_master=True)
        self._producer = producer
        self._folder, self._progress = folder, progress
        self._pace = None if rate is None else Pace(rate)
        self._patience_s = patience_s
        self._cuts = cuts_of(folder)
        self._begun: set[MessageQueue] = set()
        """Queues into which this run has sent."""

    async def run(self) -> None:
        """Send what is missing, one batch at a time to each queue."""
        room = asyncio.Semaphore(QUEUES_MAX)
        targets = self._progress.targets
        by_target: dict[MessageQueue, list[tuple[QueueKey, list[Segment]]]] = {}
        for key, segments in by_queue(self._folder.segments):
            if key in targets:
                by_target.setdefault(targets[key].place, []).append((key, segments))

        async def fill(parts: Sequence[tuple[QueueKey, list[Segment]]]) -> None:
            async with room:
                for key, segments in parts:
                    for segment in segments:
                        await self._segment(segment, targets[key], self._cuts.get(key, ()))

        async with asyncio.TaskGroup() as tasks:
            for parts in by_target.values():
                tasks.create_task(fill(parts))

    async def _segment(self, segment: Segment, target: Target, cuts: Iterable[int]) -> None:
        done = self._progress.lines_done(segment.file)
        if done >= segment.messages:
            return
        lines = islice(enumerate(lines_of(self._folder.path, segment)), done, None)
        items = (item_of(number, line, target.topic) for number, line in lines)
        for batch in batches_of(items, frozenset(cuts)):
            await self._batch(segment.file, batch, target)

    async def _batch(self, file: str, items: Sequence[Item], target: Target) -> None:
        """Store the lines of a batch; a line that can never be stored is left out."""
        first = items[0]
        if first.message is None:
            reason = "its body is damaged" if first.position.damaged else "it is no message"
            self._leave_out(file, first, target, reason)
            return
        if self._pace is not None:
            for _ in items:
                await self._pace.wait()
        try:
            offset = await self._stored(items, target)
        except CometError as error:
            if not concerns_message(error):
                raise
            if len(items) == 1:
                self._leave_out(file, first, target, str(error))
                return
            for item in items:
                await self._batch(file, [item], target)
            return
        differ = await self._differing(items, target, offset) if self._has_proof else -1
        self._progress.add(
            Batch(
                file=file, line=first.line, count=len(items), first=first.position.queue_offset,
                broker=target.broker, queue=target.queue, offset=offset, differ=differ,
            )
        )  # fmt: skip

    def _leave_out(self, file: str, item: Item, target: Target, reason: str) -> None:
        print_notes([f"{item.position.message_id}: left out, {reason}"])
        self._progress.add(
            Batch(file=file, line=item.line, count=1, broker=target.broker, queue=target.queue)
        )

    async def _stored(self, items: Sequence[Item], target: Target) -> int:
        """Send until a broker confirms; return the offset of the first message.

        If an earlier attempt, perhaps of a killed run, has stored the batch, it is found in the
        queue and not sent again.
        """
        messages = [it.message for it in items if it.message is not None]
        deadline = monotonic() + self._patience_s
        was_unanswered, may_be_stored = False, target.place not in self._begun
        while True:
            try:
                if may_be_stored and (found := await self._found(messages, target)) is not None:
                    return found
                self._begun.add(target.place)
                result = await (
                    self._producer.send_batch(messages, queue=target.place)
                    if len(messages) > 1
                    else self._producer.send(messages[0], queue=target.place)
                )
            except CometError as error:
                is_unanswered = isinstance(error, SendFailed) and error.may_be_stored
                may_be_stored = may_be_stored or is_unanswered
                was_unanswered = was_unanswered or is_unanswered
                if not may_pass(error) or monotonic() >= deadline:
                    raise
                await asyncio.sleep(PAUSE_S)
                continue
            self.repeated_count += len(messages) if was_unanswered else 0
            return result.queue_offset

    async def _found(self, messages: Sequence[Message], target: Target) -> int | None:
        """Return the offset at which an earlier attempt has stored a batch, or None."""
        place = target.place
        broker = await self._reader.broker(place.topic, place.broker_name)
        at, end = self._progress.end_of(place), await broker.max_offset(place.topic, place.queue_id)
        ids = [it.message_id for it in messages]
        seen: list[MessageExt] = []
        empty = EmptyAnswers(place)
        while at < end:
            answer = await broker.pull(place.topic, place.queue_id, at)
            seen = [*seen[-len(ids) :], *answer.messages]
            found = [it.message_id for it in seen]
            for index in range(len(found) - len(ids) + 1):
                if found[index : index + len(ids)] == ids:
                    return seen[index].queue_offset
            if answer.next_offset <= at:
                break
            empty.check(answer)
            at = answer.next_offset
        return None

    async def _differing(self, items: Sequence[Item], target: Target, offset: int) -> int:
        """Read a batch back; print how its messages differ, and return how many do."""
        found: dict[int, MessageExt] = {}
        at = offset
        while at < offset + len(items):
            answer = await self._reader.pull((target.topic, target.broker, target.queue), at)
            found |= {it.queue_offset: it for it in answer.messages}
            at = answer.next_offset
        pairs = [
            (number, difference)
            for number, item in enumerate(items, offset)
            if item.message is not None
            and (difference := difference_of(item.message, found.get(number)))
        ]
        where = f"{target.topic}, queue {target.broker}:{target.queue}, offset"
        left = max(0, DIFFERENCES_MAX - self._progress.differing_count)
        print_notes(f"{where} {number}: {difference}" for number, difference in pairs[:left])
        return len(pairs)


def difference_of(wanted: Message, found: MessageExt | None) -> str:
    """Return how a stored message differs from the one in the backup; empty if it does not."""
    if found is None:
        return f"the message {wanted.message_id} is not there"
    if isinstance(found, DamagedMessage):
        return f"the message {found.message_id} is damaged"
    own = tuple(key for key in found.keys if key != found.message_id)
    parts = {
        "id": (wanted.message_id, found.message_id),
        "body": (wanted.body, found.body),
        "tag": (wanted.tag or None, found.tag),
        "keys": (tuple(wanted.keys), own),
        "properties": (dict(wanted.properties), found.user_properties),
        "flag": (wanted.flag, found.flag),
    }
    names = [name for name, (one, other) in parts.items() if one != other]
    return f"{' and '.join(names)} of {wanted.message_id} differ" if names else ""


def cuts_of(folder: Folder) -> dict[QueueKey, set[int]]:
    """Return the saved offsets of groups, by queue; a new batch begins at each of them."""
    cuts: dict[QueueKey, set[int]] = {}
    for it in folder.plan.offsets:
        cuts.setdefault(it.key, set()).add(it.offset)
    return cuts


def item_of(number: int, line: bytes, topic: str) -> Item:
    """Return the message of a line, with its original id; without a message if no producer could
    send it.

    Raise ClientError for a line that lacks the position of its message.
    """
    try:
        position = _position.decode(line)
    except UNREADABLE_JSON as error:
        raise ClientError(f"line {number + 1} of a backup's file is no message: {error}") from error
    try:
        message = message_json.parse(line, defaults=Message(topic, b""))
    except InvalidArgument:
        return Item(number, position, None)
    return Item(number, position, msgspec.structs.replace(message, message_id=position.message_id))


def batches_of(items: Iterable[Item], cuts: frozenset[int]) -> Iterator[list[Item]]:
    """Yield batches: each has items with messages, up to the size limits, or one item without.

    `cuts` are offsets of groups. A batch also ends before the first message at or after a cut, so
    that the offset of its first message is the group's new offset.
    """
    batch: list[Item] = []
    size = 0
    left = sorted(cuts, reverse=True)
    for item in items:
        is_cut = False
        while left and left[-1] <= item.position.queue_offset:
            left.pop()
            is_cut = True
        body_bytes = 0 if item.message is None else _size(item.message)
        is_full = len(batch) >= BATCH_COUNT or size + body_bytes > BATCH_BYTES
        if batch and (is_cut or is_full or item.message is None):
            yield batch
            batch, size = [], 0
        if item.message is None:
            yield [item]
            continue
        batch.append(item)
        size += body_bytes
    if batch:
        yield batch


def _size(message: Message) -> int:
    properties = sum(len(name) + len(text) for name, text in message.properties.items())
    return len(message.body) + 4 * properties + 4 * sum(map(len, message.keys)) + 200
