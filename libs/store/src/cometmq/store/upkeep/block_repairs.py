# SPDX-License-Identifier: Apache-2.0
"""Replace damaged blocks of the log by the bytes that another copy of the log has.

The owner of the store requests the block that `next_block` returns from the other copy, and passes
its bytes to `offer`. They are written only if they fit the block's checksum, so a wrong answer
changes nothing. The range stays recorded as damaged until the bytes are synced. After a kill, the
next start finds the block damaged or intact.

Damage that recovery found without checksums is not repaired, because no checksum could verify the
bytes of another copy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from cometmq.store.log.block_sums import BLOCK_BYTES, block_size
from cometmq.store.log.checksums import block_start, spans
from cometmq.store.log.damage import DamagedRange, overlaps, without
from cometmq.store.upkeep.jobs import Job, with_result
from cometmq.store.upkeep.withheld import Examiner, Findings

if TYPE_CHECKING:
    from cometmq.store.parts import Parts
    from cometmq.store.upkeep.scrubber import Scrubber

Done: TypeAlias = Callable[[bool], None]
"""Receives whether the block is intact now."""


class Offer(NamedTuple):
    """Bytes of another copy of the log, and the copy they came from."""

    block: DamagedRange
    data: bytes
    source: str
    done: Done


class BlockRepairs:
    """The repairs of one store; only the thread that owns the store uses it."""

    def __init__(self, parts: Parts, scrubber: Scrubber) -> None:
        self._parts = parts
        self._scrubber = scrubber
        self.repaired_count = 0

    @property
    def found_count(self) -> int:
        """The number of damaged ranges found so far; a change means new damage."""
        return self._scrubber.found_count

    def next_block(self, after: int, end: int) -> DamagedRange | None:
        """Return the first damaged block at or after `after`; None if there is none.

        The block ends at `end` at the latest, and where the checksums or the bytes that readers may
        see end.
        """
        commit_log, state = self._parts.commit_log, self._scrubber.state
        files = commit_log.files
        end = min(end, commit_log.verified.end, commit_log.confirm_offset)
        after = max(after, files.first)
        index = max(0, bisect_right(state.damage, (after, -1)) - 1)
        for start, stop in state.damage[index:]:
            begin = max(start, after)
            while begin < min(stop, end):
                begin = block_start(files, begin)
                number = (begin - files.first) % files.file_size // BLOCK_BYTES
                size = block_size(files.file_size, number)
                if begin >= after and not overlaps(state.records, begin, size):
                    return DamagedRange(begin, min(begin + size, end))
                begin += size
            if begin >= end:
                return None
        return None

    def offer(self, offer: Offer) -> bool:
        """Accept bytes for a block, which a job replaces later; return False if another offer is
        waiting.
        """
        if self._scrubber.offer is not None:
            return False
        self._scrubber.offer = offer
        return True

    def job(self, offer: Offer) -> Job:
        """Return the job that compares the bytes of an offer with the block's checksum, writes
        them, and syncs them.
        """
        parts, scrubber, block = self._parts, self._scrubber, offer.block
        state, counted = scrubber.state, scrubber.counted_in(block)
        files, generation = parts.commit_log.files, parts.checksums.generation
        log_spans = spans(files, *block)
        examiner = Examiner(files, list(parts.queues.queues.values()))

        def write() -> tuple[DamagedRange | None, Findings]:
            """Return the block that is intact now, and the damage that is left around it."""
            if len(log_spans) != 1 or not overlaps(state.damage, *_place(block)):
                return None, []  # the file has expired, or the block has been repaired
            length = parts.checksums.restore(log_spans[0], offer.data, generation)
            if not length:
                return None, []
            repaired = DamagedRange(block.start, block.start + length)
            damage = without(state.damage, repaired)
            left = examiner.findings(without(counted, repaired), damage)
            scrubber.save(msgspec.structs.replace(state, damage=damage))
            return repaired, left

        def take(
            result: tuple[DamagedRange | None, Findings] | None, _error: Exception | None
        ) -> None:
            """Make the block readable again; after an error, it stays damaged."""
            repaired, left = result or (None, [])
            if generation != parts.checksums.generation:
                repaired = None
            scrubber.note_offered(repaired, counted, left)
            if repaired is not None:
                self.repaired_count += 1
                parts.log.info(
                    "log.repaired",
                    path=files.file_at(repaired.start).path,
                    physical_offset=repaired.start,
                    size=repaired.end - repaired.start,
                    source=offer.source,
                )
            offer.done(repaired is not None)

        return with_result("repair-block", write, take)


def _place(damage: DamagedRange) -> tuple[int, int]:
    return damage.start, damage.end - damage.start
