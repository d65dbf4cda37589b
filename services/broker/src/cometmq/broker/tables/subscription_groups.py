# SPDX-License-Identifier: Apache-2.0
"""Subscription groups: their configuration, its version and its file.

Compatibility: subscriptionGroup.json has RocketMQ's format. A group created by its first heartbeat
may broadcast. A group created by mqadmin without `-d` may not, because mqadmin then sends false.
consumeFromMinEnable is stored but, as in RocketMQ, never used.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from cometmq.broker.names import group_fault
from cometmq.broker.tables.versioned_table import VersionedTable
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.kept import decode_keeping, set_members
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig, SubscriptionGroupTable
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.names import BOOT_GROUPS, is_system_group
from cometmq.store.json_config import JsonTable

GroupTable: TypeAlias = SubscriptionGroupTable

FORBIDDEN_TABLE: Final = "forbiddenTable"
FORBIDDEN_READ: Final = 1 << 2
"""RocketMQ's PermName.INDEX_PERM_READ; it never sets the bits of other rights."""


class Groups(VersionedTable[GroupTable, SubscriptionGroupConfig]):
    def __init__(
        self,
        file: JsonTable[GroupTable] | None = None,
        *,
        clock_ms: Callable[[], int],
        changed: Callable[[], None] = lambda: None,
        log: Log = NO_LOG,
    ) -> None:
        """Load the file; `changed` is called after each change and schedules a save."""
        super().__init__(
            file,
            lambda loaded: loaded.subscription_group_table,
            SubscriptionGroupConfig,
            clock_ms=clock_ms,
            changed=changed,
            log=log,
        )
        for name in BOOT_GROUPS:
            self.table.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def find(
        self, name: str, *, auto_create: bool, admit: Callable[[int], None] = lambda _count: None
    ) -> SubscriptionGroupConfig | None:
        """Return a group; if it is unknown, create it if that is allowed and its name is legal.

        `admit` gets the number of groups before one is added; it raises an error if there is no
        room.
        """
        config = self.table.get(name)
        if config is not None or not (auto_create or is_system_group(name)):
            return config
        if group_fault(name) is not None:
            return None
        if not is_system_group(name):
            admit(len(self.table))
        config = SubscriptionGroupConfig(group_name=name)
        self.put(config)
        return config

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Add or replace a group; keep what only RocketMQ 5 knows, unless `config` sets it."""
        old = self.table.get(config.group_name)
        if old is not None:
            config = msgspec.structs.replace(old, **set_members(config))
        self.table[config.group_name] = config
        self._note(config.group_name)
        self._log.info("group.updated" if old else "group.created", group=config.group_name)
        self._bump()

    def remove(self, name: str) -> bool:
        """Delete a group; return whether it existed."""
        if self.table.pop(name, None) is None:
            return False
        self._note(name)
        self._log.info("group.removed", group=name)
        self._bump()
        return True

    def disable(self, name: str) -> bool:
        """Disable a group until an administrator enables it; return whether it was enabled."""
        config = self.table.get(name)
        if config is None or not config.consume_enable:
            return False
        self.put(msgspec.structs.replace(config, consume_enable=False))
        return True

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Return whether RocketMQ 5's forbiddenTable keeps a group from reading a topic."""
        table = self.kept.get(FORBIDDEN_TABLE)
        topics = table.get(group) if isinstance(table, dict) else None
        bits = topics.get(topic) if isinstance(topics, dict) else None
        return isinstance(bits, int) and bool(bits & FORBIDDEN_READ)

    def without_entries(self) -> GroupTable:
        return SubscriptionGroupTable(data_version=self.version)


def group_file(path: str | Path) -> JsonTable[GroupTable]:
    return JsonTable(
        path,
        decode=partial(decode_keeping, SubscriptionGroupTable, SubscriptionGroupConfig),
        encode=encode_json,
    )
