# SPDX-License-Identifier: Apache-2.0
"""Files of messages: written once, compressed, and read line by line in bounded memory."""

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from cometmq.cli.archives.form import QueueKey, Segment, opened
from cometmq.client.errors import ClientError
from cometmq.client.message import DamagedMessage, MessageExt, UnreadableMessage
from cometmq.insight import message_json

SEGMENT_BYTES: Final = 32 << 20
"""A file is complete when it has this number of uncompressed bytes."""
LINE_BYTES_MAX: Final = 256 << 20
"""A longer line counts as damaged; the default maxMessageSize of brokers is 4 MiB."""
LEVEL: Final = 4
"""The zlib level; level 6 takes twice the time and saves 5 %."""
_CHUNK_BYTES: Final = 1 << 20


class Position(msgspec.Struct):
    """The position of a message in the backed-up queue, and its id: fields of its line."""

    queue_offset: int
    message_id: str = ""
    damaged: bool = False


class SegmentWriter:
    """Writes one file of messages, which is complete after `finish`."""

    def __init__(self, path: Path, key: QueueKey, first: int) -> None:
        """Create the file, or replace one that was not finished."""
        self._path, self._key, self._first = path, key, first
        self._digest = hashlib.sha256()
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
        self._file = path.open("wb")
        self.next = first
        """The offset after the last one that was examined."""
        self.message_count = self.damaged_count = self.missing_count = self.plain_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the next message belongs in another file."""
        return self.plain_bytes >= SEGMENT_BYTES

    def add(self, message: MessageExt) -> None:
        """Write a message."""
        line = message_json.render(message) + b"\n"
        self._write(self._compressor.compress(line))
        self.next = max(self.next, message.queue_offset + 1)
        self.plain_bytes += len(line)
        self.message_count += 1
        self.damaged_count += isinstance(message, DamagedMessage | UnreadableMessage)

    def finish(self) -> Segment:
        """Make the file durable, and return its description."""
        self._write(self._compressor.flush())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        topic, broker, queue = self._key
        return Segment(
            file=self._path.name, topic=topic, broker=broker, queue=queue, first=self._first,
            next=self.next, messages=self.message_count, plain_bytes=self.plain_bytes,
            sha256=self._digest.hexdigest(), damaged=self.damaged_count,
            missing=self.missing_count,
        )  # fmt: skip

    def drop(self) -> None:
        """Delete the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._file.write(data)


def check(folder: Path, segment: Segment) -> int:
    """Return the size of a file; raise ClientError if it was changed since it was written."""
    size = 0
    digest = hashlib.sha256()
    try:
        with opened(folder / segment.file) as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise ClientError(f"{folder / segment.file} cannot be read: {error.strerror}") from error
    if digest.hexdigest() != segment.sha256:
        raise ClientError(f"{folder / segment.file} is damaged: its SHA-256 is another one")
    return size


def lines_of(folder: Path, segment: Segment) -> Iterator[bytes]:
    """Yield the lines of a file; raise ClientError if their number differs from the segment's."""
    count = size = 0
    try:
        with opened(folder / segment.file) as raw, gzip.open(raw, "rb") as file:
            while line := file.readline(LINE_BYTES_MAX):
                count, size = count + 1, size + len(line)
                if size > segment.plain_bytes or not line.endswith(b"\n"):
                    raise ClientError(f"{folder / segment.file} is damaged: line {count}")
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise ClientError(f"{folder / segment.file} cannot be read: {error}") from error
    if count != segment.messages or size != segment.plain_bytes:
        raise ClientError(f"{folder / segment.file} is damaged: it has {count:,} messages")
