# SPDX-License-Identifier: Apache-2.0
"""Compares the stores of a stopped group."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from cometmq.peers.broker.store_files import judge_queues, read_log
from cometmq.peers.ha.ledger import Ledger
from cometmq.store.inspection.verification import StoreState
from cometmq.store.inspection.verify import verify_store


def judge_copies(stores: list[Path], confirmed: int, ledgers: Mapping[str, Ledger]) -> list[str]:
    """Return the differences between copies below the confirm offset, and each copy's faults.

    `ledgers` is keyed by topic.
    """
    wrong = judge_logs(stores, confirmed)
    for store in stores:
        wrong += _judge(store, ledgers)
    return wrong


def judge_logs(stores: list[Path], confirmed: int) -> list[str]:
    """Compare the bytes of the logs from offset 0 to the confirm offset."""
    logs = [_log(store)[:confirmed] for store in stores]
    wrong = [
        f"{store} has {len(log)} of {confirmed} confirmed bytes"
        for store, log in zip(stores, logs, strict=True)
        if len(log) < confirmed
    ]
    for (one, left), (other, right) in pairwise(zip(stores, logs, strict=True)):
        if left != right:
            shorter = min(len(left), len(right))
            pairs = enumerate(zip(left, right, strict=False))
            at = next((n for n, (byte, twin) in pairs if byte != twin), shorter)
            wrong.append(f"{one} and {other} differ at {at}")
    return wrong


def _judge(store: Path, ledgers: Mapping[str, Ledger]) -> list[str]:
    records, _ = read_log(store)
    wrong = judge_queues(store, records)
    there = {(it.topic, it.queue_id, it.queue_offset) for it in records}
    wrong += [
        f"{store} lacks message {number} of {topic}, acknowledged at {sent.place}"
        for topic, ledger in ledgers.items()
        for number, sent in ledger.acknowledged.items()
        if (topic, *sent.place) not in there
    ]
    found = verify_store(str(store))
    if found.state is not StoreState.HEALTHY:
        wrong.append(f"{store} is {found.state}: {found.findings}")
    return wrong


def _log(store: Path) -> bytes:
    """Return the whole log, which begins at offset 0 because the tests delete no file."""
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))
