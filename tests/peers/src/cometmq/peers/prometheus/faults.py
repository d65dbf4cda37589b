# SPDX-License-Identifier: Apache-2.0
"""Causes what the alerts in CONDITIONAL report, because their queries have no data otherwise."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

TOPIC: Final = "Faults"
GROUP: Final = "faulty"
DEAD_LETTERS: Final = f"%DLQ%{GROUP}"
CONSUMERS_S: Final = 60
"""How long the consumers run whose subscriptions differ."""
DISK_SETTING: Final = "diskSpaceWarningLevelRatio"
USUAL_PERCENT: Final = 90


@contextmanager
def faults(cometmq: Callable[..., object], refuse_above: Callable[[int], object]) -> Iterator[None]:
    """Cause a dead letter, disks that count as full, and a group with two subscriptions.

    `cometmq` runs a command, and raises an error if it fails; `refuse_above` sets the disk usage,
    in percent, above which sends are refused. Everything is undone at the end, but a counter keeps
    its value.
    """
    cometmq("topic", "create", TOPIC)
    cometmq("produce", DEAD_LETTERS, "never consumed")
    consume = ("consume", TOPIC, "--group", GROUP, "--timeout", str(CONSUMERS_S))
    with ThreadPoolExecutor(2) as pool:
        for tag in "AB":  # both end with status 1, because they receive nothing: this is ignored
            pool.submit(cometmq, *consume, "--tag", tag)
        refuse_above(1)
        try:
            yield
        finally:
            refuse_above(USUAL_PERCENT)
    for topic in (TOPIC, DEAD_LETTERS):
        cometmq("topic", "delete", topic, "--yes")
