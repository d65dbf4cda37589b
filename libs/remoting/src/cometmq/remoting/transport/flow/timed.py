# SPDX-License-Identifier: Apache-2.0
"""Slow handlers whose steps are charged to their connections.

The dispatcher measures a handler only until its first await. Without this module, its later steps,
of milliseconds each between other connections' requests, would not be charged to any connection.
"""

from collections.abc import Awaitable, Callable, Generator
from time import thread_time
from typing import Any, Generic, TypeVar

from cometmq.remoting.transport.flow.turns import SLOW_S

T = TypeVar("T")


class Timed(Generic[T]):
    """Slow work whose time is reported whenever it adds up to `SLOW_S`."""

    __slots__ = ("_charge", "_spent_s", "_work")

    def __init__(self, work: Awaitable[T], charge: Callable[[float], None]) -> None:
        self._work = work
        self._charge = charge
        self._spent_s = 0.0

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        error: BaseException | None = None
        while True:
            began_s = thread_time()
            try:
                waits_for = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                error = None
                self._note(thread_time() - began_s)
            try:
                yield waits_for
            except BaseException as thrown:  # noqa: BLE001  # the work handles it
                error = thrown

    def _note(self, spent_s: float) -> None:
        self._spent_s += spent_s
        if self._spent_s > SLOW_S:
            self._charge(self._spent_s)
            self._spent_s = 0.0
