# SPDX-License-Identifier: Apache-2.0
"""Schedules garbage collection: often over the newest objects, and rarely over all objects.

Reference counting frees most objects at once. Objects that refer to each other (cycles) wait for
CPython's garbage collector. Its full collections visit every container: on a broker with 100,000
topics, offsets and registrations, one holds the event loop for more than 100 ms, and finds almost
nothing, because tables contain no cycles. So the objects that survive a full collection are
*frozen*: later collections skip them, and each visits at most about 10,000 new objects.

The cost: frozen cycles that become unreachable keep their memory until the next *sweep*, a
collection that visits all objects again. Objects that come and go with peers must therefore break
their cycles when they end, as connections do (`cometmq.remoting.transport.flow.connected`). A sweep
holds the loop for as long as a full collection would, so it runs only when the number of frozen
objects has multiplied since the last one.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import process_time
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:  # this module is imported before `no_collections` can begin
    from cometmq.remoting.log import Log

_OLDEST: Final = 2
_THRESHOLDS: Final = (700, 5, 1)
"""A full collection comes after about 10,000 new objects, and takes up to 10 ms: large heartbeats
leave objects that take 0.8 us each. With CPython's 700, 10, 10, it took 42 ms.
"""
LOOK_S: Final = 3_600
"""Time between two checks of the number of frozen objects."""
GROWTH: Final = 1.5
FEW: Final = 200_000
"""Minimum growth for a sweep: one is due when there are `GROWTH` times as many frozen objects as
after the last one, and at least `FEW` more. That many objects take about 50 MB.
"""
QUIET_S: Final = 5
QUIET_SHARE: Final = 0.02
"""A process that has used less of a processor in the last `QUIET_S` is quiet."""
TRIES_MAX: Final = 720
"""A process that is never quiet sweeps after this number of tries, about an hour."""


class Timer(Protocol):
    """A scheduled call, as `loop.call_later` returns it."""

    def cancel(self) -> None:
        """Cancel the call."""


@contextmanager
def no_collections() -> Iterator[None]:
    """Import modules without garbage collection, which takes a quarter of the import time.

    Modules, classes and functions live as long as the process, so the collector finds almost
    nothing to free among them. Later collections ignore them, too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def freezing() -> Iterator[None]:
    """Freeze the objects that survive a full collection while the block runs."""
    thresholds = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    gc.callbacks.append(_freeze_survivors)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(_freeze_survivors)


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        gc.freeze()


def sweep() -> int:
    """Collect all objects, and freeze those that survive; return the number of freed objects."""
    gc.unfreeze()
    freed_count = gc.collect()
    gc.freeze()
    gc.collect()  # the next full collection waits for new objects, a quarter of what this one finds
    return freed_count


class Sweeps:
    """Sweeps when the number of frozen objects has grown and the process is quiet."""

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], Timer],
        *,
        log: "Log",
        frozen_count: Callable[[], int] = gc.get_freeze_count,
        used_s: Callable[[], float] = process_time,
    ) -> None:
        """Schedule checks with `later`, the loop's `call_later`. `used_s` returns the processor
        time that this process has used so far.
        """
        self._later = later
        self._log = log
        self._frozen_count = frozen_count
        self._used_s = used_s
        self._kept_count: int | None = None
        self._tries = 0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Check from now on, every LOOK_S; the first check only records the number of frozen
        objects.
        """
        self._timer = self._later(LOOK_S, self._look)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        count = self._frozen_count()
        if self._kept_count is None:
            self._kept_count = count
        if count > max(self._kept_count * GROWTH, self._kept_count + FEW):
            self._tries = 0
            self._wait_for_quiet()
        else:
            self._timer = self._later(LOOK_S, self._look)

    def _wait_for_quiet(self) -> None:
        begun_s = self._used_s()
        self._timer = self._later(QUIET_S, lambda: self._try(begun_s))

    def _try(self, begun_s: float) -> None:
        self._tries += 1
        is_quiet = self._used_s() - begun_s < QUIET_S * QUIET_SHARE
        if not is_quiet and self._tries < TRIES_MAX:
            self._wait_for_quiet()
            return
        begun_s = self._used_s()
        freed_count = sweep()
        self._kept_count = self._frozen_count()
        self._log.info(
            "garbage.swept",
            freed=freed_count,
            kept=self._kept_count,
            elapsed_ms=int((self._used_s() - begun_s) * 1000),
        )
        self._timer = self._later(LOOK_S, self._look)
