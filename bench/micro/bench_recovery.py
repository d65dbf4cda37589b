# SPDX-License-Identifier: Apache-2.0
"""Time recovery: a child process fills a store and exits uncleanly, and the parent opens it.

There are two cases: with a checkpoint every second, as in a running broker, and without any
checkpoint, so that the whole log is scanned and all queues are rebuilt.
"""

import multiprocessing
import os
import tempfile
import time

from bench_append import make_messages

from cometmq.store import MessageStore, OsDisk, StoreSettings

MESSAGE_COUNT = 1_000_000
BATCH_SIZE = 100


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_store(folder: str) -> MessageStore:
    settings = StoreSettings(store_path_root_dir=folder)
    return MessageStore.open(settings, disk=OsDisk(), clock_ms=now_ms)


def fill_and_die(folder: str, *, with_checkpoints: bool) -> None:
    """Store messages as fast as one thread can, then exit without closing the store."""
    store = open_store(folder)
    messages = make_messages(10_000, queue_count=16)
    for number in range(MESSAGE_COUNT // BATCH_SIZE):
        first = number * BATCH_SIZE % len(messages)
        for message in messages[first : first + BATCH_SIZE]:
            store.writer.put(message, _forget)
        store.writer.commit()
        for job in store.jobs(now_ms()) if with_checkpoints else ():
            job.run()
            job.done(None)
    os._exit(9)


def _forget(_result: object) -> None:
    """Discard an answer."""


def main() -> None:
    for with_checkpoints in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            child = multiprocessing.Process(
                target=fill_and_die, args=(folder,), kwargs={"with_checkpoints": with_checkpoints}
            )
            child.start()
            child.join()
            start = time.perf_counter()
            used = time.process_time()
            store = open_store(folder)
            elapsed = time.perf_counter() - start
            cpu = time.process_time() - used
            words = "each second" if with_checkpoints else "never      "
            total = sum(
                store.reader.max_offset(topic, queue_id)
                for topic, queue_id in store.reader.queue_ids()
            )
            print(
                f"checkpoint {words}: {elapsed:5.2f} s ({cpu:5.2f} s of processor),"
                f" {store.upkeep.recovered.record_count} records scanned, {total} messages there"
            )
            store.close()


if __name__ == "__main__":
    main()
