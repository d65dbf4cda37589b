# SPDX-License-Identifier: Apache-2.0
"""The components of one store (log, queues, index and others), for modules that work on several of
them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from cometmq.remoting.log import Log
from cometmq.store.disk import Disk
from cometmq.store.index.index import Index
from cometmq.store.layout import Layout
from cometmq.store.log.block_sums import BlockSums
from cometmq.store.log.checksums import Checksums
from cometmq.store.log.commit_log import CommitLog
from cometmq.store.log.verified import VerifiedReads
from cometmq.store.queues.deletions import Deletions
from cometmq.store.queues.queue_table import QueueTable
from cometmq.store.settings import StoreSettings
from cometmq.store.writing.append import Appender
from cometmq.store.writing.runs import ReadRange
from cometmq.store.writing.write_state import WriteState


class NativeCode(NamedTuple):
    """Native functions; wherever one is None, Python code is used instead."""

    read_range: ReadRange | None = None
    """Reads records of the log, for their dispatch."""
    block_sums: BlockSums | None = None
    """Computes the checksums of the log without the interpreter lock."""


NO_NATIVE_CODE = NativeCode()


def no_pause() -> None:
    """Go on at once."""


@dataclass(slots=True)
class Parts:
    """The components of one store; only `settings` is replaced while it runs."""

    settings: StoreSettings
    disk: Disk
    layout: Layout
    commit_log: CommitLog
    checksums: Checksums
    queues: QueueTable
    deletions: Deletions
    index: Index
    appender: Appender
    write_state: WriteState
    clock_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    log: Log
    read_range: ReadRange | None
    pause: Callable[[], None] = no_pause
    """Called often by jobs that compute for long, to let the loop run: it waits up to 5 ms for the
    interpreter lock of a thread that does not pause.
    """


def build_parts(
    settings: StoreSettings,
    *,
    disk: Disk,
    clock_ms: Callable[[], int],
    monotonic_ms: Callable[[], int] | None = None,
    log: Log,
    native: NativeCode = NO_NATIVE_CODE,
    pause: Callable[[], None] = no_pause,
) -> Parts:
    """Create the components of a store without reading its files."""
    layout = Layout(settings)
    file_size = settings.mapped_file_size_commit_log
    checksums = Checksums(disk, layout, file_size, block_sums=native.block_sums)
    commit_log = CommitLog(disk, layout, file_size, VerifiedReads(checksums))
    queues = QueueTable(disk, layout, settings)
    index = Index(disk, layout, settings, clock_ms)
    appender = Appender(settings, commit_log, queues, clock_ms)
    return Parts(
        settings=settings,
        disk=disk,
        layout=layout,
        commit_log=commit_log,
        checksums=checksums,
        queues=queues,
        deletions=Deletions(disk, layout),
        index=index,
        appender=appender,
        write_state=WriteState(appender),
        clock_ms=clock_ms,
        monotonic_ms=clock_ms if monotonic_ms is None else monotonic_ms,
        log=log,
        read_range=native.read_range,
        pause=pause,
    )
