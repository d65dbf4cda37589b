# SPDX-License-Identifier: Apache-2.0
"""Time a put and its share of the commit: record, queue entry, index entry, result.

The figure is one thread's processor time in the best of several rounds, including the write, so
other work on the machine has little effect.
"""

import gc
import tempfile
import time

from cometmq.remoting.message.new_message import NewMessage
from cometmq.store import MessageStore, OsDisk, StoreSettings

BORN = bytes.fromhex("0a0000020000c350")
STORE = bytes.fromhex("0a00000100002a9f")
BODY = b"x" * 128
BUDGET_NS = 2500
MESSAGE_COUNT = 9600
ROUNDS = 5


def make_messages(count: int, *, queue_count: int = 4) -> list[NewMessage]:
    """Build messages that have the properties of a send: unique key, tag, cluster."""
    messages = []
    for number in range(count):
        key = f"7F0000010000{number:020X}"
        properties = f"UNIQ_KEY\x01{key}\x02TAGS\x01TagA\x02CLUSTER\x01DefaultCluster"
        messages.append(
            NewMessage(
                "BenchTopic",
                number % queue_count,
                0,
                0,
                1700000000000,
                BORN,
                STORE,
                BODY,
                properties,
                tag_code=2598919,
                keys=(key,),
            )
        )
    return messages


def one_round(store: MessageStore, messages: list[NewMessage], batch_size: int) -> float:
    """Store the messages in batches; return the nanoseconds per message."""
    put, commit = store.writer.put, store.writer.commit
    start = time.process_time_ns()
    for first in range(0, len(messages), batch_size):
        for message in messages[first : first + batch_size]:
            put(message, _forget)
        commit()
    return (time.process_time_ns() - start) / len(messages)


def _forget(_result: object) -> None:
    """Discard an answer."""


def main() -> None:
    messages = make_messages(MESSAGE_COUNT)
    with tempfile.TemporaryDirectory() as folder:
        store = MessageStore.open(
            StoreSettings(store_path_root_dir=folder),
            disk=OsDisk(),
            clock_ms=lambda: time.time_ns() // 1_000_000,  # as in the runtime's clock
        )
        gc.freeze()
        for batch_size in (1, 8, 32, 64, 200):
            rounds = [one_round(store, messages, batch_size) for _ in range(ROUNDS)]
            budget = f" (budget {BUDGET_NS} ns)" if batch_size >= 32 else ""
            print(f"put + commit, batches of {batch_size:3}: {min(rounds):7.0f} ns{budget}")
            for job in store.jobs(store.commit_log.end + (1 << 45)):
                job.run()
                job.done(None)
        store.close()


if __name__ == "__main__":
    main()
