# SPDX-License-Identifier: Apache-2.0
"""The start of a store: load its files, recover, and create the components that maintain it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from cometmq.store.folder import StoreFolder
from cometmq.store.index.index import Index
from cometmq.store.parts import Parts
from cometmq.store.publishing import Publisher
from cometmq.store.queues.unsaved_queues import UnsavedQueues
from cometmq.store.recovery.checkpoint import CheckpointFiles, read_checkpoint
from cometmq.store.recovery.log_end import LogEnd
from cometmq.store.recovery.recovery import Recovered, recover
from cometmq.store.recovery.start import LastRun
from cometmq.store.recovery.trust import load_checksums, load_floors
from cometmq.store.replica import Replica
from cometmq.store.upkeep.checkpointer import CatchUp, Checkpointer
from cometmq.store.upkeep.cleaner import Cleaner
from cometmq.store.upkeep.flush import Flusher
from cometmq.store.upkeep.housekeeping import Housekeeping, Indexing
from cometmq.store.upkeep.scrubber import Scrubber
from cometmq.store.upkeep.sealer import Sealer
from cometmq.store.writing.pending_puts import Condition, PendingPuts

IGNORED_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The components that a store has only after recovery, among them those that return jobs."""

    recovered: Recovered
    pending: PendingPuts
    flusher: Flusher
    sealer: Sealer
    checkpointer: Checkpointer
    catch_up: CatchUp
    housekeeping: Housekeeping
    scrubber: Scrubber
    replica: Replica
    publisher: Publisher
    cleaner: Cleaner
    index: Index
    indexing: Indexing


def start(
    parts: Parts,
    folder: StoreFolder,
    boot_id: str,
    *,
    has_copies: bool,
    on_damage: Callable[[], None],
) -> Upkeep:
    """Load and recover the files in a claimed folder. This blocks. Raise CorruptStore or DiskError.

    `on_damage` is called when readers must drop their cached data.
    """
    host_crashed = folder.has_rebooted(boot_id)
    was_clean = folder.prepare()
    checkpoints = CheckpointFiles(parts.disk, parts.layout)
    checkpoint, own = read_checkpoint(parts.disk, parts.layout)
    progress = own if own is not None and own.is_newest(checkpoint) else None
    files = parts.commit_log.files
    ignored = files.load()
    last_run = LastRun(checkpoint, progress, was_clean)
    marks_begin = load_floors(parts, last_run, own)
    ignored += parts.queues.load()
    ignored += parts.index.load()
    if ignored:
        parts.log.info("files.ignored", count=len(ignored), paths=ignored[:IGNORED_SHOWN])
    parts.deletions.load(last_run.own_offset)
    log_end = LogEnd(parts, last_run, has_copies=has_copies)
    log_end.check_files()  # before anything is changed
    trusted_end = load_checksums(parts, checkpoint, own)
    recovered, unsaved = recover(parts, last_run, log_end, marks_begin)
    parts.checksums.truncate(files, recovered.end)
    if not has_copies:
        parts.deletions.clip(recovered.end)
    folder.mark_open(boot_id)
    last_timestamp = max(recovered.last_timestamp, checkpoint.log_timestamp)
    running = _running(parts, checkpoints, recovered, unsaved, last_timestamp, on_damage)
    lost = running.scrubber.begin(trusted_end, recovered.damaged, host_crashed=host_crashed)
    if has_copies and (recovered.damaged or lost):
        running = _without_damage(parts, running)
    if has_copies or parts.queues.floors.beyond(recovered.end):
        running.replica.restore_topics(parts.clock_ms())
    return running


def _without_damage(parts: Parts, running: Upkeep) -> Upkeep:
    """Truncate the log at the first damaged record after the last checkpoint.

    Such records have no checksum, so a block of another copy could not be verified. Instead, the
    broker joins its group again as a new copy and gets them from the other copies, which have all
    acknowledged records. If the process dies before it has recorded this loss, the next start
    detects it: the saved state of the scrubber names records after the end of the log.
    """
    recovered = running.recovered
    if recovered.damaged:
        offset = recovered.damaged[0].start
        running.replica.truncate(offset, parts.clock_ms())
        parts.log.warning(
            "log.truncated", physical_offset=offset, discarded_from=recovered.damaged[0].end
        )
        recovered = recovered._replace(end=offset, damaged=())
    return replace(running, recovered=recovered._replace(has_cut_records=True))


def _running(
    parts: Parts,
    checkpoints: CheckpointFiles,
    recovered: Recovered,
    unsaved: UnsavedQueues,
    last_timestamp: int,
    on_damage: Callable[[], None],
) -> Upkeep:
    safe = recovered.start.offset
    pending = PendingPuts({Condition.FLUSHED: safe, Condition.REPLICATED: recovered.end})
    flusher = Flusher(parts, pending, flushed_offset=safe)
    sealer = Sealer(parts)
    sealer.begin(safe, recovered.end)
    checkpointer = Checkpointer(parts, files=checkpoints, flusher=flusher, sealer=sealer)
    checkpointer.begin(unsaved, start=safe, end=recovered.end, last_timestamp=last_timestamp)
    housekeeping = Housekeeping(parts, flusher=flusher, checkpointer=checkpointer)
    publisher = Publisher(parts, checkpointer, housekeeping)
    scrubber = Scrubber(parts, sealer, on_damage)
    replica = Replica(
        parts,
        flusher=flusher,
        checkpointer=checkpointer,
        housekeeping=housekeeping,
        publisher=publisher,
        sealer=sealer,
        scrubber=scrubber,
    )
    return Upkeep(
        recovered=recovered,
        pending=pending,
        flusher=flusher,
        sealer=sealer,
        checkpointer=checkpointer,
        catch_up=checkpointer.catch_up,
        housekeeping=housekeeping,
        scrubber=scrubber,
        replica=replica,
        publisher=publisher,
        cleaner=housekeeping.cleaner,
        index=parts.index,
        indexing=housekeeping.indexing,
    )
