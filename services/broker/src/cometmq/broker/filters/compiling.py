# SPDX-License-Identifier: Apache-2.0
"""Bounds the time spent on SQL expressions: compiles short ones at once, longer ones in steps.

Any client may send expressions, and the longest takes 25 ms to compile. So the number of characters
compiled per second has an allowance. Expressions that exceed it are queued, and compiled one after
the other, a step in each turn of the loop.

Accounts (or addresses) take turns in the queue, and so do the connections of each. A quarter of the
allowance is reserved for accounts that have compiled little lately, and a quarter for these and for
connections that have, whatever their account. A flood of expressions, over any number of
connections, therefore delays an expression of another account by the time of one.
"""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from cometmq.broker.filters.sql import CHARS_MAX, compiling, is_compiled
from cometmq.remoting.errors import SystemBusy
from cometmq.remoting.transport.flow.fair_queue import FairQueue, Requester

COMPILED_CHARS_MAX: Final = 64 << 10
COMPILED_CHARS_PER_S: Final = 32 << 10
"""Characters compiled per burst and per second; each takes about 3 us on the loop."""
SHARE_CHARS_MAX: Final = 16 << 10
SHARE_CHARS_PER_S: Final = COMPILED_CHARS_PER_S // 8
"""The share of one account, and of one connection, in characters per burst and per second. If
both shares are used up, an expression may use the total allowance only down to `RESERVE_CHARS`; if
only the account's is, to half of that.
"""
RESERVE_CHARS: Final = COMPILED_CHARS_MAX // 2
AT_ONCE_CHARS_MAX: Final = 1 << 10
WAITING_MAX: Final = 3_000
"""Maximum number of callbacks that wait for expressions; one account may have half of them.
"""

Later = Callable[[Callable[[], None]], object]
Load = Callable[[Callable[[], None]], object]
"""Imports the parser on a thread, then calls the argument on the loop."""
Who = Callable[[], Requester]
"""Tells who has sent an expression; called only if it must be compiled, because this takes time."""


class _Waiting(NamedTuple):
    expression: str
    then: Callable[[], None]
    requester: Requester


def _at_once(work: Callable[[], None]) -> None:
    work()


class Shares:
    """The rest of the share of each account and connection; full shares have no entry."""

    def __init__(self) -> None:
        self._left: dict[object, tuple[int, int]] = {}  # characters left by the last charge; when

    def __len__(self) -> int:
        return len(self._left)

    def left(self, holder: object, now_ms: int) -> int:
        """Return how many characters of a share are left; negative if its holder has used more."""
        left, at_ms = self._left.get(holder, (SHARE_CHARS_MAX, now_ms))
        more = max(0, now_ms - at_ms) * SHARE_CHARS_PER_S // 1_000
        return min(SHARE_CHARS_MAX, left + more)

    def charge(self, holder: object, size: int, now_ms: int) -> None:
        """Subtract the size of an expression from a share. The result has a lower bound, so that
        the share is positive again within a bounded time.
        """
        left = max(self.left(holder, now_ms) - size, -COMPILED_CHARS_MAX)
        self._left.pop(holder, None)
        self._left[holder] = left, now_ms
        for first in list(self._left):
            if self.left(first, now_ms) < SHARE_CHARS_MAX:
                break
            del self._left[first]


