# SPDX-License-Identifier: Apache-2.0
"""The store's settings under their RocketMQ names; the broker's settings extend this struct.

Compatibility: settings of features that do not exist here (transient pool, mapping warm-up, page
locking) are accepted without effect, so that RocketMQ's own files work.
"""

from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from cometmq.remoting.setting_facts import INEFFECTIVE, MUTABLE, PATH, Natural, Positive, form

CQ_ENTRY_BYTES: Final = 20
_FILE_BYTES_MAX: Final = 1 << 31
_HOUR: Final = r"([01]?\d|2[0-3]|99)"  # 99 is how RocketMQ's users write "never"
_DELAY: Final = r"\d{1,8}[smhd]"  # more digits could exceed the 64 bits of a time in ms

Milliseconds = Natural
Ratio = Annotated[int, Meta(ge=1, le=100)]

T = TypeVar("T")
NoPool = Annotated[T, INEFFECTIVE, "Accepted; there is no off-heap pool."]
DeletedLate = Annotated[
    T, INEFFECTIVE, "Accepted; a deleted file stays readable until its last reader closes it."
]
DeletedSingly = Annotated[T, INEFFECTIVE, "Accepted; a thread deletes files one at a time."]
AlwaysFlushed = Annotated[T, INEFFECTIVE, "Accepted; a checkpoint flushes every dirty queue."]
Unextended = Annotated[T, INEFFECTIVE, "Accepted; extended entries are not written."]


