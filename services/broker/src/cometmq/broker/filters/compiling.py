# SPDX-License-Identifier: Apache-2.0
"""Bounds the time spent on SQL expressions: compiles short ones at once, longer ones in steps.

Any client may send expressions, and the longest takes 25 ms to compile. Expressions that exceed the
current allowance are therefore compiled one after the other, a step in each turn of the loop, and
the total number of characters per second is bounded.
"""

from collections.abc import Callable, Iterator
from typing import Final

from cometmq.broker.filters.sql import CHARS_MAX, compiling, is_compiled
from cometmq.remoting.errors import SystemBusy

COMPILED_CHARS_MAX: Final = 64 << 10
COMPILED_CHARS_PER_S: Final = 32 << 10
"""Characters compiled per burst and per second; each takes about 3 us on the loop."""
AT_ONCE_CHARS_MAX: Final = 1 << 10
WAITING_MAX: Final = 1_000
"""Maximum number of callbacks waiting for expressions to be compiled."""

Later = Callable[[Callable[[], None]], object]


def _at_once(work: Callable[[], None]) -> None:
    work()


class Compiler:
    """Compiles expressions within the current allowance, and queues expressions that exceed it."""

    def __init__(self, clock_ms: Callable[[], int], call_soon: Later = _at_once) -> None:
        """`call_soon` schedules the next step in a later turn of the loop."""
        self._clock_ms = clock_ms
        self._call_soon = call_soon
        self._left = COMPILED_CHARS_MAX
        self._left_at_once = AT_ONCE_CHARS_MAX
        self._left_ms = clock_ms()
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._waiting_count = 0
        self._parts: Iterator[None] | None = None

    def check(self, expression: str) -> None:
        """Raise SystemBusy unless the expression is already compiled or may be compiled at once."""
        if self._may_now(expression):
            return
        if expression not in self._waiting:
            self._enqueue(expression, _ignore)
        if not is_compiled(expression):
            raise SystemBusy("[COMPILING_FILTER]the filter is being compiled, try again later")

    def when_ready(self, expression: str, then: Callable[[], None]) -> None:
        """Call `then`, now or in a later turn of the loop, once `check` accepts the expression.

        Raise SystemBusy if too many callbacks are pending.
        """
        if self._may_now(expression):
            then()
        else:
            self._enqueue(expression, then)

    def _may_now(self, expression: str) -> bool:
        size = len(expression)
        if size > CHARS_MAX or is_compiled(expression):  # the parser refuses longer ones at once
            return True
        self._refill()
        if size > self._left_at_once or expression in self._waiting:
            return False
        self._charge(size)
        self._left_at_once -= size
        return True

    def _refill(self) -> None:
        now_ms = self._clock_ms()
        more = max(0, now_ms - self._left_ms) * COMPILED_CHARS_PER_S // 1_000
        self._left_ms = now_ms
        self._left = min(COMPILED_CHARS_MAX, self._left + more)
        self._left_at_once = min(AT_ONCE_CHARS_MAX, self._left_at_once + more)

    def _charge(self, size: int) -> None:
        if self._left <= 0:
            raise SystemBusy("[TOO_MANY_FILTERS]too many new filters at once, try again later")
        self._left -= size

    def _enqueue(self, expression: str, then: Callable[[], None]) -> None:
        if self._waiting_count >= WAITING_MAX:
            raise SystemBusy(
                "[TOO_MANY_FILTERS]too many requests wait for filters, try again later"
            )
        waiting = self._waiting.get(expression)
        if waiting is None:
            self._charge(len(expression))
            waiting = self._waiting[expression] = []
        waiting.append(then)
        self._waiting_count += 1
        if self._waiting_count == 1:
            self._call_soon(self._go_on)

    def _go_on(self) -> None:
        expression = next(iter(self._waiting))
        if self._parts is None:
            self._parts = compiling(expression)
        for _ in self._parts:
            self._call_soon(self._go_on)
            return
        self._parts = None
        ready = self._waiting.pop(expression)
        self._waiting_count -= len(ready)
        if self._waiting:
            self._call_soon(self._go_on)
        for then in ready:
            then()


def _ignore() -> None:
    """Do nothing: `check` raised, so its caller retries and needs no callback."""
