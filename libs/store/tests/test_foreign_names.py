# SPDX-License-Identifier: Apache-2.0
"""What file systems, desktops and editors leave in a store's folders is ignored and kept."""

import errno
from pathlib import Path

import pytest

from cometmq.store.errors import DiskError
from cometmq.store.inspection.inspect import inspect_store
from cometmq.store.inspection.verify import verify_store
from cometmq.store.os_disk import OsDisk
from cometmq.testing.store.builders import Events, StoreRig, make_message, small_settings

FOLDERS = ("commitlog", "consumequeue", "consumequeue/T", "consumequeue/T/0", "index")
FOREIGN_FOLDERS = ("lost+found", ".snapshot", ".Trash-1000", "2026-12-01", "20261201")
FOREIGN_FILES = (".DS_Store", "00000000000000000000~", ".00000000000000000000.swp", "4913", "a.txt")


class Disk(OsDisk):
    """A disk whose `lost+found` only root may read."""

    def names(self, folder: str) -> list[str]:
        if folder.endswith("lost+found"):
            raise DiskError("list", folder, errno.EACCES)
        return super().names(folder)


def names_in(root: Path) -> set[str]:
    return {str(it.relative_to(root)) for it in root.rglob("*")}


@pytest.mark.parametrize("was_killed", [False, True])
def test_foreign_names_are_ignored_with_one_line_and_kept(tmp_path: Path, was_killed: bool) -> None:
    settings = small_settings(store_path_root_dir=str(tmp_path / "store"))
    rig = StoreRig(Disk(), settings)
    for number in range(100):
        rig.put(make_message("T", 0, b"%d" % number, keys=f"k{number}"))
    rig.store.close()
    (tmp_path / "store" / "abort").write_text("") if was_killed else None
    foreign = set()
    for folder in FOLDERS:
        for name in (*FOREIGN_FOLDERS, *FOREIGN_FILES):
            path = tmp_path / "store" / folder / name
            if (folder, name) == ("consumequeue/T", "20261201"):
                continue  # the queue of this number
            path.mkdir() if name in FOREIGN_FOLDERS else path.write_bytes(b"x")
            foreign.add(str(path.relative_to(tmp_path)))
    root = str(tmp_path / "store")
    found = inspect_store(root, disk=Disk(), settings=settings)
    assert (found.record_count, len(found.queues)) == (100, 1)
    assert verify_store(root, disk=Disk(), settings=settings).findings == []

    events = Events()
    rig = StoreRig(Disk(), settings, log=events)
    assert rig.store.reader.max_offset("T", 0) == 100
    rig.put(make_message("T", 0, b"more", keys="k100"))
    rig.store.close()

    (line,) = events.of("files.ignored")
    assert line["count"] > len(FOLDERS) * len(FOREIGN_FOLDERS)
    assert foreign <= names_in(tmp_path)
