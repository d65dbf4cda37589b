# SPDX-License-Identifier: Apache-2.0
"""A history that cannot be saved does not become the current one."""

import errno
import os
from pathlib import Path

import pytest

from cometmq.broker.copies.streams.epoch_log import EpochLog
from cometmq.ha.durable import OsFiles
from cometmq.ha.epochs import Entry, EpochFile, History, HistoryUnsaved
from cometmq.runtime.worker import Worker
from cometmq.store.testing.builders import StoreRig
from cometmq.store.testing.memory_disk import MemoryDisk

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
