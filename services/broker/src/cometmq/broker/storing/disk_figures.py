# SPDX-License-Identifier: Apache-2.0
"""Figures that the broker must read from the disk, and a copy of them for metrics."""

import shutil
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.store_driver import StoreDriver
from cometmq.remoting.message.record import MessageRecord
from cometmq.store.disk import DiskUsage
from cometmq.store.message_store import MessageStore


class DiskFigures(NamedTuple):
    """The figures that must be read from the disk."""

    commit_log: Path
    total_bytes: int
    free_bytes: int
    used_percent: int  # of the space available to the broker: blocks reserved for root do not count
    earliest_ms: int  # store time of the oldest message; -1 without one


def read_disk(settings: BrokerSettings, oldest: MessageRecord | None) -> DiskFigures:
    """Read the disk figures; may block, so call it on a worker thread."""
    root = Path(settings.store_path_root_dir).expanduser()
    named = settings.store_path_commit_log
    commit_log = Path(named).expanduser() if named else root / "commitlog"
    usage = shutil.disk_usage(commit_log if commit_log.exists() else root)
    earliest_ms = -1 if oldest is None else oldest.store_timestamp
    percent = DiskUsage(usage.used, usage.free).percent
    return DiskFigures(commit_log, usage.total, usage.free, percent, earliest_ms)


class DiskWatch:
    """The newest disk figures, read on a thread; None before the first reading."""

    def __init__(self) -> None:
        self.figures: DiskFigures | None = None
        self._is_reading = False

    def step(self, settings: BrokerSettings, store: MessageStore, driver: StoreDriver) -> None:
        """Read the figures again, unless the previous reading is still waiting for the disk."""
        if self._is_reading:
            return
        self._is_reading = True

        def found(oldest: MessageRecord | None) -> None:
            driver.reads.run(partial(read_disk, settings, oldest), done, failed)

        def done(figures: DiskFigures) -> None:
            self._is_reading = False
            self.figures = figures

        def failed(_: Exception) -> None:
            self._is_reading = False  # the store reports errors of its disk

        driver.reads.look_up(store.reader.stored_record(store.stats().min_offset), found, failed)
