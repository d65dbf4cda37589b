# SPDX-License-Identifier: Apache-2.0
"""Time `store verify` beside the SHA-256 of the same log, and measure its memory.

The goal is at most 1.5 times the processor time of the digest, whatever the size of the store.
"""

import hashlib
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

from bench_recovery import MESSAGE_COUNT, fill_and_die, open_store

from cometmq.broker.native import open_native_code
from cometmq.broker.settings import BrokerSettings
from cometmq.remoting.log import NO_LOG
from cometmq.store.inspection.verify import verify_store

RATIO_MAX = 1.5
READ_BYTES = 1 << 20


def digest(folder: str) -> float:
    """Return the seconds of processor time for the SHA-256 of the log."""
    start = time.process_time()
    for path in sorted(Path(folder, "commitlog").iterdir()):
        found = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(READ_BYTES):
                found.update(data)
    return time.process_time() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        child = multiprocessing.Process(
            target=fill_and_die, args=(folder,), kwargs={"with_checkpoints": True}
        )
        child.start()
        child.join()
        open_store(folder).close()
        hashed_s = digest(folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.process_time()
        found = verify_store(folder, native=open_native_code(BrokerSettings(), NO_LOG))
        used_s = time.process_time() - start
        more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(
            f"{found.record_count} of {MESSAGE_COUNT} messages, {found.state.value}:"
            f" {used_s:.2f} s of processor, SHA-256 {hashed_s:.2f} s, {more >> 10} MiB more memory"
        )
        if used_s > RATIO_MAX * hashed_s or not found.is_good:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
