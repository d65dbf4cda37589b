# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: PTH111, PTH119, PTH120
# Paths are plain strings, because thousands of queues keep one each.
"""The paths inside a store's folder (docs/protocol/store.md#folder)."""

import os
from collections.abc import Callable
from typing import Final

from cometmq.remoting.message.record_layout import TOPIC_BYTES_MAX
from cometmq.store.settings import StoreSettings

TEMPORARY_SUFFIX: Final = ".new"


def file_name(offset: int) -> str:
    """Return the name of the file that begins at this offset."""
    return f"{offset:020d}"


INDEX_DIGITS: Final = 17
"""Length of an index file's name, yyyyMMddHHmmssSSS."""
FOREIGN: Final = (".", "lost+found")
"""How names begin that file systems, snapshots, editors and desktops leave at any place."""


def is_file_name(name: str, digits: int = 20) -> bool:
    """Return whether a name in a folder of numbered files is a store's; all others are ignored."""
    return len(name) == digits and name.isascii() and name.isdigit()


def is_topic(topic: str) -> bool:
    """Return whether the topic is a valid folder name, as the topic of a stored message must be."""
    return bool(topic) and "\0" not in topic and "/" not in topic and topic not in {".", ".."}


def is_storable(topic: str) -> bool:
    """Return whether records and queues can have this topic."""
    return is_topic(topic) and len(topic.encode("utf-8", "replace")) <= TOPIC_BYTES_MAX


class Layout:
    """Builds the paths of one store."""

    def __init__(self, settings: StoreSettings) -> None:
        root = os.path.expanduser(settings.store_path_root_dir)
        self.root = root
        self.commit_log = os.path.expanduser(settings.store_path_commit_log) or f"{root}/commitlog"
        folder, name = os.path.split(self.commit_log)
        self._log_temporary = f"{folder}/.{name}-"
        self.consume_queue = f"{root}/consumequeue"
        self.index = f"{root}/index"
        self.config = f"{root}/config"
        self.journal = f"{root}/config/journal"
        self.checkpoint = f"{root}/checkpoint"
        self.progress = f"{root}/progress"
        self.deletions = f"{root}/deletions"
        self.floors = f"{root}/floors"
        self.abort = f"{root}/abort"
        self.lock = f"{root}/lock"
        self.checksums = f"{root}/checksums"  # RocketMQ accepts no foreign file in `commitlog/`
        self.scrub = f"{self.checksums}/scrub.json"

    def queue_folder(self, topic: str, queue_id: int) -> str:
        """Return the folder of one consume queue."""
        return f"{self.consume_queue}/{topic}/{queue_id}"

    def checksum_file(self, start: int) -> str:
        """Return the path of the checksums of the log file that begins at `start`."""
        return f"{self.checksums}/{file_name(start)}"

    def temporary(self, path: str) -> str:
        """Return the temporary path under which a file is created before it is renamed.

        The path is on the same file system, but outside the folders in which RocketMQ loads every
        file. It is unique per target, because several threads create files at the same time.
        """
        if os.path.dirname(path) == self.commit_log:
            return f"{self._log_temporary}{os.path.basename(path)}{TEMPORARY_SUFFIX}"
        name = os.path.relpath(path, self.root).replace("/", "-")
        return f"{self.root}/.{name}{TEMPORARY_SUFFIX}"

    def left_behind(self, names: Callable[[str], list[str]]) -> list[str]:
        """Return the temporary files that a crash left; `names` returns a folder's file names."""
        found = [f"{self.root}/{name}" for name in names(self.root)]
        found = [path for path in found if os.path.basename(path).startswith(".")]
        folder = os.path.dirname(self.commit_log)
        others = [f"{folder}/{name}" for name in names(folder)] if folder != self.root else []
        found += [path for path in others if path.startswith(self._log_temporary)]
        return [path for path in found if path.endswith(TEMPORARY_SUFFIX)]
