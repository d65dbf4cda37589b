# SPDX-License-Identifier: Apache-2.0
"""The files of a backup.

    backup.json        what is to be copied: topics with their queues, and groups with their offsets
    000001.jsonl.gz    messages of one queue, one a line, as `consume --json` prints them
    segments.jsonl     one line for each file above that is complete, with its SHA-256; at the end
                       a line with the totals and the SHA-256 of the lines before it

A file of messages counts only once its line in segments.jsonl is on disk, so a killed backup
continues after the last line. A process locks backup.json while it writes.
"""

import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from cometmq.client.errors import ClientError, InvalidArgument
from cometmq.remoting.errors import UNREADABLE_JSON
from cometmq.runtime.files import sync_folder
from cometmq.store.layout import FOREIGN


class Lines:
    """Appends lines to a file.

    A write that fails or is killed may leave an incomplete last line. Readers ignore it, and the
    next line replaces it.
    """

    def __init__(self, path: Path, size: int) -> None:
        """`size` is the number of bytes in complete lines; 0 replaces the file."""
        self.path = path
        self.size = size

    def append(self, line: bytes, *, is_synced: bool = True) -> None:
        """Append a line; raise OSError if it could not be written completely."""
        flags = os.O_RDWR if self.size else os.O_RDWR | os.O_CREAT
        with os.fdopen(_unlinked(self.path, flags), "r+b") as file:
            file.truncate(self.size)
            file.seek(self.size)
            file.write(line)
            file.flush()
            if is_synced:
                os.fsync(file.fileno())
        self.size += len(line)


