# SPDX-License-Identifier: Apache-2.0
"""Time the walks that compare entries of queues and index with the log, per entry.

The figure is the processor time of the best of several walks, so other work on the machine has
little effect. Both walks compare 1,000 entries a second.
"""

import tempfile
import time
from collections.abc import Callable
from copy import copy

from cometmq.store import MessageStore, OsDisk, StoreSettings
from cometmq.store.upkeep.index_check import IndexWalk, LogPart
from cometmq.store.upkeep.walks import EntryWalk
from cometmq.testing.store.builders import make_message

MESSAGE_COUNT = 20_000
KEYS = 2  # of each message
STEP_COUNT = 1_000  # entries of one step
BUDGET_US = 10.0
ROUNDS = 5


def filled(folder: str) -> MessageStore:
    store = MessageStore.open(
        StoreSettings(store_path_root_dir=folder),
        disk=OsDisk(),
        clock_ms=lambda: time.time_ns() // 1_000_000,
    )
    for number in range(MESSAGE_COUNT):
        message = make_message(
            "BenchTopic", number % 4, bytes(128),
            tags="new", keys=f"order-{number}", unique_key=f"{number:032X}",
        )  # fmt: skip
        store.writer.put(message, _forget)
        if number % 500 == 0:
            store.writer.commit()
    store.writer.commit()
    for _ in range(3):
        for job in store.jobs(time.time_ns() // 1_000_000):
            job.run()
            job.done(None)
    return store


def _forget(_result: object) -> None:
    """Discard an answer."""


def best_us(walk: Callable[[], int]) -> float:
    """Return the processor time per entry of the best of several walks."""
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        count = walk()
        found.append((time.process_time() - start) * 1e6 / count)
    return min(found)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = filled(folder)
        parts = store._parts  # noqa: SLF001
        files, end = copy(parts.commit_log.files), store.upkeep.sealer.offset
        log = LogPart(files, end, parts.commit_log.end, parts.checksums)

        def index() -> int:
            walk, count = IndexWalk(), 0
            walk.begin()
            while not walk.has_ended:
                found, damaged = walk.step(parts.index.view(), log, STEP_COUNT)
                count += found
                assert damaged == []
            assert count == MESSAGE_COUNT * KEYS
            return count

        def queues() -> int:
            walk = EntryWalk()
            walk.begin(0)
            assert walk.step(files, parts.queues, end, MESSAGE_COUNT) == {}
            return MESSAGE_COUNT

        for name, walk in {"entry of a queue": queues, "entry of the index": index}.items():
            taken = best_us(walk)
            print(f"{name:20s} {taken:6.1f} us (budget {BUDGET_US})")
            if taken > BUDGET_US:
                raise SystemExit(1)
        store.close()


if __name__ == "__main__":
    main()
