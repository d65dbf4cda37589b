# SPDX-License-Identifier: Apache-2.0
"""A store's counters, and an immutable snapshot of them for metrics."""

from typing import NamedTuple


class Counters:
    """Counters that the hot path increments."""

    def __init__(self) -> None:
        self.put_count = 0
        self.put_bytes = 0
        self.failed_put_count = 0
        self.commit_count = 0
        self.get_count = 0
        self.get_message_count = 0
        self.cold_get_count = 0
        self.damaged_count = 0


class StoreStats(NamedTuple):
    """The state of a store at one point in time."""

    put_count: int
    put_bytes: int
    failed_put_count: int
    commit_count: int
    get_count: int
    get_message_count: int
    cold_get_count: int
    flush_count: int
    waiting_put_count: int
    min_offset: int
    max_offset: int
    flushed_offset: int
    checkpoint_offset: int
    queue_count: int
    index_file_count: int
    is_writable: bool
    refusals: tuple[str, ...]
    disk_used_percent: int
    commit_log_file_count: int
    scrubbed_bytes: int
    damaged_bytes: int
    damaged_message_count: int
    """Number of messages that readers do not get because they share bytes with damage."""
    left_out_count: int = 0
    repaired_entry_count: int = 0
    repaired_block_count: int = 0
    repaired_index_count: int = 0
    damaged_messages: str = ""
    """These messages, with their keys as far as they can be read."""
    spared_message_count: int = 0
    """Number of messages in damaged blocks that readers get."""