def locked(path: Path, purpose: str) -> BinaryIO:
    """Open a file, which is created if it is missing, and lock it until it is closed.

    Raise ClientError if another process has locked it for the same purpose, and OSError if it
    cannot be written. On a file system without locks, every process gets the lock.
    """
    file = os.fdopen(_unlinked(path, os.O_RDWR | os.O_CREAT), "rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ClientError(f"{path} is in use by another {purpose}: wait until it ends") from error
    except OSError:  # a file system without locks
        pass
    return file


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise ClientError for the OSError of a folder that cannot be written."""
    try:
        yield
    except OSError as error:
        raise ClientError(
            f"{path} cannot be written: {error.strerror or error}; repeat the command to go on"
        ) from error


def opened(path: Path) -> BinaryIO:
    """Open a file for reading; raise InvalidArgument if it is a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidArgument(f"{path} cannot be read: it is no regular file")
    return os.fdopen(descriptor, "rb")


def _unlinked(path: Path, flags: int) -> int:
    """Return the descriptor of a file to write; raise OSError if it is a symbolic link."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(error.errno, "it is a symbolic link") from error
        raise


FORMAT: Final = "cometmq-backup"
VERSION: Final = 1
PLAN: Final = "backup.json"
SEGMENTS: Final = "segments.jsonl"
PLAN_BYTES_MAX: Final = 256 << 20
_FILE: Final = re.compile(r"\d{6,12}\.jsonl\.gz")

QueueKey = tuple[str, str, int]
"""A topic, a broker and a queue."""


class QueueSpan(msgspec.Struct, frozen=True):
    """The offsets of one queue to copy, from `first` to `end`, exclusive."""

    broker: str
    queue: int
    first: int
    end: int


class TopicPlan(msgspec.Struct, frozen=True):
    """A topic to copy. A restore creates it with `queue_count` readable and writable queues."""

    name: str
    queues: Sequence[QueueSpan]
    queue_count: int
    """The highest number of queues on any of its brokers."""


class GroupOffset(msgspec.Struct, frozen=True):
    """The next offset that a group will read in one queue."""

    group: str
    topic: str
    broker: str
    queue: int
    offset: int

    @property
    def key(self) -> QueueKey:
        """The key of the queue."""
        return self.topic, self.broker, self.queue


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup contains once it is complete."""

    format: str = FORMAT
    version: int = VERSION
    id: str
    begun: str
    program: str
    namesrv: str
    topics: Sequence[TopicPlan]
    options: Mapping[str, Sequence[str]] = {}
    """The options that select what is copied, as given."""
    since_ms: int | None = None
    """Messages stored before this time are left out."""
    until_ms: int | None = None
    """Messages stored at this time or later are left out."""
    offsets: Sequence[GroupOffset] = ()

    @property
    def spans(self) -> dict[QueueKey, QueueSpan]:
        """The offsets to copy, by queue."""
        return {(it.name, one.broker, one.queue): one for it in self.topics for one in it.queues}

    @property
    def offset_count(self) -> int:
        """The number of offsets to copy, which is the highest possible number of messages."""
        return sum(it.end - it.first for it in self.spans.values())


class Segment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A complete file of messages."""

    file: str
    topic: str
    broker: str
    queue: int
    first: int
    next: int
    """The exclusive end of the offsets that the file covers."""
    messages: int
    plain_bytes: int
    sha256: str
    damaged: int = 0
    """Number of messages whose body differs from the one that was sent."""
    missing: int = 0
    """Number of offsets whose messages the broker no longer had."""

    @property
    def key(self) -> QueueKey:
        """The key of the queue."""
        return self.topic, self.broker, self.queue


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The last line of a complete backup."""

    ended: str
    messages: int
    sha256: str
    """The digest of the lines before this one."""


class Folder:
    """A backup on disk: its plan and its complete files."""

    def __init__(
        self,
        path: Path,
        plan: Plan,
        segments: Sequence[Segment] = (),
        end: End | None = None,
        *,
        size: int = 0,
    ) -> None:
        """`size` is the number of bytes in the complete lines of SEGMENTS."""
        self.path = path
        self.plan = plan
        self.segments = list(segments)
        self.end = end
        """The last line of SEGMENTS; None if the backup is unfinished."""
        self._table = Lines(path / SEGMENTS, size)

    @property
    def message_count(self) -> int:
        """The number of messages in the complete files."""
        return sum(it.messages for it in self.segments)

    def next_offset(self, key: QueueKey) -> int:
        """Return the offset from which to continue in a queue."""
        found = [it.next for it in self.segments if it.key == key]
        return max(found, default=self.plan.spans[key].first)

    def next_number(self) -> int:
        """Return the number of the next file."""
        return max((int(it.file.partition(".")[0]) for it in self.segments), default=0) + 1

    def add(self, segment: Segment) -> None:
        """Add the line of a complete file; the file must be on disk already."""
        self._append(msgspec.json.encode(segment))
        self.segments.append(segment)

    def clean(self) -> None:
        """Delete the incomplete files that killed runs have left."""
        known = {it.file for it in self.segments}
        for file in self.path.iterdir():
            if _FILE.fullmatch(file.name) and file.name not in known:
                file.unlink()

    def finish(self, ended: str) -> None:
        """Write the last line; `ended` is the time, as text."""
        table = self.path / SEGMENTS
        with writing(self.path):
            before = table.read_bytes()[: self._table.size] if self.segments else b""
            digest = hashlib.sha256(before).hexdigest()
            end = End(ended=ended, messages=self.message_count, sha256=digest)
            self._append(msgspec.json.encode({"end": msgspec.to_builtins(end)}))
        self.end = end

    def _append(self, line: bytes) -> None:
        self._table.append(line + b"\n")
        sync_folder(self.path)


@contextmanager
def created(path: Path, plan: Plan) -> Iterator[Folder]:
    """Begin a backup in a folder that is new or empty; only its owner can read it."""
    new = path / f"{PLAN}.new"
    with writing(path):
        if path.exists() and not (
            path.is_dir() and all(it == new or it.name.startswith(FOREIGN) for it in path.iterdir())
        ):
            raise ClientError(f"{path} exists and is no backup: name a new or an empty folder")
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = locked(new, "backup")
    with lock:
        if is_begun(path):  # by a run that has locked the file before
            new.unlink(missing_ok=True)
            raise ClientError(f"{path} is in use by another backup: wait until it ends")
        with writing(path):
            Lines(new, 0).append(msgspec.json.format(msgspec.json.encode(plan), indent=1))
            new.rename(path / PLAN)  # with its lock
            sync_folder(path)
        yield Folder(path, plan)


@contextmanager
def resumed(path: Path) -> Iterator[Folder]:
    """Continue a backup from where the last run ended."""
    with writing(path):
        lock = locked(path / PLAN, "backup")
    with lock:
        folder = load(path)
        with writing(path):
            folder.clean()
        yield folder


def is_begun(path: Path) -> bool:
    """Return whether a folder has a backup, complete or not."""
    return (path / PLAN).is_file()


def load(path: Path) -> Folder:
    """Return the backup in a folder, ignoring an incomplete last line.

    Raise InvalidArgument for a folder that is no backup, or whose tables are damaged.
    """
    try:
        data = _read(path / PLAN)
        plan = msgspec.json.decode(data, type=Plan)
    except FileNotFoundError as error:
        raise InvalidArgument(f"{path} is no backup: it has no {PLAN}") from error
    except (OSError, *UNREADABLE_JSON) as error:
        raise InvalidArgument(f"{path / PLAN} cannot be read: {error}") from error
    if plan.format != FORMAT or plan.version != VERSION:
        raise InvalidArgument(
            f"{path} is a {plan.format} of version {plan.version}; this program reads {FORMAT} of"
            f" version {VERSION}"
        )
    segments, end, size = _segments(path, plan)
    return Folder(path, plan, segments, end, size=size)


def _read(file: Path) -> bytes:
    with opened(file) as found:
        data = found.read(PLAN_BYTES_MAX + 1)
    if len(data) > PLAN_BYTES_MAX:
        raise InvalidArgument(f"{file} is larger than any of a backup")
    return data


def _segments(path: Path, plan: Plan) -> tuple[list[Segment], End | None, int]:
    """Return the complete files, the last line if it is there, and the bytes of all
    complete lines.
    """
    file, spans = path / SEGMENTS, plan.spans
    try:
        data = _read(file)
    except FileNotFoundError:
        return [], None, 0
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error}") from error
    whole = data[: data.rfind(b"\n") + 1]
    found: list[Segment] = []
    at = 0
    for number, line in enumerate(whole.splitlines(), 1):
        where = f"line {number} of {file}"
        try:
            raw: Any = msgspec.json.decode(line)
            if isinstance(raw, dict) and "end" in raw:
                end = _checked_end(msgspec.convert(raw["end"], End), found, data[:at], where)
                return found, end, len(whole)
            segment = msgspec.convert(raw, Segment)
        except UNREADABLE_JSON as error:
            raise InvalidArgument(f"{where} is damaged: {error}") from error
        _check_segment(segment, spans, where)
        found.append(segment)
        at += len(line) + 1
    return found, None, len(whole)


def _check_segment(segment: Segment, spans: dict[QueueKey, QueueSpan], where: str) -> None:
    span = spans.get(segment.key)
    if span is None or not _FILE.fullmatch(segment.file):
        raise InvalidArgument(f"{where} is damaged: it names no file of messages of this backup")
    if not span.first <= segment.first <= segment.next <= span.end:
        raise InvalidArgument(f"{where} is damaged: its offsets are outside the queue's")


def _checked_end(end: End, segments: Sequence[Segment], before: bytes, where: str) -> End:
    if hashlib.sha256(before).hexdigest() != end.sha256:
        raise InvalidArgument(f"{where}: the lines before it were changed (SHA-256)")
    if sum(it.messages for it in segments) != end.messages:
        raise InvalidArgument(f"{where} is damaged: its total is not that of the lines before it")
    return end


def by_queue(segments: Sequence[Segment]) -> Iterator[tuple[QueueKey, list[Segment]]]:
    """Yield the files of each queue in the order of their offsets."""
    found: dict[QueueKey, list[Segment]] = {}
    for segment in segments:
        found.setdefault(segment.key, []).append(segment)
    for key in sorted(found):
        yield key, sorted(found[key], key=lambda it: it.first)
