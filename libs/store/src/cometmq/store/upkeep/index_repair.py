# SPDX-License-Identifier: Apache-2.0
"""Plans the steps that compare the index with the log, and reports what they have repaired.

The scrubber begins a walk with each round through the log. If a reader has found damage, the
file is compared at once.
"""

from collections.abc import Sequence
from copy import copy
from typing import Final

from cometmq.store.index.index_file import IndexFile
from cometmq.store.parts import Parts
from cometmq.store.upkeep.index_check import IndexFault, IndexWalk, Proofs
from cometmq.store.upkeep.sealer import Sealer

URGENT_COUNT: Final = 1_000
"""Number of entries that are compared per tick after a reader has found damage. It takes 6 ms
(bench/micro/bench_index_check.py).
"""


class IndexRepair:
    """The walk through the index of one store, for the thread that owns the store."""

    def __init__(self, parts: Parts, sealer: Sealer) -> None:
        self._parts = parts
        self._sealer = sealer
        self._walk = IndexWalk(parts.pause)
        self._suspect: IndexFile | None = None
        self._found_count = 0  # in the file that readers suspect
        self._unrepaired: set[str] = set()
        """Names of files that could not be repaired; readers do not have them compared again before
        the next walk.
        """
        self.compared_count = 0
        self.repaired_count = 0

    def urgent_step(self) -> "IndexStep | None":
        """Return the next step through the first file that readers have found damaged; None if
        there is no such file.
        """
        name = ""
        for file in self._parts.index.files:
            if file.is_suspect and file.name not in self._unrepaired:
                if file is not self._suspect:
                    self._suspect, self._found_count = file, 0
                    self._walk.begin(after=name)
                return self.step(self._sealer.offset, URGENT_COUNT)
            name = file.name
        return None

    @property
    def has_ended(self) -> bool:
        """Whether the walk has compared all files."""
        return self._walk.has_ended

    def begin(self) -> None:
        """Begin the walk with the first file."""
        self._walk.begin()
        self._unrepaired.clear()

    def step(self, end: int, count_max: int) -> "IndexStep":
        """Return the next step: compare up to `count_max` entries of records before `end`."""
        return IndexStep(self, self._walk, self._parts, end, count_max)

    def note(self, compared_count: int, faults: Sequence[IndexFault]) -> None:
        """Adopt the outcome of a step."""
        self.compared_count += compared_count
        suspect = self._suspect
        for file in dict.fromkeys(fault.file for fault in faults):
            if file in self._parts.index.files:  # it has not expired
                count = self._note(file, [fault for fault in faults if fault.file is file])
                self._found_count += count if file is suspect else 0
        if suspect is None or suspect.name > self._walk.passed_name:
            return
        self._suspect = None
        suspect.is_suspect = False
        if self._found_count:
            return
        self._unrepaired.add(suspect.name)
        if all(fault.error is None for fault in faults):
            self._parts.log.warning(
                "index.unrepaired",
                path=suspect.file.path,
                error="readers have found damage, but no record shows the right bytes",
            )

    def _note(self, file: IndexFile, faults: Sequence[IndexFault]) -> int:
        """Complete the repair of a file, and log it; return the number of faults."""
        log, path = self._parts.log, file.file.path
        entry_count = sum(fault.entry_count for fault in faults)
        slot_count = sum(fault.slot_count for fault in faults)
        has_header = False
        for fault in faults:
            has_header |= fault.header is not None
            if fault.header is not None:
                file.header = fault.header
            if fault.mending is not None:
                mended_count, is_mended = fault.mending.apply()
                slot_count, has_header = slot_count + mended_count, has_header or is_mended
            if fault.error is not None:
                log.warning("index.unrepaired", path=path, error=str(fault.error))
        count = entry_count + slot_count + has_header
        if count:
            self.repaired_count += count
            log.warning(
                "index.damaged",
                path=path,
                entries=entry_count,
                slots=slot_count,
                header=has_header,
            )
            log.info("index.repaired", path=path, count=count)
        return count


class IndexStep:
    """One step of the walk."""

    def __init__(
        self, repair: IndexRepair, walk: IndexWalk, parts: Parts, end: int, count_max: int
    ) -> None:
        self._repair = repair
        self._walk = walk
        self._proofs = Proofs(parts.checksums, parts.checksums.generation)
        # The loop may drop files while the step runs.
        self._files = copy(parts.commit_log.files)
        self._view = parts.index.view()
        self._end = end
        self._count_max = count_max
        self._count, self._faults = 0, list[IndexFault]()

    def run(self) -> None:
        """Compare entries; blocks."""
        self._count, self._faults = self._walk.step(
            self._view, self._files, self._end, self._proofs, self._count_max
        )

    def done(self) -> None:
        """Report the outcome to the store."""
        self._repair.note(self._count, self._faults)
