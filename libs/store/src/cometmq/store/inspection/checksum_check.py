# SPDX-License-Identifier: Apache-2.0
"""Compare the log of an inspected store with its checksums."""

from collections.abc import Callable
from typing import Final, NamedTuple

from cometmq.store.errors import DiskError
from cometmq.store.inspection.inspect import StoreView
from cometmq.store.log.checksums import Checksums, spans
from cometmq.store.log.damage import DamagedRange, clipped, merged
from cometmq.store.recovery.checksum_trust import trusted_end
from cometmq.store.upkeep.scrub_state import load_state
from cometmq.store.upkeep.withheld import Examiner, Found, named

PART_BYTES: Final = 64 << 20


class DamagedPart(NamedTuple):
    """The path of a damaged log file, and a description of the damage in it."""

    path: str
    text: str


def damaged_parts(
    view: StoreView, end: int, on_part: Callable[[int], None] = lambda _end: None
) -> list[DamagedPart]:
    """Return the damage before `end` in the log: blocks that fail their checksums, and ranges that
    a broker has found damaged.

    `measure_queues` must have been called. `on_part` gets the end of each part that was compared.
    """
    files, layout = view.files, view.parts.layout
    checksums = Checksums(view.disk, layout, files.file_size)
    checksums.load()
    end = min(end, trusted_end(files, view.checkpoint, view.progress))
    found: list[DamagedRange] = []
    for span in spans(files, files.first, end):
        for begin in range(span.begin, span.end, PART_BYTES):
            part = span._replace(begin=begin, end=min(begin + PART_BYTES, span.end))
            try:
                found += checksums.check(part).damaged
            except DiskError as error:
                if not view.is_deletion(error):
                    raise
            on_part(span.start + part.end)
    known = clipped(load_state(view.disk, layout).damage, files.first, end)
    found += [left for it in known for left in checksums.still_damaged(files, it)]
    examiner = Examiner(files, list(view.parts.queues.queues.values()))
    return [_part(view, it) for it in examiner.findings(merged(found))]


def lost_head(view: StoreView) -> DamagedPart | None:
    """Return the loss of the log's oldest files: they are missing although no retention deleted
    them, and the broker has not reported it at a start. None if there is no such loss.
    """
    files = view.files
    if not files.files or view.progress is None or not view.progress.is_newest(view.checkpoint):
        return None
    lost = Checksums(view.disk, view.parts.layout, files.file_size).without_log_file(files.first)
    if not lost:
        return None
    last = f" to {files.path(lost[-1])}" if len(lost) > 1 else ""
    return DamagedPart(
        files.path(lost[0]),
        f"{len(lost)} of the oldest files, from this one{last}, are missing, and no retention"
        " deleted them; put them back, or restore them from a backup, before a broker starts",
    )


def _part(view: StoreView, found: Found) -> DamagedPart:
    damage = found.damage
    position = (damage.start - view.files.first) % view.files.file_size
    return DamagedPart(
        view.files.file_at(damage.start).path,
        f"{damage.end - damage.start} bytes from byte {position} (physical offset {damage.start})"
        f" differ from their checksum; messages: {named(found.messages, found.keys)};"
        f" intact messages beside them: {found.spared_count}",
    )
