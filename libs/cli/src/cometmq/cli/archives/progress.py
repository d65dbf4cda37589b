# SPDX-License-Identifier: Apache-2.0
"""The progress file of a restore, with a line for each batch that a broker has stored."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from cometmq.cli.archives.form import (
    PLAN_BYTES_MAX,
    Folder,
    GroupOffset,
    Lines,
    QueueKey,
    locked,
    opened,
)
from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import UNREADABLE_JSON

SYNC_EVERY: Final = 64
"""The file is flushed to disk after this number of batches. If a killed restore loses lines, its
next run finds the messages of their batches in the queues.
"""


LINE_BYTES_MAX: Final = 64 << 10
"""Longer than any line except the first."""
DONE: Final = b'{"done":true}\n'
_BEGIN: Final = b'{"backup":"'
"""The first bytes of the first line: the field `backup`."""


class Target(msgspec.Struct, frozen=True):
    """The queue that receives the messages of a queue of the backup."""

    topic: str
    broker: str
    queue: int
    begin: int
    """The exclusive end of the target queue before the restore began."""

    @property
    def place(self) -> MessageQueue:
        """The target queue."""
        return MessageQueue(self.topic, self.broker, self.queue)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: the backup, and the target of each of its queues."""

    backup: str
    topic: str
    """The topic that receives the messages."""
    targets: Sequence[tuple[QueueKey, Target]]


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Consecutive lines of a file of the backup, whose messages are stored at consecutive
    offsets.
    """

    file: str
    line: int
    """The number of lines of the file before the batch."""
    count: int
    """The number of lines in the batch."""
    first: int = 0
    """The offset of the first message in the backup's queue."""
    broker: str
    queue: int
    offset: int = -1
    """The offset of the first message in the target queue; -1 if the messages cannot be stored and
    were left out.
    """
    differ: int = -1
    """The number of its messages that differ from the backup; -1 if they were not read back."""


class Progress:
    """The progress file of a restore. Its batches are counted, not held in memory."""

    def __init__(self, table: Lines, head: Head, backup: Folder) -> None:
        self.path = table.path
        self._table = table
        self.head = head
        self.is_done = False
        """Whether everything is stored, and nothing differs."""
        self.stored_count = 0
        """Number of messages stored so far."""
        self.left_out_count = 0
        """Number of lines left out so far, because brokers do not accept their messages."""
        self.verified_count = 0
        """Number of stored messages that were read back."""
        self.differing_count = 0
        """Number of stored messages that differ from the backup."""
        self.targets = dict(head.targets)
        """The target of each queue of the backup."""
        self._places = {(it.broker, it.queue) for it in self.targets.values()}
        self._lines: dict[str, int] = {}
        self._ends = {it.place: it.begin for it in self.targets.values()}
        self._unsynced = 0
        self._keys = {it.file: it.key for it in backup.segments}
        self._last: dict[QueueKey, int] = {}
        """The end of what was restored of each queue of the backup."""
        self._reached: list[tuple[GroupOffset, int]] = []
        self._ahead: dict[QueueKey, list[GroupOffset]] = {}
        """The saved offsets of groups that the restore has not reached, the largest first."""
        for it in sorted(backup.plan.offsets, key=lambda it: -it.offset):
            self._ahead.setdefault(it.key, []).append(it)

    @property
    def size(self) -> int:
        """The number of bytes in complete lines."""
        return self._table.size

    def lines_done(self, file: str) -> int:
        """Return how many lines of a file are stored or left out."""
        return self._lines.get(file, 0)

    def end_of(self, place: MessageQueue) -> int:
        """Return the offset after the last message that is known to be stored in a queue."""
        return self._ends[place]

    def group_offsets(self) -> dict[tuple[str, MessageQueue], int]:
        """Return the offsets at which groups continue in the target queues, by group and queue.

        A group skips no message that was unread in the backup: if several queues were restored to
        one, it gets the smallest of their offsets.
        """
        read = [  # by these groups, up to the end
            (it, self._last.get(key, self.targets[key].begin))
            for key, left in self._ahead.items()
            if key in self.targets
            for it in left
        ]
        found: dict[tuple[str, MessageQueue], int] = {}
        for it, offset in self._reached + read:
            place = it.group, self.targets[it.key].place
            found[place] = min(offset, found.get(place, offset))
        return found

    def add(self, batch: Batch) -> None:
        """Append the line of a batch."""
        self._count(batch)
        self._unsynced += 1
        self._append(msgspec.json.encode(batch) + b"\n", is_synced=self._unsynced >= SYNC_EVERY)

    def _count(self, batch: Batch) -> None:
        self._lines[batch.file] = batch.line + batch.count
        if batch.offset < 0:
            self.left_out_count += batch.count
            return
        self.stored_count += batch.count
        if batch.differ >= 0:
            self.verified_count += batch.count
            self.differing_count += batch.differ
        place = MessageQueue(self.head.topic, batch.broker, batch.queue)
        self._ends[place] = max(self._ends[place], batch.offset + batch.count)
        key = self._keys[batch.file]
        self._last[key] = batch.offset + batch.count
        ahead = self._ahead.get(key, [])
        while ahead and ahead[-1].offset <= batch.first:
            self._reached.append((ahead.pop(), batch.offset))

    def read(self) -> None:
        """Count the batches of earlier runs.

        Raise InvalidArgument for a damaged line, or one that names an unknown queue or file.
        """
        with opened(self.path) as file:
            left = self._table.size
            for number, line in enumerate(iter(partial(file.readline, PLAN_BYTES_MAX), b""), 1):
                left -= len(line)
                if left < 0:
                    return
                if number == 1 or line == DONE:
                    continue
                try:
                    batch = msgspec.json.decode(line, type=Batch)
                except UNREADABLE_JSON as error:
                    raise _damaged(self.path, number, error) from error
                if (batch.broker, batch.queue) not in self._places or batch.file not in self._keys:
                    raise _damaged(self.path, number, "it is about another queue or backup")
                self._count(batch)

    def finish(self) -> None:
        """Append the last line: everything is stored and verified."""
        self._append(DONE, is_synced=True)
        self.is_done = True

    def _append(self, line: bytes, *, is_synced: bool) -> None:
        with _writing(self.path):
            self._table.append(line, is_synced=is_synced)
        self._unsynced = 0 if is_synced else self._unsynced


