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
    """Call a function on the loop when a signal arrives, instead of taking the default action.

    A second signal of the same kind takes the default action, so that users can end the process at
    once. This works only in the main thread, where Python handles signals.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in signals}
    is_first = True

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def told() -> None:
        nonlocal is_first
        is_first = False
        restore()
        callback()

    for number in signals:
        loop.add_signal_handler(number, told)
    try:
        yield
    finally:
        if is_first:
            restore()
