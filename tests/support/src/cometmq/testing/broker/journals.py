# SPDX-License-Identifier: Apache-2.0
"""Journaled tables in memory, as in a process that can be killed at any moment."""

import copy
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Final

from cometmq.broker.tables.journal import Journal, Journaled
from cometmq.broker.tables.offsets import OffsetFile, Offsets
from cometmq.broker.tables.subscription_groups import Groups
from cometmq.broker.tables.topics import Topics
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.topic_config import SubscriptionGroupTable, TopicConfigTable
from cometmq.runtime.incremental import finish
from cometmq.store.errors import DiskError
from cometmq.store.journal import JournalContent, collect
from cometmq.store.json_config import JsonTable, OsFiles, content_digest
from cometmq.store.redo_log import RedoLog
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.store.memory_disk import MemoryDisk

FOLDER: Final = "/config/journal"
FILE_BYTES: Final = 16 << 10
SMALL_BYTES: Final = 4 << 10


class MemoryFiles(OsFiles):
    def __init__(self) -> None:
        self.contents: dict[Path, bytes] = {}

    def read(self, path: Path) -> bytes | None:
        return self.contents.get(path)

    def write(self, path: Path, data: bytes) -> None:
        self.contents[path] = data

    def replace(self, source: Path, target: Path) -> None:
        self.contents[target] = self.contents.pop(source)


class InlineWorker:
    """Runs each job when it is submitted; after a simulated kill, runs none."""

    def __init__(self, *, is_dead: bool = False) -> None:
        self.is_dead = is_dead

    def submit(self, job: Callable[[], object]) -> "Future[object]":
        future: Future[object] = Future()
        if not self.is_dead:
            try:
                future.set_result(job())
            except DiskError as error:
                future.set_exception(error)
        return future


class Node:
    """The tables and the journal of one run of a broker."""

    def __init__(
        self,
        disk: MemoryDisk,
        files: MemoryFiles,
        *,
        file_bytes: int = FILE_BYTES,
        worker: Any = None,
        keeps_position: bool = False,
        was_killed: bool = False,
        log_end: Callable[[], int | None] = lambda: None,
    ) -> None:
        def file(name: str, type_: type[Any]) -> JsonTable[Any]:
            path = f"/config/{name}"
            return JsonTable(path, decode=partial(decode_json, type_), encode=encode_json,
                             files=files)  # fmt: skip

        self.disk, self.files = disk, files
        self.log = RecordingLog()
        self.offsets = Offsets(file("consumerOffset.json", OffsetFile))
        self.topics = Topics(file("topics.json", TopicConfigTable), clock_ms=lambda: 1)
        groups = file("subscriptionGroup.json", SubscriptionGroupTable)
        self.groups = Groups(groups, clock_ms=lambda: 1)
        self.tables: tuple[Journaled, ...] = (self.offsets, self.topics, self.groups)
        jobs: Any = worker or InlineWorker()
        self.journal = Journal(
            disk, FOLDER, worker=jobs, log=self.log, file_bytes=file_bytes,
            keeps_position=keeps_position, was_killed=was_killed, log_end=log_end,
        )  # fmt: skip
        for table in self.tables:
            self.journal.attach(table)
        self.journal.begin()

    def state(self) -> dict[str, object]:
        return {
            "consumerOffset.json": copy.deepcopy(self.offsets.table),
            "topics.json": (dict(self.topics.table), self.topics.version),
            "subscriptionGroup.json": (dict(self.groups.table), self.groups.version),
        }

    def encode(self, table: Journaled) -> tuple[bytes, int]:
        number = self.journal.number
        content = table.encode_for_file()
        return content if isinstance(content, bytes) else finish(content), number

    def save(self, table: Journaled, *, steps: int = 3) -> None:
        """Perform the first `steps` of the three steps of a save; fewer than three are like a
        kill.
        """
        data, number = self.encode(table)
        name = table.file.path.name
        if steps > 0:
            self.journal.mark(name, content_digest(data), number)
        if steps > 1:
            table.file.write(data)
        if steps > 2:
            self.journal.saved(name)

    def killed(self, **options: Any) -> "Node":
        return Node(self.disk, self.files, **options)


def read_whole(disk: MemoryDisk) -> JournalContent:
    log = RedoLog(disk, FOLDER, file_bytes=FILE_BYTES)
    return collect(log, log.records())
