# SPDX-License-Identifier: Apache-2.0
"""Graceful shutdown on a signal: finish the current messages, commit, leave the group.

async with consumer:
    await until_signal()

async with consumer:
    with on_signal(consumer.finish):
        async for message in consumer:
            ...
"""

import asyncio
import contextvars
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def until_signal(signals: Sequence[signal.Signals] = END_SIGNALS) -> None:
    """Wait for a signal that asks the process to stop."""
    is_told = asyncio.Event()
    with on_signal(is_told.set, signals=signals):
        await is_told.wait()


@contextmanager
def on_signal(
    callback: Callable[[], object], *, signals: Sequence[signal.Signals] = END_SIGNALS
) -> Iterator[None]:
    """Call a function on the loop when a signal arrives, instead of taking the usual action.

    A second signal takes the usual action, even while a listener blocks the loop, so that users can
    end the process. This works only in the main thread, where Python handles signals.
    """
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()  # a signal may interrupt a listener, with its own context
    # Not loop.add_signal_handler: a blocked loop would take the second signal for the first.
    with handled(signals, lambda: loop.call_soon_threadsafe(callback, context=context)):
        yield


@contextmanager
def handled(signals: Sequence[signal.Signals], act: Callable[[], object]) -> Iterator[None]:
    """Call `act` in the handler of the first signal; before that, restore all handlers."""
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        while before:
            signal.signal(*before.popitem())

    def told(*_: object) -> None:
        restore()
        act()

    for number in signals:
        signal.signal(number, told)
    try:
        yield
    finally:
        restore()
