# SPDX-License-Identifier: Apache-2.0
"""Messages, settings, and a driver that runs a store's jobs synchronously."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.message.ids import pack_host
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import index_keys, render_properties
from cometmq.remoting.message.record import MessageRecord, decode_record
from cometmq.store.disk import Disk
from cometmq.store.message_store import MessageStore
from cometmq.store.parts import NO_NATIVE_CODE, NativeCode, no_pause
from cometmq.store.queues.consume_queue import ConsumeQueue, QueueEntry, entry_at
from cometmq.store.results import GetResult, PutResult
from cometmq.store.settings import StoreSettings
from cometmq.store.upkeep.jobs import Job

START_MS = 1_700_000_000_000
BORN_HOST = pack_host(bytes((10, 0, 0, 2)), 50000)
STORE_HOST = pack_host(bytes((10, 0, 0, 1)), 10911)

SMALL = StoreSettings(
    store_path_root_dir="/store",
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=16,
    max_index_num=64,
    disk_space_warning_level_ratio=100,
    disk_space_clean_forcibly_ratio=100,
    disk_max_used_space_ratio=100,
)


def small_settings(**changes: object) -> StoreSettings:
    """Return settings with files of only a few records, so that all kinds of files roll over."""
    return msgspec.structs.replace(SMALL, **changes)


class SteppingClock:
    """A clock that only tests advance."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """Return the time in milliseconds."""
        return self.now_ms

    def advance(self, elapsed_ms: int) -> int:
        """Advance the clock; return the new time."""
        self.now_ms += elapsed_ms
        return self.now_ms


def make_message(  # every field has a default
    topic: str = "T",
    queue_id: int = 0,
    body: bytes = b"Hello",
    *,
    tags: str | None = None,
    keys: str | None = None,
    unique_key: str | None = None,
    wait: bool = True,
    sys_flag: int = 0,
    properties: dict[str, str] | None = None,
) -> NewMessage:
    """Build a message the way a broker passes it to the store."""
    pairs = {"TAGS": tags, "KEYS": keys, "UNIQ_KEY": unique_key, **(properties or {})}
    text = render_properties({key: value for key, value in pairs.items() if value is not None})
    return NewMessage(
        topic=topic,
        queue_id=queue_id,
        flag=0,
        sys_flag=sys_flag,
        born_timestamp=START_MS,
        born_host=BORN_HOST,
        store_host=STORE_HOST,
        body=body,
        properties=text,
        tag_code=tag_code(tags),
        keys=index_keys(unique_key, keys),
        wait=wait,
    )


class Events:
    """A log that records the events it receives."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **facts: self.lines.append((event, facts))

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the details of each occurrence of an event."""
        return [facts for name, facts in self.lines if name == event]


class StoreRig:
    """A store with a clock, driven the way a broker drives it."""

    def __init__(  # every field but the disk has a default
        self,
        disk: Disk,
        settings: StoreSettings = SMALL,
        clock: SteppingClock | None = None,
        *,
        native: NativeCode = NO_NATIVE_CODE,
        log: Log = NO_LOG,
        boot_id: str = "",
        has_copies: bool = False,
        monotonic_ms: Callable[[], int] | None = None,
        pause: Callable[[], None] = no_pause,
    ) -> None:
        self.clock = clock or SteppingClock()
        self.store = MessageStore.open(
            settings,
            disk=disk,
            clock_ms=self.clock,
            monotonic_ms=monotonic_ms,
            native=native,
            log=log,
            boot_id=boot_id,
            has_copies=has_copies,
            pause=pause,
        )

    def put(self, message: NewMessage) -> PutResult:
        """Store one message and return its result; with SYNC_FLUSH, it is complete only after a
        sync.
        """
        results: list[PutResult] = []
        self.store.writer.put(message, results.append)
        self.store.writer.commit()
        return results[0] if results else PutResult.__new__(PutResult)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue, which must exist."""
        found = self.store.reader.queue(topic, queue_id)
        assert found is not None, f"no queue {topic} {queue_id}"
        return found

    def entry(self, topic: str, queue_id: int, queue_offset: int) -> QueueEntry:
        """Return an entry of a queue, which must exist."""
        found = entry_at(self.queue(topic, queue_id), queue_offset)
        assert found is not None, f"no entry {queue_offset} in {topic} {queue_id}"
        return found

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """Return the bodies of all messages of a queue that readers get."""
        return [record.body for record in records_of(self.store, topic, queue_id)]

    def settled(self, read: Callable[[], GetResult]) -> GetResult:
        """Return the result of a read, as the function `settled` does."""
        return settled(self.store, read)

    def work(self, rounds: int = 20, elapsed_ms: int = 1_000) -> None:
        """Advance the clock and run every due job."""
        for _ in range(rounds):
            now_ms = self.clock.advance(elapsed_ms)
            self.flush(now_ms)
            for job in self.store.jobs(now_ms):
                _run(job)

    def scrub(self, rounds: int = 20, elapsed_ms: int = 20_000) -> None:
        """Advance the clock and run the checksum comparisons that are due."""
        for _ in range(rounds):
            job = self.store.upkeep.scrubber.job(self.clock.advance(elapsed_ms))
            if job is not None:
                job.run()
                job.done(None)

    def flush(self, now_ms: int | None = None) -> None:
        """Run the sync that is due, if any."""
        job = self.store.upkeep.flusher.job(self.clock.now_ms if now_ms is None else now_ms)
        if job is None:
            return
        error: Exception | None = None
        try:
            job.run()
        except Exception as caught:  # noqa: BLE001  # what a worker would hand back
            error = caught
        self.store.upkeep.flusher.done(job, error)


def records_of(
    store: MessageStore, topic: str = "T", queue_id: int = 0, **options: Any
) -> list[MessageRecord]:
    """Return all messages of a queue that readers get, once damaged entries are rebuilt."""
    reader, found = store.reader, list[MessageRecord]()
    offset = reader.min_offset(topic, queue_id)
    while offset < reader.max_offset(topic, queue_id):
        read = partial(reader.get_messages, topic, queue_id, offset, 32, **options)
        result = settled(store, read)
        assert result.next_offset > offset, result.status
        assert result.records or result.damaged or options, (offset, result.status)
        found += map(decode_record, result.records)
        offset = result.next_offset
    return found


def settled(store: MessageStore, read: Callable[[], GetResult]) -> GetResult:
    """Return the result of a read, after an examination of the damaged entries that it meets; see
    `GetResult.awaits_repair`.
    """
    result = read()
    while result.awaits_repair:
        job = store.repair.job()
        assert job is not None
        _run(job)
        result = read()
    return result


def _run(job: Job) -> None:
    error: Exception | None = None
    try:
        job.run()
    except Exception as caught:  # noqa: BLE001  # what a worker would hand back
        error = caught
    job.done(error)
