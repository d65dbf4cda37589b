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
from cometmq.store.upkeep.jobs import Step, with_result

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
        self._parts.commit_log.verified.extend(end)

    def note_truncated(self, offset: int) -> None:
        """Adopt the end of a truncated log."""
        self.offset = min(self.offset, offset)
        self._parts.commit_log.verified.note_truncated(offset)

    def plan(self, stop: int) -> Step:
        """Return the step that covers the log up to `stop`; it never fails."""
        parts, generation = self._parts, self._parts.checksums.generation
        log_spans = spans(parts.commit_log.files, self.offset, stop)

        def compute() -> DiskError | None:
            try:
                parts.checksums.extend(log_spans, generation)
            except DiskError as error:
                return error
            return None

        def take(failure: DiskError | None, _error: Exception | None) -> None:
            """Adopt the result once the checkpoint has been written.

            If files were truncated or deleted during the step, the next checkpoint covers the part
            again.
            """
            if generation != parts.checksums.generation:
                return
            if failure is not None:
                parts.log.warning(
                    "checksums.failed", physical_offset=self.offset, error=str(failure)
                )
            self.offset = stop
            self.note_sealed(stop)

        return with_result("seal", compute, take)
