# SPDX-License-Identifier: Apache-2.0
"""Pure functions that decide which files of the log to delete, and when.

Compatibility: RocketMQ takes a file's age from its modification time, which copies and restores
change. This store uses the store time of the first record of the next file, which is at least as
new as every record in the file itself.
"""

from datetime import UTC, datetime
from typing import Final, NamedTuple

from cometmq.store.settings import StoreSettings

FILES_PER_ROUND_MAX: Final = 10
_HOUR_MS: Final = 3_600_000
JUMP_MS: Final = 10 * 60_000  # smaller corrections change no age noticeably


class DiskState(NamedTuple):
    """The measured disk usage and file ages."""

    used_percent: int
    end_timestamps: list[int]  # per file, oldest first: an upper bound of its store times
    surplus_bytes: int | None = None
    """Bytes to free to get back to diskSpaceCleanForciblyRatio; None if the file system of the log
    is not above this ratio.
    """


class Decision(NamedTuple):
    """The number of files to delete, and whether to refuse sends."""

    delete_count: int
    is_full: bool
    is_above_clean_ratio: bool
    expired_count: int
    """The number of files to delete that have expired; the others are deleted to free space."""


class FileAges:
    """Computes the ages of files so that a jump of the wall clock neither expires them all nor
    keeps them for ever.

    After a jump forward, ages are computed as if the clock had not jumped, until `fileReservedTime`
    has passed since the jump: by then, all files from before the jump have expired by any clock. A
    file with a time in the future, written before the clock was set back, gets the age since it was
    first seen.
    """

    def __init__(self) -> None:
        self._offset_ms: int | None = None  # of the wall clock from the monotonic one
        self._lag_ms = 0
        self._jumped_ms = 0
        self._monotonic_ms = 0
        self._discovered_ms: dict[int, int] = {}

    def note(self, now_ms: int, monotonic_ms: int) -> None:
        """Record both clocks, to notice a jump of the wall clock."""
        offset_ms, before_ms = now_ms - monotonic_ms, self._offset_ms
        self._offset_ms, self._monotonic_ms = offset_ms, monotonic_ms
        if before_ms is not None and abs(offset_ms - before_ms) > JUMP_MS:
            self._lag_ms = max(0, self._lag_ms + offset_ms - before_ms)
            self._jumped_ms = monotonic_ms

    def believed_ms(self, now_ms: int, *, reserved_ms: int) -> int:
        """Return the time from which the ages of files are computed: the wall clock, less a jump
        forward.
        """
        if self._monotonic_ms - self._jumped_ms >= reserved_ms:
            self._lag_ms = 0
        return now_ms - self._lag_ms

    def known(self, end_timestamps: list[int], now_ms: int) -> list[int]:
        """Return the end times of files; a time in the future is replaced by the time when it was
        first seen.
        """
        self._discovered_ms = {
            timestamp: self._discovered_ms.get(timestamp, now_ms)
            for timestamp in end_timestamps
            if timestamp > now_ms or timestamp in self._discovered_ms
        }
        return [min(it, self._discovered_ms.get(it, it)) for it in end_timestamps]


def decide(
    settings: StoreSettings,
    disk: DiskState,
    now_ms: int,
    *,
    is_asked_for: bool,
    believed_ms: int | None = None,
) -> Decision:
    """Decide how many of the oldest files to delete, and whether to refuse sends.

    Ages count from `believed_ms`, by default from `now_ms`; see `FileAges`.

    | disk usage | deleted |
    |---|---|
    | above diskSpaceCleanForciblyRatio, if cleanFileForciblyEnable | as many files as necessary |
    | above diskMaxUsedSpaceRatio, or in the hour of deleteWhen, or on request | expired files |
    | otherwise | none |
    """
    used = disk.used_percent
    is_forced = (
        settings.clean_file_forcibly_enable and used > settings.disk_space_clean_forcibly_ratio
    )
    is_above = used > settings.disk_max_used_space_ratio
    is_due = is_asked_for or is_above or is_delete_hour(settings.delete_when, now_ms)
    since_ms = now_ms if believed_ms is None else believed_ms
    expired_count = _expired_count(settings, disk, since_ms) if is_forced or is_due else 0
    count = max(expired_count, _needed_count(settings, disk)) if is_forced else expired_count
    return Decision(count, used > settings.disk_space_warning_level_ratio, is_above, expired_count)


def _needed_count(settings: StoreSettings, disk: DiskState) -> int:
    """Count the oldest files that must be deleted to free enough space.

    RocketMQ deletes FILES_PER_ROUND_MAX files, however many are needed.
    """
    count = min(len(disk.end_timestamps), FILES_PER_ROUND_MAX)
    if disk.surplus_bytes is None:
        return count
    return min(count, -(-disk.surplus_bytes // settings.mapped_file_size_commit_log))


def _expired_count(settings: StoreSettings, disk: DiskState, now_ms: int) -> int:
    """Count the expired files at the start of the log; deleting them leaves no gap."""
    oldest_ms = now_ms - settings.file_reserved_time * _HOUR_MS
    count = 0
    for timestamp in disk.end_timestamps[:FILES_PER_ROUND_MAX]:
        if timestamp > oldest_ms:
            break
        count += 1
    return count


def is_delete_hour(delete_when: str, now_ms: int) -> bool:
    """Return whether the local hour is listed in a setting such as `04;16`."""
    hour = datetime.fromtimestamp(now_ms / 1000, tz=UTC).astimezone().hour
    return any(int(word) == hour for word in delete_when.split(";") if word.strip())
