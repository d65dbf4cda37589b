# SPDX-License-Identifier: Apache-2.0
"""The offset file of a broadcasting consumer, and its backup, in the Java client's format.

Compatibility: if a damaged file has no backup, or if both are empty, Java starts without offsets
and so skips the waiting messages. Here, if the file exists, it or its backup must be readable.
"""

import contextlib
import fcntl
import os
from collections.abc import Mapping
from pathlib import Path

from cometmq.client.errors import OffsetsUnreadable
from cometmq.remoting.bodies.dialect import decode_file, encode_json
from cometmq.remoting.bodies.offsets import QueueOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.transport.tasks import describe


class FileClaim:
    """An advisory lock beside a file, held until `release` or the end of the process.

    It is a file of its own, because each save replaces the offset file. Java clients take no lock.
    """

    def __init__(self, path: Path) -> None:
        """Prepare to lock `path` with `.lock` appended; nothing is locked yet."""
        self._lock_path = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None

    def take(self) -> str:
        """Take the lock and return ""; if another process holds it, return that process's id.

        A file system without locking grants it to every process. Raise OSError if the file cannot
        be created.
        """
        self._lock_path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            return owner or "unknown"
        except OSError:
            os.close(descriptor)
            return ""
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # a full disk: only the id is missing
            os.ftruncate(descriptor, 0)
            os.write(descriptor, b"%d\n" % os.getpid())
        return ""

    def release(self) -> None:
        """Unlock; the empty file is kept, because removing it would race with the next owner."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)


class OffsetFile:
    """A table of offsets on disk; all methods block."""

    def __init__(self, path: Path) -> None:
        """The folder is created by the first `save`."""
        self.path = path
        self.backup = path.with_name(path.name + ".bak")
        self.damage = ""
        """The reason why `load` used the backup; empty if it did not."""

    def load(self) -> Mapping[MessageQueue, int]:
        """Return the stored offsets, or an empty table if neither the file nor its backup exists.

        Raise OffsetsUnreadable if files exist but none is readable.
        """
        reasons: dict[Path, str] = {}
        for path in (self.path, self.backup):
            try:
                table = _table(path.read_bytes())
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                reasons[path] = describe(error)
            except RemoteProtocolError as error:
                reasons[path] = str(error)
            else:
                if path == self.backup:
                    self.damage = reasons.get(self.path, "the file is missing")
                return table
        if reasons:
            raise _unreadable(reasons)
        return {}

    def save(self, table: Mapping[MessageQueue, int]) -> None:
        """Replace the file, keeping the previous one as backup; raise OSError on failure."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(self.path.name + ".tmp")
        with fresh.open("wb") as file:
            file.write(encode_json(QueueOffsetTable(dict(table))))
            file.flush()
            os.fsync(file.fileno())
        # A damaged file must not replace the only readable one.
        if not self.damage and self.path.exists():
            self.path.replace(self.backup)
        fresh.replace(self.path)
        self.damage = ""


def _table(data: bytes) -> Mapping[MessageQueue, int]:
    if not data.strip():
        raise RemoteProtocolError("the file is empty")
    return decode_file(QueueOffsetTable, data).offset_table


def _unreadable(reasons: Mapping[Path, str]) -> OffsetsUnreadable:
    files = "; ".join(f"{path}: {reason}" for path, reason in reasons.items())
    return OffsetsUnreadable(
        f"the offsets of this broadcasting consumer cannot be read ({files}): restore the file "
        "from a copy, or delete these files to start where `consume_from` says"
    )