class Compiler:
    """Compiles expressions within the current allowance, and queues expressions that exceed it."""

    def __init__(
        self, clock_ms: Callable[[], int], call_soon: Later = _at_once, load: Load | None = None
    ) -> None:
        """`call_soon` schedules the next step in a later turn of the loop.

        `load` imports the parser for the first expression; until it, or the owner of the compiler,
        has called `note_loaded`, expressions wait. If it is None, the parser counts as imported.
        """
        self._load = load
        self._is_loading = load is not None
        self._clock_ms = clock_ms
        self._call_soon = call_soon
        self._left = COMPILED_CHARS_MAX
        self._left_at_once = AT_ONCE_CHARS_MAX
        self._left_ms = clock_ms()
        self._shares = Shares()
        self._waiting: FairQueue[_Waiting] = FairQueue(WAITING_MAX)
        self._requesters: dict[str, list[Requester]] = {}  # those that wait, by expression
        self._current: _Waiting | None = None
        self._parts: Iterator[None] = iter(())

    def note_loaded(self) -> None:
        """Start compiling: the parser has been imported."""
        self._load, self._is_loading = None, False
        if self._waiting and self._current is None:
            self._call_soon(self._go_on)

    def check(self, expression: str, who: Who) -> None:
        """Raise SystemBusy unless the expression is already compiled or may be compiled at once."""
        if self._may_now(expression, who):
            return
        requester = who()
        if requester not in self._requesters.get(expression, ()):
            self._enqueue(expression, _ignore, requester)
        if not is_compiled(expression):
            raise SystemBusy("[COMPILING_FILTER]the filter is being compiled, try again later")

    def when_ready(self, expression: str, then: Callable[[], None], who: Who) -> None:
        """Call `then`, now or in a later turn of the loop, once `check` accepts the expression.

        Raise SystemBusy if too many callbacks are pending.
        """
        if self._may_now(expression, who):
            then()
        else:
            self._enqueue(expression, then, who())

    def _may_now(self, expression: str, who: Who) -> bool:
        size = len(expression)
        if size > CHARS_MAX or is_compiled(expression):  # the parser refuses longer ones at once
            return True
        if self._is_loading:
            return False
        self._refill()
        if size > self._left_at_once or expression in self._requesters:
            return False
        self._charge(size, who())
        self._left_at_once -= size
        return True

    def _refill(self) -> None:
        now_ms = self._clock_ms()
        more = max(0, now_ms - self._left_ms) * COMPILED_CHARS_PER_S // 1_000
        self._left_ms = now_ms
        self._left = min(COMPILED_CHARS_MAX, self._left + more)
        self._left_at_once = min(AT_ONCE_CHARS_MAX, self._left_at_once + more)

    def _charge(self, size: int, requester: Requester) -> None:
        shares, now_ms = self._shares, self._left_ms
        reserved = 0
        if shares.left(requester.owner, now_ms) <= 0:
            has_share = shares.left(requester, now_ms) > 0
            reserved = RESERVE_CHARS // 2 if has_share else RESERVE_CHARS
        if self._left <= reserved:
            raise SystemBusy("[TOO_MANY_FILTERS]too many new filters at once, try again later")
        self._left -= size
        shares.charge(requester.owner, size, now_ms)
        shares.charge(requester, size, now_ms)

    def _enqueue(self, expression: str, then: Callable[[], None], requester: Requester) -> None:
        others = self._requesters.get(expression)
        if others is None:
            self._refill()
            self._charge(len(expression), requester)
            others = self._requesters[expression] = []
        is_first = not self._waiting and self._current is None
        if not self._waiting.put(requester, _Waiting(expression, then, requester)):
            if not others:
                del self._requesters[expression]
            raise SystemBusy(
                "[TOO_MANY_FILTERS]too many requests wait for filters, try again later"
            )
        others.append(requester)
        if self._load is not None:
            load, self._load = self._load, None
            load(self.note_loaded)
        elif is_first and not self._is_loading:
            self._call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._current is None:
            self._current = self._waiting.pop()
            expression = self._current.expression  # may be compiled already, for another connection
            self._parts = iter(()) if is_compiled(expression) else compiling(expression)
        for _ in self._parts:
            self._call_soon(self._go_on)
            return
        expression, then, requester = self._current
        self._current = None
        others = self._requesters[expression]
        others.remove(requester)
        if not others:
            del self._requesters[expression]
        if self._waiting:
            self._call_soon(self._go_on)
        then()


def _ignore() -> None:
    """Do nothing: `check` raised, so its caller retries and needs no callback."""
