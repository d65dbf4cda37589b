# SPDX-License-Identifier: Apache-2.0
"""The versions of a record as files in a folder: a writer wins by linking the next number.

Each version is a file named by its number; the file with the highest number is the record. A writer
creates a proposal, syncs it, and links it to the number after the version on which its write is
based; link(2) fails if another writer came first. No process waits for another, so a writer that is
stopped (SIGSTOP) or killed at any point blocks no other.

Old versions are removed, so a writer that was stopped for a long time may link a number whose file
was already removed. Such a file is below the highest number, and readers ignore it. The writer
detects this case: versions are removed in ascending order, and no version string is used twice. If
the version on which the write is based still exists after the link, the next number was never
removed, so no other writer had linked it before. Otherwise the outcome is unknown.
"""

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cometmq.ha.durable import SharedFiles
from cometmq.ha.port import CONFLICT, Outcome, RecordUnreachable, applied, unknown
from cometmq.ha.record import (
    Record,
    RecordDamaged,
    Versioned,
    decode_record,
    encode_record,
    may_replace,
)

KEPT: Final = 32
"""Versions to keep. A writer that is stopped for as many writes cannot judge its own."""
READ_ATTEMPTS: Final = 20
"""Attempts of a read, each overtaken by `KEPT` writes."""


class Versions:
    """The versions of a record in one folder. All calls block."""

    def __init__(self, folder: Path, files: SharedFiles, new_nonce: Callable[[], str]) -> None:
        self.folder = folder
        self._files = files
        self._new_nonce = new_nonce
        self._synced = 0

    def current(self) -> Versioned:
        """Make the highest version durable and return it; raise RecordDamaged."""
        for _ in range(READ_ATTEMPTS):
            number = max(self._numbers(), default=0)
            if not number:
                raise RecordDamaged(
                    f"the record in {self.folder} cannot be read: it has no version"
                )
            data = self._files.read(self.folder / str(number))
            if data is None:  # removed meanwhile, so newer versions exist
                continue
            found = _decoded(data, number, self.folder / str(number))
            if number != self._synced:  # the writer may not have synced it yet
                self._files.sync(self.folder)
                self._synced = number
            return found
        raise RecordUnreachable(f"the record in {self.folder} changes faster than it can be read")

    def begin(self, record: Record) -> Versioned:
        """Write the first version into an empty folder that no other process knows about yet."""
        first = Versioned(record, f"1-{self._new_nonce()}")
        self._files.create(self.folder / "1", _encoded(first))
        self._files.sync(self.folder)
        return first

    def append(self, base: Versioned, record: Record) -> Outcome:
        """Write the version after `base` if `base` is current; raise OSError if that is unknown."""
        if not may_replace(self.current(), base, record):
            return CONFLICT
        number, nonce = _number(base.version) + 1, self._new_nonce()
        written = Versioned(record, f"{number}-{nonce}")
        proposal = self.folder / f".{number}-{nonce}"
        try:
            self._files.create(proposal, _encoded(written))
            self._files.link(proposal, self.folder / str(number))
        except (FileExistsError, FileNotFoundError):  # the next writer removed the proposal
            return CONFLICT
        finally:
            self._files.remove(proposal)
        before = self._files.read(self.folder / str(number - 1))
        if before is None or _first_words(before)[0] != base.version:
            return unknown(f"version {number} in {self.folder} was written too late to be judged")
        self._files.sync(self.folder)
        self._clean(number)
        return applied(record, written.version)

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._files.names(self.folder) if name.isdigit()]

    def _clean(self, current: int) -> None:
        """Remove old versions in ascending order, and proposals that can no longer be linked."""
        try:
            for number in sorted(self._numbers()):
                if number <= current - KEPT:
                    self._files.remove(self.folder / str(number))
            for name in self._files.names(self.folder):
                if name.startswith(".") and _number(name[1:]) <= current:
                    self._files.remove(self.folder / name)
        except OSError:
            pass  # the record is written; the next write removes the same files


def _number(version: str) -> int:
    """Return the number of a version; 0 if it has a different backend's format."""
    number = version.partition("-")[0]
    return int(number) if number.isdigit() else 0


def _encoded(versioned: Versioned) -> bytes:
    content = encode_record(versioned.record)
    return f"{versioned.version} {zlib.crc32(content):08x}\n".encode() + content


def _first_words(data: bytes) -> tuple[str, str]:
    version, _, checksum = data.partition(b"\n")[0].decode(errors="replace").partition(" ")
    return version, checksum


def _decoded(data: bytes, number: int, path: Path) -> Versioned:
    version, checksum = _first_words(data)
    content = data.partition(b"\n")[2]
    if _number(version) != number or checksum != f"{zlib.crc32(content):08x}":
        raise RecordDamaged(f"the record in {path} cannot be read: its checksum is wrong")
    return Versioned(decode_record(content, place=str(path)), version)
