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
    """The number of expired files among those to delete; the others are deleted to make room."""


def decide(
    settings: StoreSettings, disk: DiskState, now_ms: int, *, is_asked_for: bool
) -> Decision:
    """Decide how many of the oldest files to delete, and whether to refuse sends.

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
    expired_count = _expired_count(settings, disk, now_ms) if is_forced or is_due else 0
    count = max(expired_count, _needed_count(settings, disk)) if is_forced else expired_count
    return Decision(count, used > settings.disk_space_warning_level_ratio, is_above, expired_count)


def _needed_count(settings: StoreSettings, disk: DiskState) -> int:
    """Count the oldest files that must be deleted to make room.

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
