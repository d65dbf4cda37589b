# SPDX-License-Identifier: Apache-2.0
"""The messages that share bytes with damaged ranges of the log, and are withheld from readers.

They are identified from the queue entries, because the damaged bytes cannot be trusted. Their keys
are read from these bytes nevertheless, if they still look like keys: they help people.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from cometmq.remoting.errors import UNREADABLE_JSON, CorruptRecord
from cometmq.remoting.message.record import decode_record
from cometmq.store.disk import Disk, read_whole, replace
from cometmq.store.errors import DiskError
from cometmq.store.layout import Layout
from cometmq.store.log.block_sums import BLOCK_BYTES
from cometmq.store.log.checksums import block_start
from cometmq.store.log.damage import DamagedRange, clipped, merged
from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.queues.consume_queue import ConsumeQueue, entry_at
from cometmq.store.queues.queue_files import ENTRY, FILLER_SIZE

QUEUES_NAMED_MAX: Final = 20
KEYS_NAMED_MAX: Final = 20
KEY_LENGTH_MAX: Final = 100
RECORD_BYTES_MAX: Final = 64 << 10
"""Keys of larger records are not read."""


class DamagedMessages(NamedTuple):
    """Messages of one queue that are withheld from readers, `first` to `last` inclusive."""

    topic: str
    queue_id: int
    first: int
    last: int

    def __str__(self) -> str:
        """Return, for example, `orders/2: 5-7`."""
        offsets = f"{self.first}" if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.topic}/{self.queue_id}: {offsets}"


def messages_in(
    queues: Iterable[ConsumeQueue], damage: DamagedRange, *, is_starting: bool = False
) -> list[DamagedMessages]:
    """Find the messages that share bytes with a damaged range; blocks.

    The queues are complete on the disk up to the last checkpoint. Records after it are examined
    only at startup, when no other thread uses the queues.
    """
    found = []
    for queue in queues:
        parts = [_offsets_between(queue, *damage)]
        if is_starting:
            parts.append(_unwritten_between(queue, *damage))
        found += [
            DamagedMessages(queue.topic, queue.queue_id, offsets[0], offsets[-1])
            for offsets in parts
            if offsets
        ]
    return sorted(found)


def _offsets_between(queue: ConsumeQueue, start: int, end: int) -> range:
    """Return the offsets of entries in the files whose records overlap a range of the log."""
    files = queue.files
    low, stop = queue.first_at(start), queue.written_offset
    if low > queue.min_offset:
        offset, size, _ = files.entry(low - 1)
        if size != FILLER_SIZE and offset + size > start:
            low -= 1
    high = low
    while high < stop and files.entry(high)[0] < end:
        high += 1
    return range(low, high)


def _unwritten_between(queue: ConsumeQueue, start: int, end: int) -> range:
    """Return the offsets of entries in memory whose records overlap a range of the log."""
    first, unwritten = queue.unwritten()
    entries = enumerate(ENTRY.iter_unpack(unwritten), first)
    found = [
        queue_offset
        for queue_offset, (offset, size, _) in entries
        if offset < end and offset + size > start and size != FILLER_SIZE
    ]
    return range(found[0], found[-1] + 1) if found else range(0)


def named(messages: list[DamagedMessages], keys: Sequence[str]) -> str:
    """Return the messages and their keys as one line of bounded length."""
    text = described(messages) or "no message"
    return f"{text} (keys: {', '.join(keys[:KEYS_NAMED_MAX])})" if keys else text


class Found(NamedTuple):
    """A damaged range of the log, and what it costs."""

    damage: DamagedRange
    messages: list[DamagedMessages]
    """The withheld messages."""
    keys: tuple[str, ...] = ()
    """Keys of these messages, as far as they can be read."""
    blocks: DamagedRange = DamagedRange(0, 0)
    """The blocks that the damage lies in."""
    spared_count: int = 0
    """Number of messages in these blocks that readers get."""


Findings: TypeAlias = list[Found]


class Losses:
    """What is known about the damage of a log, by damaged range."""

    def __init__(self) -> None:
        self._found: dict[DamagedRange, Found] = {}
        self.messages: list[DamagedMessages] = []
        """The messages that readers do not get."""

    @property
    def ranges(self) -> list[DamagedRange]:
        """The damaged ranges, in the order in which they were found."""
        return list(self._found)

    def add(self, found: Found) -> None:
        """Note a damaged range."""
        self._found[found.damage] = found
        self._unite()

    def drop(self, ranges: Iterable[DamagedRange]) -> None:
        """Forget ranges that are no longer damaged as a whole."""
        for it in ranges:
            self._found.pop(it, None)
        self._unite()

    def _unite(self) -> None:
        self.messages = united(it for found in self._found.values() for it in found.messages)

    def __str__(self) -> str:
        """Return the messages and their keys as one line of bounded length."""
        return named(self.messages, [key for it in self._found.values() for key in it.keys])

    @property
    def spared_count(self) -> int:
        """The number of messages that readers get although their blocks are damaged."""
        return sum({it.blocks: it.spared_count for it in self._found.values()}.values())


@dataclass(slots=True)
class Examiner:
    """Finds out what damage costs; may block."""

    files: FileSequence
    queues: Sequence[ConsumeQueue]
    is_starting: bool = False

    def findings(
        self, ranges: Sequence[DamagedRange], known: Sequence[DamagedRange] = ()
    ) -> Findings:
        """Examine damaged ranges; `known` are others."""
        damage = merged([*ranges, *known])
        return [self._found(it, damage) for it in ranges]

    def _found(self, damage: DamagedRange, others: Sequence[DamagedRange]) -> Found:
        files = self.files
        begin, last = block_start(files, damage.start), block_start(files, damage.end - 1)
        file_end = last - (last - files.first) % files.file_size + files.file_size
        blocks = DamagedRange(begin, min(last + BLOCK_BYTES, file_end))
        queues = [it for it in self.queues if it.max_offset]
        around = self._messages(queues, blocks)
        named = {(it.topic, it.queue_id) for it in around}
        queues = [it for it in queues if (it.topic, it.queue_id) in named]
        messages = self._messages(queues, damage)
        withheld = united(
            it for part in clipped(others, *blocks) for it in self._messages(queues, part)
        )
        return Found(
            damage, messages, self._keys(queues, messages), blocks,
            message_count(united(around)) - message_count(withheld),
        )  # fmt: skip

    def _messages(
        self, queues: Sequence[ConsumeQueue], part: DamagedRange
    ) -> list[DamagedMessages]:
        return messages_in(queues, part, is_starting=self.is_starting)

    def _keys(
        self, queues: Sequence[ConsumeQueue], messages: list[DamagedMessages]
    ) -> tuple[str, ...]:
        by_name = {(it.topic, it.queue_id): it for it in queues}
        found: dict[str, None] = {}
        for topic, queue_id, first, last in messages:
            queue = by_name[topic, queue_id]
            for queue_offset in range(first, min(last + 1, first + KEYS_NAMED_MAX)):
                found.update(dict.fromkeys(_keys_at(self.files, queue, queue_offset)))
                if len(found) >= KEYS_NAMED_MAX:
                    return tuple(found)[:KEYS_NAMED_MAX]
        return tuple(found)


def _keys_at(files: FileSequence, queue: ConsumeQueue, queue_offset: int) -> list[str]:
    """Return the keys in the bytes of a damaged record, as far as they look like keys."""
    try:
        entry = entry_at(queue, queue_offset)
        if entry is None or entry.size > RECORD_BYTES_MAX or entry.physical_offset < files.first:
            return []
        record = decode_record(files.read(entry.physical_offset, entry.size))
        return [it for it in record.keys if it.isprintable() and len(it) <= KEY_LENGTH_MAX]
    except (DiskError, CorruptRecord, ValueError):
        return []


def united(messages: Iterable[DamagedMessages]) -> list[DamagedMessages]:
    """Join ranges of one queue that touch or overlap: damaged ranges may share a message."""
    found: list[DamagedMessages] = []
    for it in sorted(messages):
        last = found[-1] if found else None
        if last is not None and last[:2] == it[:2] and it.first <= last.last + 1:
            found[-1] = last._replace(last=max(last.last, it.last))
        else:
            found.append(it)
    return found


def message_count(messages: Iterable[DamagedMessages]) -> int:
    """Return the number of messages in all ranges together."""
    return sum(it.last - it.first + 1 for it in messages)


def described(messages: list[DamagedMessages]) -> str:
    """Return the messages as one line of bounded length."""
    text = ", ".join(map(str, messages[:QUEUES_NAMED_MAX]))
    left = len(messages) - QUEUES_NAMED_MAX
    return f"{text}, and {left} more queues" if left > 0 else text


class ScrubState(msgspec.Struct, frozen=True, rename="camel"):
    """The scrubber's current round, and the damaged ranges of the log."""

    offset: int = 0
    round_end: int = 0
    round_began_ms: int = 0
    damage: tuple[DamagedRange, ...] = ()
    records: tuple[DamagedRange, ...] = ()
    """The part of the damage that was found without checksums. Checksums that are computed later
    match the damaged bytes, so they cannot detect it again.
    """


def load_state(disk: Disk, layout: Layout) -> ScrubState:
    """Return the state of the last run, or a new one if there is no readable state."""
    try:
        return msgspec.json.decode(read_whole(disk, layout.scrub) or b"{}", type=ScrubState)
    except (DiskError, *UNREADABLE_JSON):
        return ScrubState()


def save_state(disk: Disk, layout: Layout, state: ScrubState) -> None:
    """Replace the file durably; blocks."""
    data, temporary = msgspec.json.encode(state), layout.temporary(layout.scrub)
    replace(disk, layout.scrub, data, temporary=temporary)
