# SPDX-License-Identifier: Apache-2.0
"""Compare the log with its checksums: all of it over days, its last files after a host crash.

A round reads the log from its first byte up to the offset that checksums had reached when the round
began. The rate is the size of the log divided by `logScrubHours`, within bounds, and the position
survives a restart. Missing checksums are computed. With each round, two walks compare the entries
of queues and index with the same part of the log (`walks.py`).

Readers get no record that shares a byte with a damaged page. The affected messages are identified
from the queue entries, because the damaged bytes of the log cannot be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cometmq.store.errors import DiskError
from cometmq.store.log.block_sums import BLOCK_BYTES
from cometmq.store.log.checksums import CHUNK_BYTES, Span, block_start, spans
from cometmq.store.log.damage import DamagedRange, clipped, covers, merged, overlaps, without
from cometmq.store.parts import Parts
from cometmq.store.upkeep.block_repairs import BlockRepairs, Offer
from cometmq.store.upkeep.jobs import Job, Step, with_result
from cometmq.store.upkeep.sealer import Sealer
from cometmq.store.upkeep.walks import Walks
from cometmq.store.upkeep.withheld import (
    Examiner,
    Findings,
    Found,
    Losses,
    ScrubState,
    described,
    load_state,
    message_count,
    save_state,
)
from cometmq.store.writing.pending_puts import has_passed

RATE_MIN: Final = 64 << 10
"""Minimum rate in bytes per second, so that a round over a small log does not take a week."""

STEP_BYTES_MAX: Final = 8 * CHUNK_BYTES
SAVE_INTERVAL_MS: Final = 60_000
FILES_AT_START: Final = 2
"""Number of newest files that a startup reads completely after a crash of the host; such a crash
damages only recently written bytes. Two files of 1 GiB take about 4 s at 500 MB/s.
"""

_HOUR_MS: Final = 3_600_000


def _bounds(ranges: tuple[DamagedRange, ...]) -> tuple[int, int]:
    return (ranges[0].start, ranges[-1].end) if ranges else (0, 0)


class Scrubber:
    """Plans the comparisons of a store's log with its checksums, and keeps track of damage."""

    def __init__(self, parts: Parts, sealer: Sealer, on_damage: Callable[[], None]) -> None:
        """`on_damage` is called when readers must drop their cached data."""
        self._parts = parts
        self._sealer = sealer
        self._on_damage = on_damage
        self._state = ScrubState()
        self.losses = Losses()
        self._is_running = False
        self._last_ms: int | None = None
        self._saved_ms = 0
        self.scrubbed_bytes = 0
        self.found_count = 0
        self.offer: Offer | None = None
        self.repairs = BlockRepairs(parts, self)
        self.walks = Walks(parts, sealer)

    @property
    def state(self) -> ScrubState:
        """The current round and the known damage."""
        return self._state

    @property
    def damaged_bytes(self) -> int:
        """The number of bytes of the log that are known to be damaged."""
        return sum(damage.end - damage.start for damage in self._state.damage)

    # Start and end

    def begin(
        self, trusted_end: int, records: tuple[DamagedRange, ...] = (), *, host_crashed: bool
    ) -> bool:
        """Recheck known damage and, after a host crash, the last files; blocks.

        `records` are those that recovery found to be damaged without checksums. Return whether an
        earlier start found such records after the current end of the log.
        """
        files, end = self._parts.commit_log.files, self._parts.commit_log.end
        self._state = state = load_state(self._parts.disk, self._parts.layout)
        known = clipped(merged(state.damage), files.first, min(end, trusted_end))
        records = clipped(merged([*state.records, *records]), files.first, end)
        checksums = self._parts.checksums
        damage = list(records)
        for part in known:
            size = part.end - part.start
            is_record = overlaps(records, part.start, size)
            left = [part] if is_record else checksums.still_damaged(files, part)
            damage += left
            if not left:
                self._parts.log.info("log.damage_gone", physical_offset=part.start, size=size)
        if host_crashed and files.files and end > files.first:
            whole_count = -(-(end - files.first) // files.file_size) - FILES_AT_START
            begin = max(files.first, files.first + whole_count * files.file_size)
            for span in spans(files, begin, end):
                damage += checksums.check(span).damaged
            self._parts.log.info("log.verified", physical_offset=begin, size=end - begin)
        self._state = msgspec.structs.replace(state, damage=(), records=records)
        queues = list(self._parts.queues.queues.values())
        examiner = Examiner(files, queues, is_starting=True)
        self._take(examiner.findings(merged(clipped(damage, 0, end))))
        if state.offset < state.round_end:
            self.walks.begin(state.offset, state.round_end)
        has_lost = any(record.start >= end for record in state.records)
        is_changed = (self._state.damage, self._state.records) != (state.damage, state.records)
        if is_changed and not has_lost:  # the next save comes after the caller has noted the loss
            self.save(self._state)
        return has_lost

    def finish(self) -> None:
        """Save the round's position; blocks."""
        self._drop_offer()
        self.save(self._state)

    def note_truncated(self, offset: int) -> None:
        """Forget damage beyond the new end of a truncated log."""
        self._drop_offer()
        self._adopt(clipped(self._state.damage, 0, offset))

    # Rounds

    def job(self, now_ms: int) -> Job | None:
        """Return what is due: a comparison, a repair, or the report of damage that readers found.

        Only one runs at a time.
        """
        if self._is_running:
            return None
        job = self._urgent_job() or self._scrub_job(now_ms)
        self._is_running = job is not None
        return job

    def _urgent_job(self) -> Job | None:
        """Return what must not wait for a round: something that readers have found, or an offer."""
        suspects = self._parts.commit_log.verified.suspects
        if suspects:
            return self._report_job(suspects)
        if self.offer is not None:
            offer, self.offer = self.offer, None
            return self.repairs.job(offer)
        step = self.walks.index.urgent_step()
        if step is None:
            return None
        return self._entry_job(step)

    def _scrub_job(self, now_ms: int) -> Job | None:
        """Return the part of the log that is due, with steps of the walks if these are due, too."""
        if not self._parts.settings.log_scrub_hours:
            return None
        files = self._parts.commit_log.files
        if self._state.damage and self._state.damage[0].start < files.first:
            self._adopt(clipped(self._state.damage, files.first, files.end))  # files expired
        part = self._due_part(now_ms)
        step = self.walks.step(now_ms)
        if part is None:
            return None if step is None else self._entry_job(step)
        self._last_ms = now_ms
        must_save = has_passed(SAVE_INTERVAL_MS, since_ms=self._saved_ms, now_ms=now_ms)
        if must_save:
            self._saved_ms = now_ms
        return self._part_job(part, must_save=must_save, walks=step)

    def _due_part(self, now_ms: int) -> DamagedRange | None:
        """Return the part of the log that is due; None if there is none."""
        settings, first = self._parts.settings, self._parts.commit_log.files.first
        limit = self._limit()
        offset = self._position(limit, now_ms, settings.log_scrub_hours * _HOUR_MS)
        if offset is None:
            return None
        due_bytes = CHUNK_BYTES
        if self._last_ms is not None and now_ms >= self._last_ms:
            rate = max((limit - first) // (settings.log_scrub_hours * 3600), RATE_MIN)
            rate = min(rate, settings.log_scrub_rate_max)
            due_bytes = (now_ms - self._last_ms) * rate // 1000
        if due_bytes < CHUNK_BYTES:
            return None
        stop = offset + min(due_bytes, STEP_BYTES_MAX)
        return DamagedRange(offset, min(stop, self._state.round_end, limit))

    def _limit(self) -> int:
        """Return the end of the last block whose checksum is final."""
        files = self._parts.commit_log.files
        return block_start(files, max(files.first, self._sealer.offset))

    def _position(self, limit: int, now_ms: int, round_ms: int) -> int | None:
        """Return the position where the round continues, or None until the next round is due."""
        state, first = self._state, self._parts.commit_log.min_offset
        offset = max(state.offset, first)
        if offset < min(state.round_end, limit):
            return offset
        if limit <= first or 0 <= now_ms - state.round_began_ms < round_ms:
            return None
        self._state = msgspec.structs.replace(
            state, offset=first, round_end=limit, round_began_ms=now_ms
        )
        self.walks.begin(first, self._sealer.offset)
        return first

    def _entry_job(self, step: Job) -> Job:
        """Return the job that compares or rebuilds entries."""

        def done(error: Exception | None) -> None:
            self._is_running = False
            step.done(error)

        return Step("compare-entries", step.run, done)

    def _part_job(self, part: DamagedRange, *, must_save: bool, walks: Job | None) -> Job:
        """Return the job that compares one part of the log with its checksums, computes missing
        ones, and compares entries.
        """
        parts, state, examiner = self._parts, self._state, self._examiner()
        generation, log_spans = parts.checksums.generation, spans(parts.commit_log.files, *part)

        def run() -> Findings | DiskError:
            try:
                damaged = self._compare(log_spans, state.damage, generation)
                if generation != parts.checksums.generation:
                    return []
                found = examiner.findings(damaged, state.damage) if damaged else []
                if found or must_save:
                    damage = merged([*state.damage, *damaged])
                    new = msgspec.structs.replace(state, offset=part.end, damage=damage)
                    save_state(parts.disk, parts.layout, new)
                return found
            except DiskError as error:  # the file may have expired, which is no failure
                return error
            finally:
                if walks is not None:
                    walks.run()

        def take(found: Findings | DiskError | None, error: Exception | None) -> None:
            self._is_running = False
            is_current = generation == parts.checksums.generation
            if is_current and isinstance(found, list):
                self._note_scrubbed(*part, found)
            elif is_current and part.start >= parts.commit_log.min_offset:
                text = str(error or found)
                parts.log.warning("scrub.failed", physical_offset=part.start, error=text)
            if walks is not None:
                walks.done(error)

        return with_result("scrub", run, take)

    def _compare(
        self, log_spans: Sequence[Span], known: Sequence[DamagedRange], generation: int
    ) -> tuple[DamagedRange, ...]:
        """Compare spans of the log with their checksums; return new damage. Blocks."""
        checksums, damaged = self._parts.checksums, list[DamagedRange]()
        for span in log_spans:
            check = checksums.check(span)
            damaged += [it for it in check.damaged if not overlaps(known, it.start, 1)]
            # Bytes known to be damaged must not get a new checksum after theirs is lost.
            fresh = {
                number: entry
                for number, entry in check.unknown.items()
                if not overlaps(known, span.start + number * BLOCK_BYTES, BLOCK_BYTES)
            }
            checksums.learn(span.start, fresh, generation)
            checksums.refine(span, generation)
        return merged(damaged)

    def _report_job(self, suspects: tuple[DamagedRange, ...]) -> Job:
        """Return the job that finds the messages in damage that readers have found."""
        parts, state, examiner = self._parts, self._state, self._examiner()
        files, generation = parts.commit_log.files, parts.checksums.generation
        suspects = clipped(suspects, files.first, parts.commit_log.end)

        def is_intact(suspect: DamagedRange) -> bool:
            """Return whether the bytes fit their checksums now: a reader may have read them before
            they were repaired.
            """
            try:
                return not parts.checksums.still_damaged(files, suspect)
            except DiskError:
                return False

        def find() -> tuple[Findings, tuple[DamagedRange, ...]]:
            intact = tuple(it for it in suspects if is_intact(it))
            damaged = [it for it in suspects if it not in intact]
            found = examiner.findings(damaged, state.damage) if damaged else []
            if damaged:
                damage = merged([*state.damage, *damaged])
                self.save(msgspec.structs.replace(state, damage=damage))
            return found, intact

        def take(
            result: tuple[Findings, tuple[DamagedRange, ...]] | None, _error: Exception | None
        ) -> None:
            self._is_running = False
            if result is not None and generation == parts.checksums.generation:
                found, intact = result
                # These blocks were repaired since.
                parts.commit_log.verified.settle(intact)
                self._take(found)

        return with_result("report", find, take)

    def _examiner(self) -> Examiner:
        return Examiner(self._parts.commit_log.files, list(self._parts.queues.queues.values()))

    def _note_scrubbed(self, begin: int, end: int, found: Findings) -> None:
        """Record the findings of the job that compared this range, and move the position on."""
        self.scrubbed_bytes += end - begin
        self._state = msgspec.structs.replace(self._state, offset=end)
        if found:
            self._take(found)

    def counted_in(self, block: DamagedRange) -> list[DamagedRange]:
        """Return the ranges whose messages are counted and that share bytes with a block."""
        ranges = self.losses.ranges
        return [it for it in ranges if it.start < block.end and block.start < it.end]

    def note_offered(
        self, repaired: DamagedRange | None, counted: list[DamagedRange], left: Findings
    ) -> None:
        """Record a repair, if the block is intact now; `left` is what remains of the ranges in
        `counted`.
        """
        self._is_running = False
        if repaired is None:
            return
        self.losses.drop(counted)
        for it in left:
            self.losses.add(it)
        self._parts.commit_log.verified.settle((repaired,))
        self._adopt(without(self._state.damage, repaired))

    def _drop_offer(self) -> None:
        offer, self.offer = self.offer, None
        if offer is not None:
            offer.done(False)

    # Damage

    def _take(self, found: Findings) -> None:
        """Report damage, and withhold the damaged records from readers.

        A thread that began to read before a report may find the same damage again.
        """
        for it in found:
            if covers(self._state.damage, it.damage):
                continue
            self.found_count += 1
            self._tell(it)
            self.losses.add(it)
        self._adopt(merged([*self._state.damage, *self.losses.ranges]))

    def _tell(self, found: Found) -> None:
        files, damage = self._parts.commit_log.files, found.damage
        self._parts.log.error(
            "log.damaged",
            path=files.file_at(damage.start).path,
            position=(damage.start - files.first) % files.file_size,
            physical_offset=damage.start,
            size=damage.end - damage.start,
            message_count=message_count(found.messages),
            messages=described(found.messages),
            keys=", ".join(found.keys),
            spared_count=found.spared_count,
            action="cometmq store verify",
        )

    def _adopt(self, damage: tuple[DamagedRange, ...]) -> None:
        records = clipped(self._state.records, *_bounds(damage))
        self._state = msgspec.structs.replace(self._state, damage=damage, records=records)
        self.losses.drop([it for it in self.losses.ranges if not overlaps(damage, it.start, 1)])
        commit_log = self._parts.commit_log
        commit_log.set_damage(damage)
        commit_log.verified.note_known(damage)
        self._on_damage()

    def save(self, state: ScrubState) -> None:
        """Save a state; blocks. A failure is only logged: the damage is found again."""
        try:
            save_state(self._parts.disk, self._parts.layout, state)
        except DiskError as error:
            self._parts.log.warning("scrub.unsaved", error=str(error))
