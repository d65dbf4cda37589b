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

from cometmq.store.errors import DiskError
from cometmq.store.log.block_sums import BLOCK_BYTES, block_size
from cometmq.store.log.checksums import block_start, spans
from cometmq.store.log.damage import DamagedRange, overlaps, without
from cometmq.store.upkeep.scrub_state import ScrubState, save_state
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
        sealed_end = files.first if commit_log.verified is None else commit_log.verified.end
        end = min(end, sealed_end, commit_log.confirm_offset)
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

    def job(self, offer: Offer) -> BlockRepairJob:
        """Return the job that writes the bytes of an offer."""
        return BlockRepairJob(self, self._scrubber, self._parts, offer)


class BlockRepairJob:
    """Compares the bytes of an offer with the block's checksum, writes them, and syncs them."""

    name = "repair-block"

    def __init__(
        self, repairs: BlockRepairs, scrubber: Scrubber, parts: Parts, offer: Offer
    ) -> None:
        self._repairs = repairs
        self._scrubber = scrubber
        self._parts = parts
        self._offer = offer
        self._state: ScrubState = scrubber.state
        self._counted = scrubber.counted_in(offer.block)
        self._spans = spans(parts.commit_log.files, *offer.block)
        self._examiner = Examiner(parts.commit_log.files, list(parts.queues.queues.values()))
        self._generation = parts.checksums.generation
        self._block: DamagedRange | None = None
        self._left: Findings = []

    def run(self) -> None:
        """Write the bytes, and record that the block is intact; may block."""
        start = self._offer.block.start
        if len(self._spans) != 1 or not overlaps(self._state.damage, *_place(self._offer.block)):
            return  # the file has expired, or the block has been repaired
        length = self._parts.checksums.restore(self._spans[0], self._offer.data, self._generation)
        if not length:
            return
        self._block = block = DamagedRange(start, start + length)
        damage = without(self._state.damage, block)
        self._left = self._examiner.findings(without(self._counted, block), damage)
        state = msgspec.structs.replace(self._state, damage=damage)
        try:
            save_state(self._parts.disk, self._parts.layout, state)
        except DiskError as error:
            self._parts.log.warning("scrub.unsaved", error=str(error))

    def done(self, error: Exception | None) -> None:
        """Make the block readable again; after an error, it stays damaged."""
        is_stale = self._generation != self._parts.checksums.generation
        block = None if error is not None or is_stale else self._block
        self._scrubber.note_offered(block, self._counted, self._left)
        if block is not None:
            self._repairs.repaired_count += 1
            files = self._parts.commit_log.files
            self._parts.log.info(
                "log.repaired",
                path=files.file_at(block.start).path,
                physical_offset=block.start,
                size=block.end - block.start,
                source=self._offer.source,
            )
        self._offer.done(block is not None)


def _place(damage: DamagedRange) -> tuple[int, int]:
    return damage.start, damage.end - damage.start
