# SPDX-License-Identifier: Apache-2.0
"""Time the checksums of the log, with native code and without it.

The figure is the processor time per MiB of log in the best of several rounds, so other work on the
machine has little effect.
"""

import os
import tempfile
import time
from pathlib import Path

from cometmq.broker.native import accel
from cometmq.store import OsDisk, StoreSettings
from cometmq.store.layout import Layout
from cometmq.store.log.block_sums import BlockSums
from cometmq.store.log.checksums import Checksums, Span

LOG_BYTES = 64 << 20
PART_BYTES = 16 << 20  # the size that a checkpoint finds at 16 MiB/s
BUDGETS_MS = {"native": 0.15, "Python": 1.0}  # processor time per MiB
ROUNDS = 5


def extend(folder: str, block_sums: BlockSums | None) -> float:
    """Add checksums for the log piece by piece; return the milliseconds of CPU time per MiB."""
    layout = Layout(StoreSettings(store_path_root_dir=folder))
    disk = OsDisk()
    for name in disk.names(layout.checksums):
        disk.remove(f"{layout.checksums}/{name}")
    sums = Checksums(disk, layout, LOG_BYTES, block_sums=block_sums)
    file = disk.open(f"{folder}/log")
    start = time.process_time()
    for begin in range(0, LOG_BYTES, PART_BYTES):
        sums.extend([Span(file, 0, begin, begin + PART_BYTES)], sums.generation)
    return (time.process_time() - start) * 1000 / (LOG_BYTES >> 20)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "log").write_bytes(os.urandom(LOG_BYTES))
        (Path(folder) / "checksums").mkdir()
        for name, block_sums in (("native", accel.block_sums), ("Python", None)):
            best = min(extend(folder, block_sums) for _ in range(ROUNDS))
            print(f"{name}: {best:.3f} ms per MiB (budget {BUDGETS_MS[name]})")
            if best > BUDGETS_MS[name]:
                raise SystemExit(1)


if __name__ == "__main__":
    main()
