# SPDX-License-Identifier: Apache-2.0
"""Graceful shutdown on a signal, without an event loop."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from cometmq.client.signals import END_SIGNALS, handled


def until_signal(signals: Sequence[signal.Signals] = END_SIGNALS) -> None:
    """Wait for a signal that asks the process to stop."""
    # A signal handler must not set an Event whose `wait` it interrupts, as both take the same lock.
    told: SimpleQueue[None] = SimpleQueue()
    with on_signal(lambda: told.put(None), signals=signals):
        told.get()


@contextmanager
def on_signal(
    callback: Callable[[], object], *, signals: Sequence[signal.Signals] = END_SIGNALS
) -> Iterator[None]:
    """Call a function on the main thread when a signal arrives, instead of taking the default
    action.

    A second signal of the same kind takes the default action. The function must not block, because
    it interrupts the main thread at any point, possibly inside a client call.
    """
    with handled(signals, callback):
        yield
