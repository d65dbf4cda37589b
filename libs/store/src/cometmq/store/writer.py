# SPDX-License-Identifier: Apache-2.0
"""Stores messages: `Writer`, the writing half of a store.

The path of a message: `put` stages it (`writing/append.py`). `commit` writes all staged messages
with one write, answers the puts, lets the caller begin a sync, makes the messages visible in their
queues, adds their keys to the index and calls the listeners. Other puts are answered later: with
SYNC_FLUSH after the next sync, and with replication when the replicas have the messages
(`note_replicated`).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, TypeAlias

from cometmq.remoting.message.new_message import NewMessage
from cometmq.store.errors import DiskError
from cometmq.store.opening import Upkeep
from cometmq.store.parts import Parts
from cometmq.store.results import Counters, PutDone, PutStatus
from cometmq.store.settings import FlushDiskType
from cometmq.store.writing.append import Batch
from cometmq.store.writing.pending_puts import Condition, Conditions

WRITE_BYTES: Final = 1 << 20
"""As soon as the collected records have this size, a step writes them, which takes 2 to 4 ms."""

StoreSteps: TypeAlias = Generator[None, None, Batch | None]


class Placing:
    """A large unit of messages that is placed in steps; between two steps, its caller can do other
    work.

    Until the unit is stored, nothing else is placed, because its records must be contiguous. Other
    puts are staged meanwhile.
    """

    __slots__ = ("_steps", "batch", "is_done")

    def __init__(self, steps: StoreSteps) -> None:
        self._steps = steps
        self.is_done = False
        self.batch: Batch | None = None
        """The commit that contains the unit; None before it is done, or if nothing was stored."""

    def step(self) -> None:
        """Place some of the messages; the last step stores all of them."""
        if self.is_done:
            return
        try:
            next(self._steps)
        except StopIteration as end:
            self.is_done, self.batch = True, end.value
        except BaseException:
            self.is_done = True
            raise

    def finish(self) -> None:
        """Run all remaining steps."""
        while not self.is_done:
            self.step()


def parts_to_write(batch: Batch) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the records of each write, with the physical offset of the first."""
    for segment_offset, records in batch.segments:
        offset, part, size = segment_offset, [], 0
        for record in records:
            part.append(record)
            size += len(record)
            if size >= WRITE_BYTES:
                yield offset, part
                offset, part, size = offset + size, [], 0
        if part:
            yield offset, part


_SYNC_FLUSH: Final = FlushDiskType.SYNC_FLUSH
_FLUSHED: Final[Conditions] = (Condition.FLUSHED,)
_REPLICATED: Final = (Condition.REPLICATED,)


