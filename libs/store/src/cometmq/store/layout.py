# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH111, PTH119, PTH120
# Plain path texts: thousands of queues keep one each.
"""Where everything lies in a store's folder (docs/protocol/store.md#folder)."""

import os
from typing import Final

from cometmq.store.settings import StoreSettings

NAME_DIGITS: Final = 20


def file_name(offset: int) -> str:
    """Return the name of the file that begins at this offset."""
    return f"{offset:020d}"


def is_topic(topic: str) -> bool:
    """Whether a topic can be the name of a folder, as that of every stored message is."""
    return bool(topic) and "\0" not in topic and "/" not in topic and topic not in {".", ".."}


class Layout:
    """The paths of one store."""

    __slots__ = (
        "abort",
        "checkpoint",
        "commit_log",
        "config",
        "consume_queue",
        "index",
        "lock",
        "progress",
        "root",
    )

    def __init__(self, settings: StoreSettings) -> None:
        """Derive all paths from the settings."""
        root = os.path.expanduser(settings.store_path_root_dir)
        self.root = root
        self.commit_log = os.path.expanduser(settings.store_path_commit_log) or f"{root}/commitlog"
        self.consume_queue = f"{root}/consumequeue"
        self.index = f"{root}/index"
        self.config = f"{root}/config"
        self.checkpoint = f"{root}/checkpoint"
        self.progress = f"{root}/progress"
        self.abort = f"{root}/abort"
        self.lock = f"{root}/lock"

    def queue_folder(self, topic: str, queue_id: int) -> str:
        """Return the folder of one consume queue."""
        return f"{self.consume_queue}/{topic}/{queue_id}"

    def temporary(self, path: str) -> str:
        """Return where a file of the store is made before it is renamed in.

        On the same file system, and in no folder that RocketMQ loads completely.
        """
        folder = os.path.dirname(path)
        if folder == self.commit_log:
            return f"{os.path.dirname(folder)}/.{os.path.basename(path)}.new"
        return f"{self.root}/.new"
