# SPDX-License-Identifier: Apache-2.0
"""The offset file of a broadcasting consumer, and its backup, in the Java client's format.

Compatibility: if a damaged file has no backup, or if both are empty, Java starts without offsets
and so skips the waiting messages. Here, if the file exists, it or its backup must be readable.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from cometmq.client.errors import OffsetsUnreadable
from cometmq.remoting.bodies.dialect import decode_file, encode_json
from cometmq.remoting.bodies.offsets import QueueOffsetTable
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.transport.tasks import describe


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
