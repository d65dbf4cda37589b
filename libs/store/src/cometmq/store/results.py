# SPDX-License-Identifier: Apache-2.0
"""Results of puts and reads: expected outcomes are values, not exceptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import msgspec

from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.types import Buffer

TagFilter: TypeAlias = Callable[[int], bool]
"""Returns whether a message with this tag code may match the reader's subscription."""


class PutStatus(IntEnum):
    """The outcome of a put, under RocketMQ's names."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    CREATE_MAPPED_FILE_FAILED = 5
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGE_CACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 10

    @property
    def is_stored(self) -> bool:
        """Whether the message is in the log, synced or not."""
        return self <= PutStatus.SLAVE_NOT_AVAILABLE


class PutResult(msgspec.Struct, gc=False):
    """The position of a stored message, or the reason why it was not stored.

    For a unit of messages (`Appender.put_batch`), it holds the position of the first message, the
    total size, and all ids separated by commas. For a run (`writing/runs.py`), it holds the values
    common to all its requests; the run's own answers contain their positions.
    """

    status: PutStatus
    physical_offset: int = -1
    size: int = 0
    queue_offset: int = -1
    store_timestamp: int = 0
    message_id: str = ""
    request_count: int = 1
    message_count: int = 1


PutDone: TypeAlias = Callable[[PutResult], None]
"""Called once for each put, in log order."""


class GetStatus(IntEnum):
    """The outcome of reading a queue, under RocketMQ's names."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


class GetResult(msgspec.Struct):
    """Records from a queue, in order, and the offset of the next read.

    If `is_cold`, the bytes are not in memory and nothing was read. `load()` reads them and may
    block, so call it on a worker thread. The result of `load()` is never cold.
    """

    status: GetStatus
    next_offset: int
    min_offset: int = 0
    max_offset: int = 0
    records: list[Buffer] = []
    count: int = 0
    bytes: int = 0
    suggest_slave: bool = False
    loader: Callable[[], GetResult] | None = None
    damaged: Sequence[int] = ()  # queue offsets left out because record or entry is damaged
    doubts: Sequence[int] = ()  # queue offsets left out because they seem to have expired
    awaits_repair: bool = False
    """Whether the reader has to read this offset again after its entry has been examined."""

    @property
    def is_cold(self) -> bool:
        """Whether `load()` must be called to get the records."""
        return self.loader is not None

    def load(self) -> GetResult:
        """Read the records from the disk; blocks."""
        return self if self.loader is None else self.loader()


class BoundaryType(IntEnum):
    """Selects the message that a search by time returns (5.x); see `Lookups.offset_by_time`."""

    LOWER = 0
    UPPER = 1


class QueryResult(msgspec.Struct):
    """Messages with a given key, oldest first."""

    records: list[MessageRecord]
    index_last_update_timestamp: int
    index_last_update_physical_offset: int


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
