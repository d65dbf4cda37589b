# SPDX-License-Identifier: Apache-2.0
"""A member that gives up its store moves its own files aside, and nothing else."""

from pathlib import Path

from cometmq.broker.copies.discard import move_aside
from cometmq.broker.settings import BrokerSettings


def test_what_the_file_system_keeps_at_the_root_stays(tmp_path: Path) -> None:
    for name in ("commitlog", "config", "lost+found", ".snapshot"):
        (tmp_path / name).mkdir()

    aside = move_aside(BrokerSettings(store_path_root_dir=str(tmp_path)), 1)

    assert sorted(it.name for it in aside.iterdir()) == ["commitlog", "config"]
    assert sorted(it.name for it in tmp_path.iterdir()) == sorted(
        [".snapshot", "config", "lost+found", aside.name]
    )