class Writer:
    """Stores messages and answers their puts."""

    def __init__(self, parts: Parts, upkeep: Upkeep, counters: Counters) -> None:
        self._parts = parts
        self._commit_log = parts.commit_log
        self._write_state = parts.write_state
        self._monotonic_ms = parts.monotonic_ms
        self._upkeep = upkeep
        self._counters = counters
        self.appender = parts.appender
        # Called for each message, so without a method in between: see `Appender`.
        self.put = parts.appender.put
        self.put_batch = parts.appender.put_batch
        self.put_run = parts.appender.put_run
        self.placing: Placing | None = None
        """The large unit that is being placed in steps; None if there is none."""
        # Replication sets both: whether puts wait for `note_replicated`, and whether a slave is
        # close enough to a commit's end for its puts to wait.
        self.needs_replicas = False
        self.may_replicate: Callable[[int], bool] = lambda _end: True

    def put_large(self, messages: Sequence[NewMessage], done: PutDone) -> Placing:
        """Begin to store a unit (messages that are stored contiguously, or not at all) in steps,
        which the caller runs; other puts are staged meanwhile.

        `commit` first runs the steps that remain. Afterwards, the caller adds the keys
        (`indexing`).
        """
        self.commit()
        self.placing = Placing(self._storing(messages, done))
        return self.placing

    def _storing(self, messages: Sequence[NewMessage], done: PutDone) -> StoreSteps:
        batch = yield from self.appender.place_alone(messages, done)
        if batch is None or self._write_state.refusals:
            self.placing = None
            return self.store(batch)
        # From here on, the batch counts as written: records may not be left after the log's end.
        try:
            for offset, records in parts_to_write(batch):
                self._commit_log.write(offset, records)
                yield
        except DiskError as error:
            self._fail_write(error, batch)
            return None
        finally:
            self.placing = None
        return self._complete(batch)

    def commit(
        self, written: Callable[[Batch], None] | None = None, bytes_max: int | None = None
    ) -> Batch | None:
        """Store all staged messages, or the oldest with at least `bytes_max` bytes, and answer
        their puts; return None if nothing was stored.

        If puts are waiting, `written` is called before the messages become visible, so that a sync
        can begin earlier. Neither `written` nor an answer may call this method, because their
        messages are not visible yet; they may stage messages for the next commit.
        """
        if self.placing is not None:
            self.placing.finish()
        return self.store(self.appender.take(bytes_max), written)

    def store(
        self, batch: Batch | None, written: Callable[[Batch], None] | None = None
    ) -> Batch | None:
        """Store what the appender has placed, and answer its puts; see `commit`."""
        if batch is None:
            return None
        if self.appender.refusal is not None:
            self._fail(batch)
            return None
        try:
            for offset, records in batch.segments:
                if records:
                    self._commit_log.write(offset, records)
        except DiskError as error:
            self._fail_write(error, batch)
            return None
        self._complete(batch, written)
        if self._parts.settings.flush_disk_type is _SYNC_FLUSH:
            # no large unit is being written after the end
            self._upkeep.flusher.zeros_ahead.write()
        return batch

    def _complete(self, batch: Batch, written: Callable[[Batch], None] | None = None) -> Batch:
        """Make written messages part of the log, and answer their puts."""
        log = self._commit_log
        assert batch.end >= log.end
        log.end = batch.end
        counters = self._counters
        counters.commit_count += 1
        counters.put_count += batch.message_count
        counters.put_bytes += batch.end - batch.start
        # Senders wait for the answers. No consumer can ask for a message before this call returns.
        try:
            is_sync = self._parts.settings.flush_disk_type is _SYNC_FLUSH
            if is_sync or self.needs_replicas:
                self._answer(batch, _FLUSHED if is_sync else ())
            else:
                for done, _, result in batch.results:
                    done(result)
            if written is not None and self._upkeep.pending.count:
                written(batch)
        finally:
            self._upkeep.publisher.publish(batch)
        return batch

    def _answer(self, batch: Batch, needs: Conditions) -> None:
        if self.needs_replicas:
            if self.may_replicate(batch.end):
                needs += _REPLICATED
            else:
                _mark_unreplicated(batch)
        if not needs:
            for done, _, result in batch.results:
                done(result)
            return
        now_ms = self._monotonic_ms()
        for done, is_waiting, result in batch.results:
            if is_waiting:
                self._upkeep.pending.add(batch.end, needs, now_ms, done, result)
            else:
                done(result)

    def _fail_write(self, error: DiskError, batch: Batch) -> None:
        self._upkeep.housekeeping.note_write_failed(error, batch)  # before the answers
        self._fail(batch)

    def _fail(self, batch: Batch) -> None:
        batch.undo()
        self._counters.failed_put_count += batch.message_count
        for done, _, result in batch.results:
            result.status = PutStatus.SERVICE_NOT_AVAILABLE
            done(result)

    def note_replicated(self, offset: int) -> None:
        """Record that the replicas have the log up to `offset`, and answer the waiting puts."""
        self._upkeep.pending.advance(Condition.REPLICATED, min(offset, self._commit_log.end))

    def forget_unconfirmed(self) -> None:
        """Refuse the puts that wait for an answer, because this broker is no longer the master.

        Their records are in the log, but not visible. Before the next put, the caller must make
        those visible that the log keeps: `publisher.confirm(None)`.
        """
        self.commit()
        self._upkeep.publisher.drop()
        self._upkeep.pending.fail()


def _mark_unreplicated(batch: Batch) -> None:
    """Give the puts that need replication the status SLAVE_NOT_AVAILABLE, because no slave is close
    enough.
    """
    for _, is_waiting, result in batch.results:
        if is_waiting and result.status is PutStatus.PUT_OK:
            result.status = PutStatus.SLAVE_NOT_AVAILABLE
