# SPDX-License-Identifier: Apache-2.0
"""Commit log, consume queues and index, byte-compatible with RocketMQ 4.9."""

from cometmq.store.errors import CorruptStore, DiskError, LockHeld, StoreError
from cometmq.store.message_store import MessageStore
from cometmq.store.os_disk import OsDisk
from cometmq.store.results import (
    BoundaryType,
    GetResult,
    GetStatus,
    PutResult,
    PutStatus,
    QueryResult,
    StoreStats,
    TagFilter,
)
from cometmq.store.settings import BrokerRole, FlushDiskType, StoreSettings

__all__ = [
    "BoundaryType",
    "BrokerRole",
    "CorruptStore",
    "DiskError",
    "FlushDiskType",
    "GetResult",
    "GetStatus",
    "LockHeld",
    "MessageStore",
    "OsDisk",
    "PutResult",
    "PutStatus",
    "QueryResult",
    "StoreError",
    "StoreSettings",
    "StoreStats",
    "TagFilter",
]
