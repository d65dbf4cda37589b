# SPDX-License-Identifier: Apache-2.0
"""Call the handler of each request, and turn its result or exception into an answer.

Every answer goes through `Outlet.deliver` of its connection, called here for an immediate answer
and by `Call.answer` for a later one. This module is the only place that maps exceptions to
response codes, and one of three that catch any exception: a bug in a handler results in an answer
and a log line, and never ends a connection.

Hot path
    `Dispatcher.serve` runs once per received chunk, its loop once per request; hooks and
    bounds are examined once per chunk. Budget 0.4 us per request, not counting the handler
    itself (bench/micro/bench_transport.py).
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from cometmq.remoting import remarks
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.errors import CommandError
from cometmq.remoting.raw import FLAG_ONEWAY
from cometmq.remoting.transport.bodies import weight_of
from cometmq.remoting.transport.flow.connected import WORKING, Connected
from cometmq.remoting.transport.flow.turns import SLICE_S, Timed
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.typed_decode import HeaderFault


class InFlight:
    """Counts the requests in flight, that is unanswered ones, by connection and in total.

    Requests that handlers or lanes answer at once never count, nor do those of closed connections.
    A large request counts as several (`weight_of`).
    """

    def __init__(self, hub: Hub) -> None:
        self.one_max = hub.settings.in_flight_per_connection_max
        self.total_max = hub.settings.in_flight_max
        self._stats = hub.stats

    def exceeds(self, peer: Connected, more: int) -> bool:
        """Return whether this number of further requests would exceed a limit."""
        is_above = self._stats.in_flight + more > self.total_max
        return is_above or peer.in_flight + more > self.one_max

    def add(self, peer: Connected, count: int) -> None:
        """Count requests that will be answered later."""
        peer.in_flight += count
        self._stats.in_flight += count

    def answered(self, peer: Connected, count: int = 1) -> None:
        """Subtract requests of a connection that have been answered."""
        peer.in_flight -= count
        self._stats.in_flight -= count

    def forget(self, peer: Connected) -> None:
        """Subtract all requests of a connection that has ended."""
        self.answered(peer, peer.in_flight)


ContextT = TypeVar("ContextT")
Answer = Reply | Struct
Result = Answer | None | Awaitable[Answer | None]
Handler = Callable[[ContextT, Call[Any]], Result]
Before = Callable[[ContextT, Call[Any]], None]
After = Callable[[ContextT, Call[Any], Answer], None]
Refused = Callable[[ContextT, Call[Any], int, str], None]

CROWD_TASKS: Final = 2_048
"""While more slow handlers than this run, each connection may have only a few
(`Intake.task_begun`). A task takes 4 KiB.
"""
CROWD_SHARES: Final = ((8_192, 1), (CROWD_TASKS, 32))
"""Pairs of a number of slow handlers, and of how many a connection may have while more than that
number are running; the largest number first.
"""

MEASURED: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
"""Codes of requests whose handlers also run while the peer only `has_small_room`: they know the
size of the answer before they build it.
"""


class InOrder:
    """The slow work of a handler during which the connection serves no other request.

    Otherwise, later requests of the connection would overtake this one.
    """

    __slots__ = ("_work",)

    def __init__(self, work: Coroutine[Any, Any, Answer | None]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, Answer | None]:
        return self._work.__await__()

    def close(self) -> None:
        """Give up the work before it has started."""
        self._work.close()


class _NotSupported(CommandError):
    """Raised for a request that the port does not know."""


class NoRoom(Exception):  # not an error: the request is served later
    """Raised before a handler runs if its large answer has no room: the connection must wait with
    this request and all later ones.
    """


class Hooks(Struct, Generic[ContextT], frozen=True):
    """Functions that run before every handler and on every answer."""

    before: tuple[Before[ContextT], ...] = ()
    """A function may refuse a call by raising CommandError, as access control does."""
    after: tuple[After[ContextT], ...] = ()
    refused: Refused[ContextT] | None = None
    """Called with the code and the remark of each request that is refused with an error."""


class Dispatcher(Generic[ContextT]):
    """Serves the requests of one port: calls their handlers, and sends the results."""

    def __init__(
        self,
        handlers: Mapping[int, Handler[ContextT]],
        context: ContextT,
        hooks: Hooks[ContextT],
        hub: Hub,
        *,
        large: Collection[int] = (),
    ) -> None:
        """Requests with the codes in `large` wait while there is no room for their answers."""
        self.is_limited = False
        """Whether this port lacks handlers that other ports have."""
        self._unlimited = {
            int(code): _guarded(handler, hooks.before) for code, handler in handlers.items()
        }
        self._handlers = {
            code: _admitted(handler, is_measured=code in MEASURED) if code in large else handler
            for code, handler in self._unlimited.items()
        }
        self._context = context
        self.after = hooks.after
        self._refused = hooks.refused
        self.in_flight = InFlight(hub)
        self._tasks = hub.tasks
        self._turns = hub.turns
        self._stats = hub.stats
        self._log = hub.log
        self._task_weight = 0  # as `weight_of` counts the requests that tasks serve

    def serve(  # noqa: C901, PLR0912  # a call for each step would cost a tenth of the loop
        self, peer: Connected, calls: Sequence[Call[Any]]
    ) -> int:
        """Serve calls in order, but stop if the peer must catch up, or if the calls take long;
        return how many were served.
        """
        find_handler, context, deliver = self._handlers.get, self._context, peer.outlet.deliver
        end = monotonic() + SLICE_S
        may_overflow = self.in_flight.exceeds(peer, len(calls))
        in_flight, served, refused = 0, len(calls), 0
        for index, call in enumerate(calls):
            try:
                if may_overflow and self.in_flight.exceeds(peer, in_flight + 1):
                    result: Result = self._refusal(peer, call)
                else:
                    result = find_handler(call.code, _unknown)(context, call)
            except NoRoom:
                served = index
                break
            except Exception as error:  # noqa: BLE001  # see the module's head
                result, refused = self._error(call, error), refused + 1
            if result is None:
                if not call.flag & FLAG_ONEWAY:
                    in_flight += weight_of(call)
            elif not isinstance(result, Struct):
                in_flight += 0 if call.flag & FLAG_ONEWAY else weight_of(call)
                if self._start(peer, call, result):
                    end = 0.0  # the connection waits
            elif call.flag & FLAG_ONEWAY:
                continue
            elif call.is_answered:  # the handler answered it itself; answered() subtracted it
                in_flight += weight_of(call)
            else:
                call.is_answered = True
                if not deliver(call, result):
                    served = index + 1
                    break
            if monotonic() > end:
                served = index + 1
                break
        if in_flight:
            self.in_flight.add(peer, in_flight)
        self._stats.requests += served
        if served > refused:
            peer.is_served = True
        return served

    def serve_postponed(self, peer: Connected, call: Call[Any]) -> None:
        """Serve a call that waited for room, and has been counted as in flight."""
        try:
            result = self._unlimited[call.code](self._context, call)
        except Exception as error:  # noqa: BLE001  # see the module's head
            result = self._error(call, error)
        if result is None:
            return
        if isinstance(result, Struct):
            call.answer(result)
        else:
            self._start(peer, call, result)

    def fail(self, peer: Connected, fault: HeaderFault) -> None:
        """Answer a request whose fields do not fit its command."""
        call = fault.call
        if not call.flag & FLAG_ONEWAY:
            error = fault.error if call.code in self._handlers else _not_supported(call.code)
            peer.outlet.deliver(call, Reply(code=error.code, remark=error.remark))
        self._log.debug("request.malformed", code=call.code, error=fault.error.remark)

    def run_after(self, call: Call[Any], answer: Answer) -> None:
        """Pass an answer to the hooks; a failing hook is logged and has no other effect."""
        for hook in self.after:
            try:
                hook(self._context, call, answer)
            except Exception as error:  # noqa: BLE001  # see the module's head
                self.failure(call, error)

    def _start(self, peer: Connected, call: Call[Any], work: Awaitable[Answer | None]) -> bool:
        """Run a slow handler as a task; refuse the call if too many tasks are running.

        Return whether the connection may serve nothing else meanwhile.

        Handlers of closed connections and of oneway requests are not in flight, but they count as
        tasks, with the weight of their requests, until they end. Otherwise a peer could pile up
        tasks by reconnecting.
        """
        is_in_order, weight = isinstance(work, InOrder), weight_of(call)
        total_max = self.in_flight.total_max
        if len(self._tasks) < total_max and self._task_weight + weight <= total_max:
            if is_in_order:
                peer.intake.wait_for_work()
            done = partial(peer.intake.resume_from, WORKING) if is_in_order else None
            finish = self._finish(peer, call, work, done)
            task = self._tasks.spawn(finish, name=f"remoting-{call.code}")
            self._task_weight += weight
            shares = (share for count, share in CROWD_SHARES if self._task_weight > count)
            must_wait = peer.intake.task_begun(next(shares, total_max))
            task.add_done_callback(lambda _: self._ended(peer, work, weight))
            return is_in_order or must_wait
        _close(work)
        call.answer(self._refusal(peer, call))
        return False

    def _ended(self, peer: Connected, work: Awaitable[Answer | None], weight: int) -> None:
        self._task_weight -= weight
        peer.intake.task_ended()
        _close(work)  # the task may have been cancelled before it began

    async def _finish(
        self,
        peer: Connected,
        call: Call[Any],
        work: Awaitable[Answer | None],
        done: Callable[[], None] | None,
    ) -> None:
        """Answer with the result of the work, then call `done`."""
        try:
            try:
                await self._turns.admitted(peer)
                answer = await Timed(work, peer.intake.charge)
            except Exception as error:  # noqa: BLE001  # see the module's head
                answer = self._error(call, error)
            if answer is not None:
                call.answer(answer)
        finally:
            if done is not None:
                done()

    def failure(self, call: Call[Any], error: Exception) -> Reply:
        """Log and count a bug in a handler; return the answer that reports it."""
        self._stats.handler_failures += 1
        remark = f"{type(error).__name__}: {error}"
        self._log.error("handler.failed", code=call.code, peer=call.peer.address, error=remark)
        return Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark)

    def note_refused(self, call: Call[Any], code: int, remark: str) -> None:
        """Call the hook for refused requests, for one that no handler gets."""
        if self._refused is not None:
            self._refused(self._context, call, code, remark)

    def too_large(self, call: Call[Any], size: int) -> Reply:
        """Log an answer that is too large for a frame, for which the peer would close the
        connection; return an error answer in its place.
        """
        self._log.warning("answer.too_large", code=call.code, peer=call.peer.address, bytes=size)
        remark = f"the answer has {size} bytes, more than one frame may have: ask for less"
        return Reply(code=ResponseCode.SYSTEM_ERROR, remark=remark)

    def _refusal(self, peer: Connected, call: Call[Any]) -> Reply:
        self._stats.requests_refused += 1
        remark = remarks.rejected(in_flight=peer.in_flight, waited_ms=0)
        self.note_refused(call, ResponseCode.SYSTEM_BUSY, remark)
        return Reply(code=ResponseCode.SYSTEM_BUSY, remark=remark)

    def _error(self, call: Call[Any], error: Exception) -> Reply:
        if not isinstance(error, CommandError):
            return self.failure(call, error)
        if not isinstance(error, _NotSupported):
            self.note_refused(call, error.code, error.remark)
        return Reply(code=error.code, remark=error.remark)


def _close(work: Awaitable[Answer | None]) -> None:
    """Close work that has not begun, without a warning; work that has ended is unaffected."""
    if isinstance(work, (Coroutine, InOrder)):
        work.close()


def _guarded(handler: Handler[ContextT], before: tuple[Before[ContextT], ...]) -> Handler[ContextT]:
    """Return the handler wrapped in its hooks, or the handler itself if there are none."""
    if not before:
        return handler

    def guarded(context: ContextT, call: Call[Any]) -> Result:
        for hook in before:
            hook(context, call)
        return handler(context, call)

    return guarded


def _admitted(handler: Handler[ContextT], *, is_measured: bool) -> Handler[ContextT]:
    """Return the handler of a request with a large answer, which runs only if there is room."""

    def admitted(context: ContextT, call: Call[Any]) -> Result:
        peer = call.peer
        if peer.has_room or (is_measured and peer.has_small_room):
            return handler(context, call)
        if not peer.intake.postpone(call):
            raise NoRoom
        return None

    return admitted


def _unknown(_context: object, call: Call[Any]) -> Result:
    raise _not_supported(call.code)


def _not_supported(code: int) -> _NotSupported:
    remark = remarks.request_not_supported(code)
    return _NotSupported(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