@contextmanager
def claim(path: Path, size: int) -> Iterator[None]:
    """Lock the file against other restores.

    Raise ClientError if its complete lines no longer have `size` bytes, because another restore has
    written it.
    """
    with _writing(path):
        file = locked(path, "restore")
    with file:
        if _whole_bytes(file) != size:
            raise ClientError(f"another restore has written {path} meanwhile: repeat the command")
        yield


def forget(path: Path) -> None:
    """Empty a progress file; the file itself remains, because it is locked."""
    with _writing(path):
        os.truncate(path, 0)


def begin(path: Path, head: Head, backup: Folder) -> Progress:
    """Write the first line of a new restore."""
    table = Lines(path, 0)
    with _writing(path):
        table.append(msgspec.json.encode(head) + b"\n")
    return Progress(table, head, backup)


def load(path: Path, backup: Folder) -> Progress | None:
    """Return an earlier restore; None if there is none, or if it was killed before it began."""
    try:
        with opened(path) as file:
            first = file.readline(PLAN_BYTES_MAX)
            size = _whole_bytes(file)
            file.seek(max(0, size - len(DONE)))
            is_done = file.read(len(DONE)) == DONE
        if not size and first[: len(_BEGIN)] == _BEGIN[: len(first)]:
            return None
        head = msgspec.json.decode(first, type=Head)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror}") from error
    except UNREADABLE_JSON as error:
        raise _damaged(path, 1, error) from error
    progress = Progress(Lines(path, size), head, backup)
    progress.is_done = is_done
    progress.read()
    return progress


def _whole_bytes(file: BinaryIO) -> int:
    """Return the number of bytes in complete lines."""
    end = file.seek(0, os.SEEK_END)
    at = max(0, end - LINE_BYTES_MAX)
    file.seek(at)
    last = file.read(LINE_BYTES_MAX).rfind(b"\n")
    return 0 if last < 0 else at + last + 1


def _damaged(path: Path, number: int, why: object) -> InvalidArgument:
    return InvalidArgument(
        f"line {number} of {path} is no progress of a restore: {why}; name another file with"
        " --progress, or delete this one to send all messages again"
    )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ClientError(
            f"{path}, the progress of the restore, cannot be written: {error.strerror or error};"
            " name another file with --progress"
        ) from error
