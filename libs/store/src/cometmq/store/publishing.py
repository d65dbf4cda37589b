# SPDX-License-Identifier: Apache-2.0
"""Makes messages visible to readers, up to a bound in the log.

Without a broker group there is no bound. In a group, the master moves the bound as its replicas
acknowledge (docs/concepts/replication.md). A master keeps the queue entries of commits above the
bound in memory; a replica dispatches the records above the bound later, from the log.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from cometmq.store.log.log_scanner import LogScanner
from cometmq.store.parts import Parts
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.floors import Floor, TrimmedQueue
from cometmq.store.upkeep.checkpointer import Checkpointer
from cometmq.store.upkeep.housekeeping import Housekeeping
from cometmq.store.writing.append import Batch
from cometmq.store.writing.dispatcher import Dispatcher
from cometmq.store.writing.write_state import Refusal


class _Held(NamedTuple):
    batch: Batch
    counts: list[tuple[ConsumeQueue, int]]


class Unconfirmed:
    """The commits that readers may not see yet, oldest first.

    A master whose replicas lag keeps their queue entries and keys, and publishes each as a whole,
    in log order.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, batch: Batch) -> None:
        """Hold back a commit whose records have just been written."""
        counts = [(queue, queue.hold()) for queue in batch.touched]
        batch.segments = []  # the records are already in the log
        self._held.append(_Held(batch, counts))

    def take(self, offset: int | None) -> Iterator[Batch]:
        """Yield the commits that end at or below an offset, after publishing the entries of
        each.
        """
        held = self._held
        while held and (offset is None or held[0].batch.end <= offset):
            batch, counts = held.popleft()
            for queue, count in counts:
                queue.publish_held(count)
            yield batch

    def forget(self, queue: ConsumeQueue) -> None:
        """Drop the entries of a queue that is being deleted."""
        for number, (batch, counts) in enumerate(self._held):
            batch.touched = [other for other in batch.touched if other is not queue]
            kept = [entry for entry in counts if entry[0] is not queue]
            self._held[number] = _Held(batch, kept)

    def drop(self) -> None:
        """Forget all commits; their records are later dispatched from the log or truncated."""
        for _, counts in self._held:
            for queue, _ in counts:
                queue.drop_held()
        self._held.clear()


ArrivalListener = Callable[[Collection[ConsumeQueue], int | None], None]
"""Called with the queues that got messages, and the log offset from which their new records begin
(None: unknown). `ConsumeQueue.newest_tag_code` takes that offset.
"""

UNCONFIRMED_BYTES_MAX: Final = 256 << 20
"""Maximum size of the unconfirmed part of the log; beyond it, puts are refused. Its queue entries
take 50 MB if the messages are small.
"""


class Publisher:
    """Makes the contents of one log visible in its queues and in the index."""

    def __init__(
        self,
        parts: Parts,
        checkpointer: Checkpointer,
        housekeeping: Housekeeping,
    ) -> None:
        self._commit_log = parts.commit_log
        self._queues = parts.queues
        self._write_state = parts.write_state
        self._log = parts.log
        self._checkpointer = checkpointer
        self._indexing = housekeeping.indexing
        self._index = parts.index
        self._dispatcher = Dispatcher(
            table=parts.queues,
            is_indexing=parts.settings.message_index_enable,
            on_deletion=housekeeping.delete_topic,
            read_range=parts.read_range,
        )
        self._unconfirmed = Unconfirmed()
        self._limit: int | None = None
        self.trimming: tuple[str, int, int] | None = None
        """The topic, queue id and queue offset of the trim whose mark is the only message of the
        next commit.
        """
        self._trims: deque[tuple[int, TrimmedQueue]] = deque()
        self.listeners: list[ArrivalListener] = []

    def publish(self, batch: Batch) -> None:
        """Make a commit visible, now or once it is confirmed."""
        if self.trimming is not None:
            topic, queue_id, queue_offset = self.trimming
            floor = Floor(queue_offset, batch.results[-1][2].physical_offset)
            self._trims.append((batch.end, TrimmedQueue(topic, queue_id, floor)))
        if self._limit is None or batch.end <= self._limit:
            for queue in batch.touched:
                queue.publish()
            self._show(batch)
        else:
            self._unconfirmed.add(batch)
            self._check_backlog()

    def _show(self, batch: Batch) -> None:
        log = self._commit_log
        assert log.confirm_offset <= batch.end <= log.end
        log.confirm_offset = batch.end
        while self._trims and self._trims[0][0] <= batch.end:
            self._queues.trim(*self._trims.popleft()[1])
        self._checkpointer.note_commit(batch)
        self._indexing.add(batch)
        for listener in self.listeners:
            listener(batch.touched, batch.start)

    def confirm(self, offset: int | None) -> None:
        """Move the bound up to which readers see the log; None removes it."""
        self._limit = offset
        for batch in self._unconfirmed.take(offset):
            self._show(batch)
        if not self._unconfirmed:
            self.dispatch()
        if self._write_state.has(Refusal.UNCONFIRMED):
            self._check_backlog()

    def _check_backlog(self) -> None:
        waiting_bytes = self._commit_log.end - self._commit_log.confirm_offset
        is_over = bool(self._unconfirmed) and waiting_bytes > UNCONFIRMED_BYTES_MAX
        if self._write_state.set(Refusal.UNCONFIRMED, holds=is_over) and is_over:
            self._log.warning(
                "puts.unconfirmed",
                waiting_bytes=waiting_bytes,
                action="find out which replicas are stopped or too slow",
            )

    def dispatch(self) -> None:
        """Make confirmed replicated records visible."""
        touched = self._dispatch()
        for listener in self.listeners:
            listener(touched, None)

    def _dispatch(self) -> list[ConsumeQueue]:
        """Add the records up to the bound to their queues and the index; return these queues."""
        log, dispatcher = self._commit_log, self._dispatcher
        dispatcher.keyed = []  # a failed dispatch is repeated, with its keys
        count = dispatcher.record_count
        start = self._checkpointer.dispatched_offset
        end = log.end if self._limit is None else min(self._limit, log.end)
        if start >= end:
            return []
        # Only zeros follow the end; reading them would take as long as everything else.
        scanner = LogScanner(log.files, start, check_crc=False, end=end, take=dispatcher.taker)
        for scan in scanner:
            # All earlier records were dispatched. If a queue still lacks entries, their records
            # were never in this log, which may begin later than its queues.
            dispatcher.dispatch(scan, is_from_head=True)
        reached = scanner.offset
        touched = list(dispatcher.touched)
        log.confirm(reached)
        dispatcher.publish()
        keyed, dispatcher.keyed = dispatcher.keyed, []
        timestamp = dispatcher.store_timestamp
        self._checkpointer.note_dispatched(
            touched, reached, timestamp, dispatcher.record_count - count
        )
        self._index.remember(keyed)
        return touched

    def drop(self) -> None:
        """Drop the commits that are not visible yet; their records are later dispatched or
        truncated.
        """
        self._unconfirmed.drop()
        self._trims.clear()
        self._check_backlog()

    def forget_topic(self, topic: str) -> None:
        """Drop the pending queue entries of a topic that is being deleted."""
        for queue in self._queues.of_topic(topic):
            self._unconfirmed.forget(queue)
