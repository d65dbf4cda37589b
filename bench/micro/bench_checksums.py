# SPDX-License-Identifier: Apache-2.0
"""Time the checksums of the log for several block sizes.

The figure is the processor time per MiB of log in the best of several rounds, so other work on the
machine has little effect. `crc32` keeps the interpreter lock for blocks below 5 KiB.
"""

import os
import tempfile
import time
from pathlib import Path

from cometmq.store import OsDisk, StoreSettings
from cometmq.store.layout import Layout
from cometmq.store.log import checksums
from cometmq.store.log.checksums import Checksums, Span

LOG_BYTES = 64 << 20
PART_BYTES = 16 << 20  # the size that a checkpoint finds at 16 MiB/s
SIZES = (4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10)
BUDGET_MS = 1.0  # processor time per MiB at the block size in use
ROUNDS = 5


def extend(folder: str, block_bytes: int) -> float:
    """Add checksums for the log piece by piece; return the milliseconds of CPU time per MiB."""
    layout = Layout(StoreSettings(store_path_root_dir=folder))
    disk = OsDisk()
    vars(checksums).update(BLOCK_BYTES=block_bytes)
    for name in disk.names(layout.checksums):
        disk.remove(f"{layout.checksums}/{name}")
    sums = Checksums(disk, layout, LOG_BYTES)
    file = disk.open(f"{folder}/log")
    start = time.process_time()
    for begin in range(0, LOG_BYTES, PART_BYTES):
        sums.extend([Span(file, 0, begin, begin + PART_BYTES)], sums.generation)
    return (time.process_time() - start) * 1000 / (LOG_BYTES >> 20)


def main() -> None:
    in_use = checksums.BLOCK_BYTES
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "log").write_bytes(os.urandom(LOG_BYTES))
        (Path(folder) / "checksums").mkdir()
        for size in SIZES:
            best = min(extend(folder, size) for _ in range(ROUNDS))
            mark = f" (budget {BUDGET_MS})" if size == in_use else ""
            print(f"blocks of {size >> 10:2} KiB: {best:.2f} ms per MiB{mark}")
            if size == in_use and best > BUDGET_MS:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
