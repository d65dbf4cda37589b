# SPDX-License-Identifier: Apache-2.0
"""Compute the checksums of the log's new blocks, as a step of each checkpoint.

Every byte before the position that a checkpoint has reached therefore has a checksum, and recovery
reads the bytes after it. If a step fails, its blocks remain unknown until the scrubber computes
them, and the checkpoint is still written.
"""

from typing import Final

from cometmq.store.errors import DiskError
from cometmq.store.log.checksums import spans
from cometmq.store.parts import Parts

LAG_BYTES_MAX: Final = 64 << 20
"""After an unclean stop, the first checkpoint computes checksums for at most this many bytes."""


class Sealer:
    """Tracks the offset up to which the log has checksums."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.offset = 0
        """Checkpoints no longer compute checksums before this offset."""

    def begin(self, start: int, end: int) -> None:
        """Adopt the result of a recovery that read the log from `start` to `end`.

        An earlier run may have left checksums up to the end.
        """
        self.offset = max(min(start, end), end - LAG_BYTES_MAX)
        self.note_sealed(end)

    def note_sealed(self, end: int) -> None:
        """Compare reads up to this offset with the checksums from now on."""
        verified = self._parts.commit_log.verified
        if verified is not None:
            verified.extend(end)

    def note_truncated(self, offset: int) -> None:
        """Adopt the end of a truncated log."""
        self.offset = min(self.offset, offset)
        verified = self._parts.commit_log.verified
        if verified is not None:
            verified.note_truncated(offset)

    def plan(self, stop: int) -> "SealStep":
        """Return the step that covers the log up to `stop`."""
        return SealStep(self, self._parts, stop)


class SealStep:
    """Computes the checksums of one part of the log."""

    def __init__(self, sealer: Sealer, parts: Parts, stop: int) -> None:
        self._sealer = sealer
        self._parts = parts
        self._stop = stop
        self._generation = parts.checksums.generation
        self._spans = spans(parts.commit_log.files, sealer.offset, stop)
        self._error: DiskError | None = None

    def run(self) -> None:
        """Compute and save the checksums of synced bytes; blocks, and never fails."""
        try:
            self._parts.checksums.extend(self._spans, self._generation)
        except DiskError as error:
            self._error = error

    def done(self) -> None:
        """Adopt the result once the checkpoint has been written.

        If files were truncated or deleted during the step, the next checkpoint covers the part
        again.
        """
        if self._generation != self._parts.checksums.generation:
            return
        if self._error is not None:
            self._parts.log.warning(
                "checksums.failed", physical_offset=self._sealer.offset, error=str(self._error)
            )
        self._sealer.offset = self._stop
        self._sealer.note_sealed(self._stop)
