# SPDX-License-Identifier: Apache-2.0
"""Time queue entries and hot pulls; budgets are in the modules' docstrings."""

import tempfile
import time

from bench_append import make_messages
from timing import compare_and_print

from cometmq.store import MessageStore, OsDisk, StoreSettings
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.queues.queue_files import QueueFiles

QUEUE_COUNT = 4
MESSAGE_COUNT = 4000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = MessageStore.open(
            StoreSettings(store_path_root_dir=folder),
            disk=OsDisk(),
            clock_ms=lambda: time.time_ns() // 1_000_000,  # as in the runtime's clock
        )
        messages = make_messages(MESSAGE_COUNT, queue_count=QUEUE_COUNT)
        for message in messages:
            store.writer.put(message, _forget)
        store.writer.commit()
        code = messages[0].tag_code
        queue = ConsumeQueue("Spare", 0, QueueFiles(OsDisk(), folder, 6_000_000, str))
        compare_and_print(
            {
                "stage and publish": (lambda: _stage(queue), 300),
                "get 32 from memory": (
                    lambda: store.reader.get_messages("BenchTopic", 1, 100, 32),
                    25000,
                ),
            }
        )
        for job in store.jobs(1 << 50):
            job.run()
            job.done(None)
        compare_and_print(
            {
                "get 32 from files": (
                    lambda: store.reader.get_messages("BenchTopic", 1, 100, 32),
                    25000,
                ),
                "get 32 with a filter": (
                    lambda: store.reader.get_messages("BenchTopic", 1, 100, 32, accept=code.__eq__),
                    None,
                ),
                "get 1 from files": (
                    lambda: store.reader.get_messages("BenchTopic", 1, 100, 1),
                    None,
                ),
                "get nothing new": (
                    lambda: store.reader.get_messages("BenchTopic", 1, 1000, 32),
                    None,
                ),
            }
        )
        store.close()


def _stage(queue: ConsumeQueue) -> None:
    queue.stage(0, 250, 0, 0)
    queue.publish()


def _forget(_result: object) -> None:
    """Discard an answer."""


if __name__ == "__main__":
    main()
