# SPDX-License-Identifier: Apache-2.0
"""Recovery: bring log, queues and index into agreement when a store opens.

The log is the source of truth. Queues and index are cut back to what the last checkpoint guarantees
and rebuilt from there, so recovery time is bounded by the amount of data since that checkpoint.

Two decisions are tables whose rows each have a test (docs/protocol/store.md#recovery):
`choose_start` selects the first record that may be incomplete, `judge_stop` decides what to do at
the first offset without a valid record.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from cometmq.remoting.message.record import Scan
from cometmq.store.errors import CorruptStore, DiskError
from cometmq.store.log.damage import DamagedRange
from cometmq.store.log.log_scanner import LogScanner, find_record, first_record, follow_headers
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.recovery.checkpoint import Checkpoint, Progress
from cometmq.store.recovery.tail_check import TailCheck
from cometmq.store.writing.dispatcher import Dispatcher

PUBLISH_COUNT: Final = 20_000  # records between two updates of the index


class StartReason(StrEnum):
    """Why recovery starts at its offset."""

    EMPTY_LOG = "empty-log"
    PROGRESS = "progress"
    QUEUES_LOST = "queues-lost"
    INDEX_LOST = "index-lost"
    QUEUE_END = "queue-end"
    CHECKPOINT = "checkpoint"
    DAMAGED_BEFORE_PROGRESS = "damaged-before-progress"


class Start(NamedTuple):
    """The first record that may be incomplete, and the reason."""

    offset: int
    reason: StartReason


class LastRun(NamedTuple):
    """The state in which the last program left the store."""

    checkpoint: Checkpoint
    progress: Progress | None
    was_clean: bool

    @property
    def own_offset(self) -> int | None:
        """The offset up to which this program has saved the queues; None if another program has
        used the store since.
        """
        if self.progress is not None:
            return self.progress.offset
        return None if self.checkpoint.log_timestamp else 0


class StopVerdict(StrEnum):
    """The decision at the first offset in the log without a valid record."""

    END = "end"  # nothing follows: the log ends here
    MISSING = "missing"  # nothing follows, but more was synced: messages are missing
    TRUNCATE = "truncate"  # the rest was never synced: the log ends here
    REFUSE = "refuse"  # the rest was synced: an operator must examine the damage


class Recovered(NamedTuple):
    """The result of recovery."""

    start: Start
    end: int
    record_count: int
    last_timestamp: int
    was_clean: bool
    has_cut_records: bool = False
    """Whole records are missing from the end; an incomplete last record does not count."""

    damaged: tuple[DamagedRange, ...] = ()
    """Records behind the last checkpoint that readers must not get."""


def judge_stop(
    *, stop: int, safe_offset: int, safe_timestamp: int, follows: Scan | None
) -> StopVerdict:
    """Decide whether the records that follow may be dropped.

    | a whole record follows | it was certainly on the disk | verdict |
    |---|---|---|
    | no | no | END |
    | no | yes | MISSING |
    | yes | no: it is past the safe offset, and was not stored before the safe time | TRUNCATE |
    | yes | yes | REFUSE |
    """
    if follows is None:
        return StopVerdict.MISSING if stop < safe_offset else StopVerdict.END
    if stop < safe_offset or follows.store_timestamp < safe_timestamp:
        return StopVerdict.REFUSE
    return StopVerdict.TRUNCATE


class Recovery:
    """One recovery; `run` performs it."""

    def __init__(self, parts: Parts, last_run: LastRun, *, has_copies: bool) -> None:
        """`has_copies` means that other brokers have the messages that this log may lack."""
        self._settings = parts.settings
        self._layout = parts.layout
        self._commit_log = parts.commit_log
        self._files = parts.commit_log.files
        self._queues = parts.queues
        self._index = parts.index
        self._log = parts.log
        self._disk = parts.disk
        self._deleted = parts.deletions.ends()
        self._checkpoint, self._progress, self._was_clean = last_run
        self._has_copies = has_copies
        self._read_range = parts.read_range
        self._dispatcher = Dispatcher(
            parts.queues,
            is_indexing=parts.settings.message_index_enable,
            deleted=self._deleted,
            on_deletion=self._drop_topic,
            read_range=parts.read_range,
        )
        self._dispatcher.store_timestamp = self._checkpoint.log_timestamp
        self._published_count = 0
        self._has_cut_records = False
        self._is_from_head = False
        self._last: Scan | None = None  # read, but not dispatched yet
        self._check: TailCheck | None = None
        self._odd_end = 0  # of the last range that native code could not dispatch

    def run(self) -> Recovered:
        """Recover all parts; raise CorruptStore if starting would lose messages."""
        start = self.choose_start()
        self._log.info(
            "recovery.started", physical_offset=start.offset, reason=start.reason.value,
            was_clean=self._was_clean,
        )  # fmt: skip
        if start.reason is StartReason.DAMAGED_BEFORE_PROGRESS:
            self._refuse_damage(start.offset)
        self._drop_deleted()
        self._cut_derived(start)
        if self._is_unsealed(start) and self._settings.check_crc_on_recover:
            self._check = TailCheck(
                self._queues,
                self._dispatcher,
                start.offset,
                begins_at_zero=not self._files.first,
                deleted=self._deleted,
            )
        end = self._scan(start.offset)
        self._end_log(end)
        self._fill_gaps()
        dispatcher = self._dispatcher
        return Recovered(
            start, end, dispatcher.record_count, dispatcher.store_timestamp, self._was_clean,
            self._has_cut_records, () if self._check is None else self._check.damaged,
        )  # fmt: skip

    def _is_unsealed(self, start: Start) -> bool:
        """Return whether the scan reads only records that no checkpoint covers, and the queues are
        complete before them.
        """
        is_first_life = not start.offset and not self._checkpoint.log_timestamp
        return start.reason is StartReason.PROGRESS or (
            start.reason is StartReason.CHECKPOINT and is_first_life
        )

    def choose_start(self) -> Start:
        """Choose the first record that may be incomplete.

        | log | progress | headers before it | queues, index | last stop | start at |
        |---|---|---|---|---|---|
        | empty | - | - | - | - | 0: all derived data is dropped |
        | yes | yes | whole | complete | - | the progress |
        | yes | yes | whole | entries or files missing | - | the log's first record |
        | yes | yes | damaged | - | crash | the verify offset: the scan finds the damage |
        | yes | none | - | - | clean | the end of the newest record in a queue |
        | yes | none | - | - | crash | the newest file that the checkpoint covers |
        """
        files = self._files
        if not files.files:
            return Start(0, StartReason.EMPTY_LOG)
        progress = self._progress
        if progress is not None and files.first <= progress.offset <= files.end:
            verify = max(progress.verify_offset, files.first)
            # Only after a crash: a clean stop has synced everything before the progress.
            if (
                not self._was_clean
                and follow_headers(files, verify, progress.offset) != progress.offset
            ):
                return Start(verify, StartReason.DAMAGED_BEFORE_PROGRESS)
            if not self._has_all_entries(progress):
                return Start(files.first, StartReason.QUEUES_LOST)
            if not self._has_index(progress):
                return Start(files.first, StartReason.INDEX_LOST)
            return Start(progress.offset, StartReason.PROGRESS)
        if self._was_clean:
            return Start(self._queue_end(), StartReason.QUEUE_END)
        return Start(self._checkpointed_file(), StartReason.CHECKPOINT)

    def _has_all_entries(self, progress: Progress) -> bool:
        for queue in self._queues.queues.values():
            if self._was_clean:
                queue.measure(self._files.first, progress.offset)
            else:
                queue.recover(self._files.first, progress.offset)
        count = sum(queue.max_offset for queue in self._queues.queues.values())
        return count == progress.entry_count

    def _has_index(self, progress: Progress) -> bool:
        """Return whether the newest index file still exists; older ones may have expired."""
        if not progress.index_name or not self._settings.message_index_enable:
            return True
        return any(file.name == progress.index_name for file in self._index.files)

    def _queue_end(self) -> int:
        """Return the end of the newest record that any queue refers to, if the record is valid."""
        end = self._files.first
        for queue in self._queues.queues.values():
            queue.measure(self._files.first, self._files.end)
            entry = queue.last_entry()
            if entry is not None and entry.physical_offset + entry.size > end:
                scan = first_record(self._files, entry.physical_offset)
                # An entry alone proves nothing: the log must hold a record of that size at that
                # offset.
                if scan is not None and scan.size == entry.size:
                    end = entry.physical_offset + entry.size
        return end

    def _checkpointed_file(self) -> int:
        """Return the newest file whose first record was on the disk before the crash."""
        files = self._files
        # The first file needs no check: recovery starts there if no later file qualifies.
        for start in range(files.end - files.file_size, files.first, -files.file_size):
            scan = first_record(files, start)
            if scan is not None and 0 < scan.store_timestamp <= self._checkpoint.min_timestamp:
                return start
        return files.first

    def _refuse_damage(self, start: int) -> None:
        """Refuse damage before anything is truncated: manual repairs need the queue entries."""
        scanner = LogScanner(self._files, start, check_crc=self._settings.check_crc_on_recover)
        for _ in scanner:
            pass
        self._judge(scanner.offset)

    def check_files(self) -> None:
        """Before anything is changed, check that the last files of the log exist; raise
        CorruptStore if they do not.
        """
        end = self._files.end if self._files.files else 0
        if self._progress is not None and end < self._progress.offset:
            self._note_missing(end, self._progress.offset)

    def _note_missing(self, end: int, synced_end: int) -> None:
        """Report synced messages that are missing from the end of the log; raise CorruptStore if
        no other broker has them.
        """
        if not self._has_copies:
            layout = self._layout
            raise CorruptStore(
                f"{layout.commit_log}: the log ends at {end}, but messages up to {synced_end} were"
                " synced: put the missing files back (is the volume mounted?), or, to start without"
                f" these messages, remove {layout.progress}"
            )
        if not self._has_cut_records:
            self._has_cut_records = True
            self._log.error("log.shortened", end=end, synced_end=synced_end)

    def _drop_deleted(self) -> None:
        """Drop the queues of deleted topics; their records before the deletion are ignored."""
        for topic, log_end in self._deleted.items():
            self._drop_topic(topic, log_end)

    def _drop_topic(self, topic: str, _log_end: int) -> None:
        for path in self._queues.remove_topic(topic):
            self._disk.remove_tree(path)

    def _cut_derived(self, start: Start) -> None:
        """Drop all entries of records at or after the start; the scan creates them again."""
        if start.reason is not StartReason.PROGRESS:  # for PROGRESS, counting the entries did this
            for queue in self._queues.queues.values():
                queue.recover(self._files.first, start.offset)
        progress = self._progress
        if start.reason is StartReason.PROGRESS and progress is not None:
            name, count = progress.index_name, progress.index_count
        else:
            name, count = "", 0
        self._index.recover(
            name=name,
            written_count=count,
            offset_end=start.offset,
            was_clean=self._was_clean,
        )

    def _scan(self, start: int) -> int:
        """Dispatch every record from the start onwards; return the end of the log.

        Each record is dispatched once the next one proves it complete. The last one is checked for
        torn properties first, because a record's CRC does not cover its properties.
        """
        self._is_from_head = start == self._files.first
        check_crc = self._settings.check_crc_on_recover
        take = None if self._read_range is None else self._take
        scanner = LogScanner(self._files, start, check_crc=check_crc, take=take)
        for scan in scanner:
            self._dispatch_last()
            self._last = scan
        end, last = scanner.offset, self._last
        if last is not None and _is_torn(last):
            end = last.physical_offset
            self._log.warning("record.dropped", physical_offset=end, reason="torn properties")
        else:
            self._dispatch_last()
        if self._check is not None:
            self._check.finish()
        self._publish()
        return end

    def _take(self, data: bytes, position: int, base: int) -> int:
        """Dispatch plain records that are not torn; return their total size."""
        if base + position < self._odd_end:
            return 0
        check_crc = self._settings.check_crc_on_recover
        found = self._dispatcher.read(data, position, base, check_crc=check_crc)
        if found is None:
            return 0
        self._dispatch_last()
        if self._check is not None and not self._check.is_plain(found.runs):
            self._odd_end = base + position + found.size
            return 0
        self._dispatcher.dispatch_range(found, is_from_head=self._is_from_head)
        self._publish_in_parts()
        return found.size

    def _dispatch_last(self) -> None:
        last, self._last = self._last, None
        if last is None:
            return
        if self._check is not None:
            self._check.dispatch(last)
        else:
            self._dispatcher.dispatch(last, is_from_head=self._is_from_head)
        self._publish_in_parts()

    def _publish_in_parts(self) -> None:
        if self._dispatcher.record_count - self._published_count >= PUBLISH_COUNT:
            self._publish()

    def _publish(self) -> None:
        """Publish the dispatched entries; keys remain queued if the disk is full."""
        self._published_count = self._dispatcher.record_count
        self._dispatcher.publish()
        keyed, self._dispatcher.keyed = self._dispatcher.keyed, []
        try:
            self._index.remember(keyed)
            self._index.catch_up()
        except DiskError as error:
            if not error.is_space_missing:
                raise
            self._log.error("queues.write_failed", error=str(error))

    def _end_log(self, end: int) -> None:
        """Set the end of the log after checking the bytes beyond it."""
        files = self._files
        if not files.files:
            self._commit_log.set_end(end)
            return
        if self._was_clean and not files.has_data_from(end):
            files.pad_last()
            self._commit_log.set_end(end)
            return
        self._judge(end)
        if files.pad_last():
            self._log.warning("file.padded", path=files.files[-1].path, size=files.file_size)
        self._commit_log.truncate(end)

    def _judge(self, stop: int) -> None:
        # A blank tail and a torn last record are normal. A whole record after them means that
        # the disk lost bytes in between, or wrote later ones first.
        follows = find_record(self._files, stop + 1)
        progress = self._progress
        verdict = judge_stop(
            stop=stop,
            safe_offset=progress.offset if progress is not None else 0,
            safe_timestamp=self._checkpoint.log_timestamp if progress is None else 0,
            follows=follows,
        )
        if follows is None:
            if verdict is StopVerdict.MISSING and progress is not None:
                self._note_missing(stop, progress.offset)
            elif self._files.has_data_from(stop):  # a torn record, or a damaged last one
                self._log.warning("log.truncated", physical_offset=stop, discarded_from=stop)
            return
        if verdict is StopVerdict.REFUSE:
            path = self._files.file_at(stop).path
            position = (stop - self._files.first) % self._files.file_size
            raise CorruptStore(
                f"{path}: damaged at byte {position} (physical offset {stop}), but whole records"
                f" follow at {follows.physical_offset}; run `cometmq store verify`"
            )
        self._has_cut_records = True
        self._log.warning(
            "log.truncated", physical_offset=stop, discarded_from=follows.physical_offset
        )

    def _fill_gaps(self) -> None:
        """Scan from the head of the log to rebuild queues that lack entries in the middle."""
        gaps = self._dispatcher.gaps
        if not gaps:
            return
        names = sorted(f"{queue.topic}/{queue.queue_id}" for queue in gaps)
        self._log.warning("queues.rebuilt", count=len(names), first=names[0])
        # The other queues are complete; dispatching to them again would only cost time.
        behind = {queue: _known_end(queue) for queue in gaps}
        gaps.clear()

        def delete(topic: str, log_end: int) -> None:
            for queue, known_end in behind.items():
                if queue.topic == topic and known_end <= log_end:
                    queue.begin_again()

        dispatcher = Dispatcher(
            self._queues,
            is_indexing=False,
            behind=behind,
            deleted=self._deleted,
            on_deletion=delete,
            read_range=self._read_range,
        )
        scanner = LogScanner(
            self._files,
            self._files.first,
            check_crc=False,
            end=self._commit_log.end,
            take=dispatcher.taker,
        )
        for scan in scanner:
            dispatcher.dispatch(scan, is_from_head=True)
        dispatcher.publish()


def _known_end(queue: ConsumeQueue) -> int:
    entry = queue.last_entry()
    return 0 if entry is None else entry.physical_offset + entry.size


def _is_torn(scan: Scan) -> bool:
    """Return whether the last record's properties end in bytes that were never written."""
    return scan.properties.endswith(b"\0")
