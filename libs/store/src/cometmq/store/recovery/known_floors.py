# SPDX-License-Identifier: Apache-2.0
"""Loads and finds the floors of queues that apply before recovery replays the end of the log."""

from cometmq.store.log.log_scanner import LogScanner, first_record
from cometmq.store.parts import Parts
from cometmq.store.queues.floors import TrimmedQueue
from cometmq.store.recovery.checkpoint import Progress
from cometmq.store.recovery.start import LastRun
from cometmq.store.writing.trim_mark import trimmed_by


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
