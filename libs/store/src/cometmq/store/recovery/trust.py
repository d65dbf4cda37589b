# SPDX-License-Identifier: Apache-2.0
"""Decide which checksums and floors to trust at startup, and report log files that are missing."""

from cometmq.store.log.file_sequence import FileSequence
from cometmq.store.log.log_scanner import LogScanner, file_of_time, first_record
from cometmq.store.parts import Parts
from cometmq.store.queues.floors import TrimmedQueue
from cometmq.store.recovery.checkpoint import Checkpoint, Progress
from cometmq.store.recovery.start import LastRun
from cometmq.store.writing.marks import trimmed_by


def load_checksums(parts: Parts, checkpoint: Checkpoint, own: Progress | None) -> int:
    """Load the checksums, and delete any that may not belong to the log's current bytes.

    Return the offset before which checksums, and damage found with them, are trusted. `own` is this
    program's last progress, even if another program has used the store since.
    """
    files, checksums = parts.commit_log.files, parts.checksums
    end = trusted_end(files, checkpoint, own)
    if files.files and own is not None and own.is_newest(checkpoint):
        _report_lost_head(parts)
    count = checksums.keep(files, end)
    checksums.load()
    if count:
        parts.log.info("checksums.forgotten", file_count=count)
    return end


def _report_lost_head(parts: Parts) -> None:
    """Report the oldest files of the log if they are missing although no retention deleted them.

    The cleaner deletes checksums, durably, before it deletes their log file.
    """
    files = parts.commit_log.files
    lost = parts.checksums.without_log_file(files.first)
    if lost:
        parts.log.error(
            "log.files_lost",
            count=len(lost),
            first=files.path(lost[0]),
            last=files.path(lost[-1]),
            advice="stop the broker and put the files back, or restore them from a backup; without"
            " them, consumers continue at the oldest message that is left",
        )


def trusted_end(files: FileSequence, checkpoint: Checkpoint, progress: Progress | None) -> int:
    """Return the start of the first log file that another program may have written.

    A RocketMQ broker ignores the checksums. It may have truncated the log and written other records
    where the checksums describe the old ones. These records are newer than this program's last
    record, so the other program wrote every file that begins with a newer record, and perhaps a
    part of the file before it.

    | progress | checkpoint | trusted |
    |---|---|---|
    | none | - | nothing |
    | yes | not newer | everything |
    | yes | newer | the files before the newest one that begins with a record of this program |
    """
    if progress is None:
        return files.first
    if progress.is_newest(checkpoint):
        return files.end
    return file_of_time(files, progress.checkpoint.log_timestamp)


def load_floors(parts: Parts, last_run: LastRun, own: Progress | None) -> int:
    """Read the saved floors; return the offset from which on the log may have marks of further
    floors.

    `own` is this program's last progress. If another program has used the store since, it may have
    replaced the end of the log, so the log must still have each mark.
    """
    files = parts.commit_log.files

    def has_mark(entry: TrimmedQueue) -> bool:
        place = entry.floor.place
        if place < files.first:
            return False
        if last_run.own_offset is not None:
            return True
        scan = first_record(files, place) if place < files.end else None
        return scan is not None and trimmed_by(scan) == entry

    if not parts.queues.floors.load(parts.disk, parts.layout, has_mark):
        parts.log.warning("floors.damaged", path=parts.layout.floors)
        return files.first
    return files.end if own is None else max(files.first, own.offset)


def find_floors(parts: Parts, begin: int, end: int) -> None:
    """Trim the queues whose marks lie in a part of the log that recovery does not read."""
    if begin < end:
        for scan in LogScanner(parts.commit_log.files, begin, check_crc=False, end=end):
            trimmed = trimmed_by(scan)
            if trimmed is not None:
                parts.queues.trim(*trimmed)
