# SPDX-License-Identifier: Apache-2.0
"""Time the txn-checker's ledger with a million open transactions, and measure its memory.

A separate process recovers the ledger, so its memory use is the same as a txn-checker's.
"""

import multiprocessing
import resource
import tempfile
import time

from cometmq.store.os_disk import OsDisk
from cometmq.txn_checker.asking import Due, due
from cometmq.txn_checker.ledger import Ledger
from cometmq.txn_checker.settings import TxnCheckerSettings
from cometmq.txn_checker.tables import Half

COUNT = 1_000_000
READ_AT_ONCE = 256


def fill(folder: str) -> None:
    """Add half messages to a new ledger in batches of the size that a broker delivers."""
    ledger = Ledger(OsDisk(), folder)
    ledger.begin(0, 0)
    now_s = time.time_ns() // 1_000_000_000
    start = time.perf_counter()
    for first in range(0, COUNT, READ_AT_ONCE):
        numbers = range(first, min(first + READ_AT_ONCE, COUNT))
        ledger.add_halves([Half(number * 200, 200, now_s, 1) for number in numbers])
    _report("read half messages", COUNT, time.perf_counter() - start)


def measure(folder: str) -> None:
    """Recover the ledger, examine and query all transactions, and end a tenth of them."""
    start = time.perf_counter()
    ledger = Ledger(OsDisk(), folder)
    _report("start after a kill", COUNT, time.perf_counter() - start)
    assert ledger.halves.open_count == COUNT

    settings = TxnCheckerSettings(transaction_time_out=0)
    now_s = time.time_ns() // 1_000_000_000
    start = time.perf_counter()
    wanted = sum(
        due(half, now_s, settings) is Due.ASK
        for halves in ledger.halves.open_chunks()
        for half in halves
    )
    _report("examine", wanted, time.perf_counter() - start)

    start = time.perf_counter()
    for halves in ledger.halves.open_chunks():
        ledger.note_asked(halves, now_s)
    _report("note questions", COUNT, time.perf_counter() - start)

    ended = range(0, COUNT, 10)
    start = time.perf_counter()
    for first in range(0, len(ended), READ_AT_ONCE):
        ledger.read_ops([[half] for half in ended[first : first + READ_AT_ONCE]])
    _report("read op messages", len(ended), time.perf_counter() - start)

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{'memory at most':20s} {peak:9.1f} MiB, {ledger.size_bytes / 2**20:.0f} MiB of files")


def _report(what: str, count: int, seconds: float) -> None:
    print(f"{what:20s} {seconds:9.2f} s {count / seconds:12,.0f} a second")


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        for step in (fill, measure):
            child = context.Process(target=step, args=(folder,))
            child.start()
            child.join()
            assert child.exitcode == 0


if __name__ == "__main__":
    main()
