# SPDX-License-Identifier: Apache-2.0
"""The epochs of a commit log: which master wrote which part of it (pure), and the epoch file.

An entry (epoch, start) records that the master of `epoch` wrote the bytes from physical offset
`start` onwards. Two logs with an equal entry agree up to the end of that epoch in the shorter log.
Histories therefore show a follower where to truncate, and the elector which log is more complete.
Bytes before the first entry belong to epoch 0: they were written before the store joined a group.

The broker keeps the file beside the checkpoint. A new master calls `begun`. A follower calls
`common_point` at each handshake, and `reached` when its log has grown. Recovery calls `truncated`
with the end of the log. A history is saved before the log grows and before anything is
acknowledged; when a log is truncated, the history is saved afterwards. Bytes must never be on the
disk without their entry, because they would then be treated as bytes of the previous epoch.
Recovery removes entries whose bytes are missing (R5).

A history does not grow forever: `pruned` drops the entries of bytes that the log has deleted, and
combines the oldest entries of a history with too many of them.
"""

import itertools
import zlib
from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.ha.durable import Files
from cometmq.remoting.errors import CometError

EPOCH_FILE: Final = "epochFileCheckpoint"
"""RocketMQ 5 uses the same name and format."""


HISTORY_COUNT_MAX: Final = 20_000
"""Maximum number of entries that a master keeps. They fit into a handshake, with 52 bytes each."""


class EpochsDamaged(CometError):
    """A file is not a valid epoch file; the message names the file and the fault."""


class HistoryUnsaved(OSError):
    """A history did not fit on the disk; the file and the history in use are unchanged."""


class Entry(NamedTuple):
    """The first byte that the master of an epoch wrote."""

    epoch: int
    start: int


History = tuple[Entry, ...]
"""Ascending by epoch and start. An epoch without bytes is replaced by the next one."""


class CommonPoint(NamedTuple):
    """The offset up to which two logs agree, and the history of that common part."""

    offset: int
    history: History


def epoch_of(entry: Entry) -> int:
    """Return the epoch, as the key of a search in a history."""
    return entry.epoch


def start_of(entry: Entry) -> int:
    """Return the start, as the key of a search in a history."""
    return entry.start


def last_epoch(history: History) -> int:
    """Return the epoch of the last entry; 0 if there are no entries."""
    return history[-1].epoch if history else 0


def begun(history: History, epoch: int, start: int) -> History:
    """Return the history with an epoch that starts at `start`, the end of the log."""
    if history and (epoch <= history[-1].epoch or start < history[-1].start):
        raise ValueError(f"epoch {epoch} at offset {start} cannot follow {tuple(history[-1])}")
    kept = history[:-1] if history and history[-1].start == start else history
    return (*kept, Entry(epoch, start))


def truncated(history: History, end: int) -> History:
    """Return the history of a log that ends at `end`, without entries that start beyond it (R5).

    An entry that survived its bytes would later match a log with different bytes there.
    """
    return tuple(entry for entry in history if entry.start <= end)


def pruned(history: History, first: int) -> History:
    """Return the history of a log that begins at `first`, without entries that nothing needs.

    The entry of the byte before `first` is kept: another log may end there, and logs without a
    common entry can share only bytes before both first entries. Of too many entries, the older half
    becomes one: its last epoch, from its first offset. Logs that diverge there are copied anew.
    """
    kept = history[max(0, bisect_left(history, first, key=start_of) - 1) :]
    if len(kept) <= HISTORY_COUNT_MAX:
        return kept
    count = len(kept) - HISTORY_COUNT_MAX // 2
    return (Entry(kept[count - 1].epoch, kept[0].start), *kept[count:])


def reached(mine: History, masters: History, end: int) -> History:
    """Return the history of a follower whose log now ends at `end`.

    An entry is adopted when the log reaches its start, and saved before the next byte is appended;
    so an acknowledgement at or above the start implies that it is saved.
    """
    newer = bisect_right(masters, last_epoch(mine), key=epoch_of)
    added = masters[newer : bisect_right(masters, end, key=start_of)]
    return (*begun(mine, *added[0]), *added[1:]) if added else mine


def common_point(mine: History, my_end: int, masters: History, masters_end: int) -> CommonPoint:
    """Return the offset at which a follower truncates its log before accepting the master's data.

    This is the lower end of the newest common entry. The follower's later entries are not part of
    the common history. Logs without a common entry can share only bytes of epoch 0; there,
    histories cannot tell groups apart, so the caller compares the last record.
    """
    newest = max(set(mine).intersection(masters), default=Entry(0, 0)).epoch
    count = bisect_right(mine, newest, key=epoch_of)
    theirs_count = bisect_right(masters, newest, key=epoch_of)
    my_limit = mine[count].start if count < len(mine) else my_end
    masters_limit = masters[theirs_count].start if theirs_count < len(masters) else masters_end
    offset = min(my_limit, masters_limit)
    return CommonPoint(offset, truncated(mine[:count], offset))


def encode_epochs(history: History) -> bytes:
    """Return the file's content: number of entries, CRC-32 of the lines, one line per entry."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in history).encode()
    return f"{len(history)}\n{_checksum(lines)}\n".encode() + lines


def decode_epochs(data: bytes, *, place: str) -> History:
    """Parse the content of a file; raise EpochsDamaged with `place` in the message."""
    count, _, rest = data.partition(b"\n")
    checksum, _, lines = rest.partition(b"\n")
    if not (count.isdigit() and checksum.isdigit()):
        raise EpochsDamaged(f"{place} is damaged: its first two lines are not numbers")
    if int(checksum) and int(checksum) != _checksum(lines):
        raise EpochsDamaged(f"{place} is damaged: its lines do not match checksum {int(checksum)}")
    try:
        history = tuple(_entry(line) for line in lines.decode("ascii").splitlines())
    except ValueError as error:
        raise EpochsDamaged(f"{place} is damaged: {error}") from error
    if len(history) != int(count):
        raise EpochsDamaged(f"{place} is damaged: {len(history)} entries instead of {int(count)}")
    if any(
        next_.epoch <= entry.epoch or next_.start <= entry.start
        for entry, next_ in itertools.pairwise(history)
    ):
        raise EpochsDamaged(f"{place} is damaged: epochs and offsets do not rise from line to line")
    return history


class EpochFile:
    """The epoch file of a store."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._path = folder / EPOCH_FILE
        self._files = files

    def load(self) -> History:
        """Return the saved history, or an empty one; raise EpochsDamaged or OSError."""
        data = self._files.read(self._path)
        return () if data is None else decode_epochs(data, place=str(self._path))

    def save(self, history: History) -> None:
        """Make the history durable; raise OSError."""
        self._files.replace(self._path, encode_epochs(history))


def _entry(line: str) -> Entry:
    epoch, _, start = line.partition("-")
    if not (epoch.isdigit() and start.isdigit()):
        raise ValueError(f"{line!r} is not an epoch and an offset")
    return Entry(int(epoch), int(start))


def _checksum(lines: bytes) -> int:
    return zlib.crc32(lines) & 0x7FFFFFFF  # RocketMQ masks the sign; 0 means unchecked
