# SPDX-License-Identifier: Apache-2.0
"""Signals about changes of the store and the tables; other parts react in the same
turn of the loop.

A signal calls the functions that are connected to it. The store and the journal, which call the
signals, are opened first; each later part connects its functions when it is built (search for
`.connect(`). After a commit, for example, `wake` calls `Arrivals` (`handlers/arrivals.py`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Signal(Generic[P]):
    """Calls the connected functions, in the order in which they were connected."""

    __slots__ = ("calls", "fire")

    def __init__(self) -> None:
        self.calls: list[Callable[P, object]] = []
        # For callers on the message path, which call it once or twice per commit: 0.05 us while one
        # function is connected, and 0.25 us through `__call__`.
        self.fire: Callable[P, object] = self.__call__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for call in self.calls:
            call(*args, **kwargs)

    def replace(self, call: Callable[P, object]) -> None:
        """Call only this function from now on."""
        self.calls.clear()
        self.connect(call)

    def connect(self, call: Callable[P, object]) -> None:
        self.calls.append(call)
        self.fire = call if len(self.calls) == 1 else self.__call__


@dataclass(slots=True)
class Turn:
    """The signals of one broker."""

    wake: Signal[[]] = field(default_factory=Signal)
    """Sends have an outcome, or more of the log is readable: answer woken pulls, send answers."""
    grew: Signal[[]] = field(default_factory=Signal)
    """The log has new bytes: send them to other copies."""
    cut: Signal[[]] = field(default_factory=Signal)
    """The end of the log was cut off: forget all state about the messages in it."""
    took_long: Signal[[float]] = field(default_factory=Signal)
    """A commit took this processor time, in seconds."""
    job_ended: Signal[[]] = field(default_factory=Signal)
    """A job of the store has ended on its thread."""
    noted: Signal[[]] = field(default_factory=Signal)
    """Tables have changed: write the journal in this turn, before any answer is sent."""
    counted: Signal[[]] = field(default_factory=Signal)
    """The journal has a change that followers of this master need."""
    filled: Signal[[]] = field(default_factory=Signal)
    """A journal file is full, or may be lost: save all tables."""


class OncePerTurn:
    """Runs an action once at the end of a turn, however often it is called."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._is_scheduled = False

    def __call__(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_scheduled = False
        self._action()