class FlushDiskType(StrEnum):
    """When a send is answered: after the write or after the sync."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(StrEnum):
    """The configured role of a broker in its group."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a store keeps its messages on disk."""

    store_path_root_dir: Annotated[
        str, PATH, Meta(min_length=1), "The store's folder; ~ is the home folder."
    ] = "~/store"
    store_path_commit_log: Annotated[
        str, PATH, "Folder of the commit log; by default `commitlog` in the store's folder."
    ] = ""
    mapped_file_size_commit_log: Annotated[
        int, Meta(ge=1024, le=_FILE_BYTES_MAX), "Size of one commit log file, in bytes."
    ] = 1 << 30
    mapped_file_size_consume_queue: Annotated[
        int,
        Meta(ge=CQ_ENTRY_BYTES, le=_FILE_BYTES_MAX),
        "Size of one consume queue file, in bytes, rounded up to whole entries.",
    ] = 6_000_000
    flush_disk_type: Annotated[
        FlushDiskType, "Whether a send waits until its bytes are on disk."
    ] = FlushDiskType.ASYNC_FLUSH
    broker_role: Annotated[
        BrokerRole,
        "Role of the broker: a master whose sends do not wait for a slave (ASYNC_MASTER), a "
        "master whose sends do (SYNC_MASTER), or a slave, which accepts no sends (SLAVE).",
    ] = BrokerRole.ASYNC_MASTER
    flush_interval_commit_log: Annotated[
        Milliseconds, MUTABLE, "Maximum time between two flushes, in ms."
    ] = 500
    flush_commit_log_timed: Annotated[bool, INEFFECTIVE, "Accepted; flushes are always timed."] = (
        True
    )
    flush_commit_log_least_pages: Annotated[
        Natural, MUTABLE, "Number of dirty 4 KiB pages that triggers a timed flush."
    ] = 4
    flush_commit_log_thorough_interval: Annotated[
        Milliseconds, MUTABLE, "Time after which any dirty page is flushed, in ms."
    ] = 10_000
    sync_flush_timeout: Annotated[
        Milliseconds,
        MUTABLE,
        "Time after which a waiting send is answered with FLUSH_DISK_TIMEOUT, in ms.",
    ] = 5_000
    flush_interval_consume_queue: Annotated[
        Milliseconds, MUTABLE, "Time between two checkpoints of the queues and the index, in ms."
    ] = 1_000
    flush_consume_queue_least_pages: AlwaysFlushed[Natural] = 2
    flush_consume_queue_thorough_interval: AlwaysFlushed[Milliseconds] = 60_000
    clean_resource_interval: Annotated[
        Positive, "Time between two checks of file ages and disk usage, in ms."
    ] = 10_000
    delete_commit_log_files_interval: DeletedSingly[Milliseconds] = 100
    delete_consume_queue_files_interval: DeletedSingly[Milliseconds] = 100
    destroy_maped_file_interval_forcibly: DeletedLate[Milliseconds] = 120_000
    redelete_hanged_file_interval: DeletedLate[Milliseconds] = 120_000
    delete_when: Annotated[
        str,
        Meta(pattern=rf"^\s*{_HOUR}(\s*;\s*{_HOUR})*\s*;?\s*$"),
        MUTABLE,
        form("hours from 00 to 23 separated by `;`, such as 04 or 04;16, or 99 for never"),
        "Local hours in which expired files are deleted, separated by `;`.",
    ] = "04"
    file_reserved_time: Annotated[
        Positive, MUTABLE, "Hours after which a commit log file expires."
    ] = 72
    disk_max_used_space_ratio: Annotated[
        Ratio, MUTABLE, "Above this disk usage (%), expired files are deleted at any hour."
    ] = 75
    disk_space_clean_forcibly_ratio: Annotated[
        Ratio, MUTABLE, "Above this disk usage (%), the oldest files are deleted at any age."
    ] = 85
    disk_space_warning_level_ratio: Annotated[
        Ratio, MUTABLE, "Above this disk usage (%), sends are refused."
    ] = 90
    clean_file_forcibly_enable: Annotated[
        bool, MUTABLE, "Whether files may be deleted before they expire."
    ] = True
    log_scrub_hours: Annotated[
        int,
        Meta(ge=0, le=8760),
        MUTABLE,
        "Hours within which the whole log is compared once with its checksums; 0 turns the "
        "comparison off.",
    ] = 168
    log_scrub_rate_max: Annotated[
        int,
        Meta(ge=64 << 10, le=64 << 20),
        MUTABLE,
        "Maximum number of bytes per second to read when comparing the log with its checksums.",
    ] = 32 << 20
    max_message_size: Annotated[
        int, Meta(ge=1, le=1 << 30), MUTABLE, "Maximum size of a message body, in bytes."
    ] = 4 << 20
    check_crc_on_recover: Annotated[
        bool, "Whether recovery checks message bodies against their CRC."
    ] = msgspec.field(default=True, name="checkCRCOnRecover")
    max_transfer_bytes_on_message_in_memory: Annotated[
        Positive, MUTABLE, "Maximum number of bytes per pull of messages in memory."
    ] = 262_144
    max_transfer_count_on_message_in_memory: Annotated[
        Positive, MUTABLE, "Maximum number of messages per pull if they are in memory."
    ] = 32
    max_transfer_bytes_on_message_in_disk: Annotated[
        Positive, MUTABLE, "Maximum number of bytes per pull of messages on disk."
    ] = 65_536
    max_transfer_count_on_message_in_disk: Annotated[
        Positive, MUTABLE, "Maximum number of messages per pull if they are on disk."
    ] = 8
    access_message_in_memory_max_ratio: Annotated[
        Ratio,
        MUTABLE,
        "Share of memory (%) assumed to hold the newest messages; older messages count as on disk.",
    ] = 40
    disk_fall_recorded: Annotated[bool, INEFFECTIVE, "Accepted; consumer lag is a metric."] = True
    message_index_enable: Annotated[
        bool, "Whether messages can be found by key through an index."
    ] = True
    message_index_safe: Annotated[
        bool, INEFFECTIVE, "Accepted; the index is always recovered completely."
    ] = False
    max_hash_slot_num: Annotated[Positive, "Number of hash slots in one index file."] = 5_000_000
    max_index_num: Annotated[int, Meta(ge=2), "Number of entries in one index file."] = 20_000_000
    max_msgs_num_batch: Annotated[
        Positive, MUTABLE, "Maximum number of messages that one query by key returns."
    ] = 64
    default_query_max_num: Annotated[
        Positive, MUTABLE, "Number of messages that a query without a limit returns."
    ] = 32
    message_delay_level: Annotated[
        str,
        Meta(pattern=rf"^\s*{_DELAY}(\s+{_DELAY})*\s*$"),
        form(
            "delays separated by spaces, each a number of at most 8 digits followed by"
            " s, m, h or d, such as 1s 5s 10m 2h"
        ),
        "Delay of each level, as a number followed by s, m, h or d.",
    ] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    flush_delay_offset_interval: Annotated[
        Milliseconds,
        MUTABLE,
        INEFFECTIVE,
        "Accepted; an offset is saved once the messages delivered before it are on disk.",
    ] = 10_000
    os_page_cache_busy_time_out_mills: Annotated[
        Milliseconds, INEFFECTIVE, "Accepted; a slow write does not cause others to be refused."
    ] = 1_000
    offset_check_in_slave: Annotated[
        bool,
        MUTABLE,
        "Whether a slave corrects offsets outside its queues, like a master. If false, the "
        "consumer tries again.",
    ] = False
    duplication_enable: Annotated[bool, INEFFECTIVE, "Accepted; queues always follow the log."] = (
        False
    )
    warm_maped_file_enable: Annotated[bool, INEFFECTIVE, "Accepted; files are not mapped."] = False
    transient_store_pool_enable: NoPool[bool] = False
    transient_store_pool_size: NoPool[Natural] = 5
    fast_fail_if_no_buffer_in_store_pool: NoPool[bool] = False
    use_reentrant_lock_when_put_message: Annotated[
        bool, INEFFECTIVE, "Accepted; one thread writes, without a lock."
    ] = True
    commit_interval_commit_log: NoPool[Milliseconds] = 200
    commit_commit_log_least_pages: NoPool[Natural] = 4
    commit_commit_log_thorough_interval: NoPool[Milliseconds] = 200
    enable_consume_queue_ext: Annotated[
        bool, INEFFECTIVE, "Accepted; extended entries are read but not written."
    ] = False
    mapped_file_size_consume_queue_ext: Unextended[Positive] = 48 << 20
    bit_map_length_consume_queue_ext: Unextended[Positive] = 64
    ha_listen_port: Annotated[
        int, Meta(ge=0, le=65535), "Port for slaves; by default, and if 0, listenPort + 1."
    ] = 10912
    ha_transfer_batch_size: Annotated[
        Positive,
        MUTABLE,
        "Number of bytes in one transfer to a slave: at least one record, at most 4 MiB.",
    ] = 32_768
    ha_send_heartbeat_interval: Annotated[
        Milliseconds,
        MUTABLE,
        "Time without traffic after which master and slave send a heartbeat, in ms.",
    ] = 5_000
    ha_housekeeping_interval: Annotated[
        Milliseconds,
        MUTABLE,
        "Time without traffic from the other side after which master and slave disconnect, in ms.",
    ] = 20_000
    ha_slave_fallbehind_max: Annotated[
        Natural,
        MUTABLE,
        "A SYNC_MASTER does not wait for slaves that lack more than this number of bytes, and "
        "answers SLAVE_NOT_AVAILABLE.",
    ] = 268_435_456
    ha_master_address: Annotated[
        str,
        Meta(pattern=r"^(\S+:[1-9]\d{0,4})?$"),
        MUTABLE,
        form("host:port, or empty"),
        "Address (host:port) on which this slave's master listens for slaves; by default the "
        "address that the name servers report.",
    ] = ""
    slave_timeout: Annotated[
        Milliseconds,
        MUTABLE,
        "Time after which a send that waits for a slave is answered with FLUSH_SLAVE_TIMEOUT, in "
        "ms. Producers give up first if their send timeout (RocketMQ's default: 3000) is not "
        "longer.",
    ] = 3_000
    open_queue_files_max: Annotated[
        int,
        Meta(ge=8),
        "Maximum number of open consume queue and index files; at most half of the open files "
        "that the system allows the broker. With more queues than this, checkpoints open and "
        "close files.",
    ] = 8_192

    def __post_init__(self) -> None:
        """Reject values that RocketMQ accepts but this store does not support."""
        if "," in self.store_path_commit_log:
            raise ValueError("storePathCommitLog: a log in several folders is not supported")
