# SPDX-License-Identifier: Apache-2.0
"""What is saved of a history: not the epochs of deleted bytes, and nothing on a full disk."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from cometmq.broker.copies.joining import open_state
from cometmq.broker.copies.streams.replica import EpochLog
from cometmq.broker.settings import BrokerSettings
from cometmq.ha.durable import OsFiles
from cometmq.ha.epochs import Entry, EpochFile, History, HistoryUnsaved
from cometmq.runtime.settings import load
from cometmq.runtime.worker import Worker
from cometmq.store.log.commit_log import CommitLog
from cometmq.testing.store.builders import StoreRig
from cometmq.testing.store.memory_disk import MemoryDisk

BEFORE = (Entry(1, 0),)
AFTER = (*BEFORE, Entry(2, 100))


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, HistoryUnsaved), (errno.EDQUOT, HistoryUnsaved), (errno.EIO, OSError)],
)
async def test_a_full_disk_is_told_from_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[OSError]
) -> None:
    file, worker = EpochFile(tmp_path, OsFiles()), Worker("test")
    commit_log = StoreRig(MemoryDisk()).store.commit_log
    epochs = EpochLog(file, BEFORE, commit_log=commit_log, worker=worker)

    def fail(_: History) -> None:
        raise OSError(number, os.strerror(number))

    try:
        with monkeypatch.context() as full:
            full.setattr(file, "save", fail)
            with pytest.raises(OSError, match=os.strerror(number)) as caught:
                await epochs.save(AFTER)
        assert type(caught.value) is kind
        assert (epochs.history, caught.value.errno) == (BEFORE, number)
        await epochs.save(AFTER)
        assert epochs.history == file.load() == AFTER
    finally:
        worker.close()


OLD: Final = (Entry(1, 0), Entry(2, 100), Entry(3, 200))
KEPT: Final = (Entry(3, 200),)


async def test_epochs_whose_bytes_are_deleted_are_neither_saved_nor_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, worker = EpochFile(tmp_path, OsFiles()), Worker("test")
    commit_log = StoreRig(MemoryDisk()).store.commit_log
    epochs = EpochLog(file, OLD, commit_log=commit_log, worker=worker)
    monkeypatch.setattr(CommitLog, "min_offset", 250)
    try:
        assert epochs.extent().history == KEPT
        await epochs.save((*OLD, Entry(4, 300)))
        assert epochs.history == file.load() == (*KEPT, Entry(4, 300))
    finally:
        worker.close()


def test_a_start_removes_the_epochs_whose_bytes_were_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = EpochFile(tmp_path, OsFiles())
    file.save(OLD)
    store = StoreRig(MemoryDisk()).store
    monkeypatch.setattr(CommitLog, "min_offset", 250)
    monkeypatch.setattr(CommitLog, "end", 300)
    given = {"storePathRootDir": str(tmp_path), "brokerName": "b"}
    settings = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given).value
    journal: Any = SimpleNamespace(replay=SimpleNamespace(damage=""))
    _, history = open_state(settings, store, journal)
    assert history == file.load() == KEPT
