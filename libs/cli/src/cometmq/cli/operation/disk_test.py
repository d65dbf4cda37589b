# SPDX-License-Identifier: Apache-2.0
"""Measures a folder of this machine as a broker with SYNC_FLUSH uses it: appends and flushes."""

import os
import tempfile
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Final

import msgspec

from cometmq.cli.operation.latencies import Histogram
from cometmq.remoting.errors import SettingsError

BYTES_MAX: Final = 1 << 30
"""The maximum size of the file; after that, the blocks overwrite it from its beginning."""


class DiskOutcome(msgspec.Struct):
    """The flushes of one run."""

    bytes: int = 0
    seconds: float = 0.0
    latencies: Histogram = msgspec.field(default_factory=Histogram)


def measure(folder: Path, size: int, seconds: float) -> DiskOutcome:
    """Append and flush blocks of `size` bytes, one after another, to a temporary file without a
    name.

    Raise SettingsError if the folder cannot be written, or its disk is full.
    """
    outcome, block = DiskOutcome(), os.urandom(size)
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            descriptor, at, begin = file.fileno(), 0, monotonic()
            while monotonic() - begin < seconds:
                begin_ns = monotonic_ns()
                if os.pwrite(descriptor, block, at) != size:
                    raise SettingsError(f"{folder}: the disk is full")
                os.fdatasync(descriptor)
                outcome.latencies.add((monotonic_ns() - begin_ns) // 1000)
                outcome.bytes += size
                at = at + size if at + 2 * size <= BYTES_MAX else 0
            outcome.seconds = monotonic() - begin
    except OSError as error:
        raise SettingsError(f"cannot write to {folder}: {error.strerror}") from error
    return outcome
