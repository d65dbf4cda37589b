# SPDX-License-Identifier: Apache-2.0
"""Ending in order when the process is told to, without an event loop."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from cometmq.client.signals import END_SIGNALS


def until_signal(signals: Sequence[signal.Signals] = END_SIGNALS) -> None:
    """Wait until the process is told to end."""
    # An Event must not be set by a signal that interrupts its `wait`: it has a lock.
    told: SimpleQueue[None] = SimpleQueue()
    with on_signal(lambda: told.put(None), signals=signals):
        told.get()


@contextmanager
def on_signal(
    callback: Callable[[], object], *, signals: Sequence[signal.Signals] = END_SIGNALS
) -> Iterator[None]:
    """Call a function on the main thread when a signal comes, instead of what it does otherwise.

    The second time each signal has its usual effect. The function must not wait: it interrupts
    whatever the main thread does, perhaps in the middle of a call of a client.
    """
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def told(*_: object) -> None:
        restore()
        callback()

    for number in signals:
        signal.signal(number, told)
    try:
        yield
    finally:
        restore()
