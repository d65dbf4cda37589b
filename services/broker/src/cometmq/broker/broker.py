# SPDX-License-Identifier: Apache-2.0
"""Broker: the references that handlers may use.

One event loop owns everything in here: no locks. `app.py` builds it; handlers receive it as
their first argument; the domain objects inside never see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.broker.consumers import Consumers
    from cometmq.broker.delay import DelayService
    from cometmq.broker.groups import Groups
    from cometmq.broker.history import History
    from cometmq.broker.hold import HoldTable
    from cometmq.broker.locks import QueueLocks
    from cometmq.broker.offsets import Offsets
    from cometmq.broker.persistence import ConfigSaver
    from cometmq.broker.producers import Producers
    from cometmq.broker.registration import Registration
    from cometmq.broker.settings import BrokerSettings
    from cometmq.broker.settings_file import SettingsFile
    from cometmq.broker.stats import BrokerStats
    from cometmq.broker.store_driver import StoreDriver
    from cometmq.broker.topics import Topics
    from cometmq.remoting.bodies.topic_config import DataVersion
    from cometmq.remoting.log import Log
    from cometmq.runtime.clock import Clock
    from cometmq.runtime.settings import Loaded
    from cometmq.store.message_store import MessageStore


@dataclass(slots=True)
class Broker:
    """What one broker consists of."""

    loaded: Loaded[BrokerSettings]  # with the source of each value, for codes 25 and 26
    settings: BrokerSettings  # loaded.value; both are replaced when settings change
    settings_version: DataVersion  # counts the changes by code 25
    clock: Clock
    log: Log
    store: MessageStore
    driver: StoreDriver
    saver: ConfigSaver
    topics: Topics
    groups: Groups
    offsets: Offsets
    delay: DelayService
    producers: Producers
    consumers: Consumers
    locks: QueueLocks
    hold: HoldTable
    registration: Registration
    stats: BrokerStats
    history: History
    address: str  # "ip:port" that clients and name servers know
    store_host: bytes  # the same packed: what goes into each record
    settings_file: SettingsFile | None = None  # None: changes by code 25 end with the process
    started_ms: int = 0
    is_stopping: bool = False
