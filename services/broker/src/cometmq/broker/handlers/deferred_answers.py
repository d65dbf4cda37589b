# SPDX-License-Identifier: Apache-2.0
"""Answers that are sent outside the dispatcher: to held pulls, and after reads from disk.

As in the dispatcher, any exception is caught: a bug in one call produces an error answer and a log
line, and the other calls of the same turn are still answered.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from cometmq.broker.broker import Broker
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.errors import CometError, CommandError, ServerError
from cometmq.remoting.transport.tasks import describe
from cometmq.runtime.incremental import Steps, TurnExpired
from cometmq.store.reads import Lookup, Pause

T = TypeVar("T")

ROW_BYTES: Final = 400
"""Memory of one queue in an answer: its row in a table (250 bytes), and its text."""


def answer(
    broker: Broker, call: Call[Any], work: Callable[[], Reply | msgspec.Struct | None]
) -> None:
    """Answer with the result of the work, or with its error."""
    try:
        reply = work()
    except CommandError as error:
        call.fail(error)
    except CometError as error:
        call.fail(ServerError(describe(error)))
    except Exception as error:  # noqa: BLE001  # see the module's head
        _fail(broker, call, error)
    else:
        if reply is not None:
            call.answer(reply)


def _fail(broker: Broker, call: Call[Any], error: Exception) -> None:
    text = describe(error)
    broker.log.error("handler.failed", code=call.code, peer=call.peer.address, error=text)
    call.fail(ServerError(text))


def look_up(
    broker: Broker,
    call: Call[Any],
    lookup: Lookup[T],
    conclude: Callable[[T], Reply | msgspec.Struct | None],
    *,
    is_part_of_put: bool = False,
    may_end_early: bool = False,
) -> None:
    """Answer with what `conclude` makes of the result of a search; immediately if
    all its data is in memory.

    For the options, see `StoreReads.look_up`. A search with `is_part_of_put` continues even if the
    client closes its connection.
    """

    def done(found: T) -> None:
        answer(broker, call, lambda: conclude(found))

    def failed(error: Exception) -> None:
        if isinstance(error, CommandError):
            call.fail(error)
            return
        broker.log.warning("read.failed", code=call.code, error=describe(error))
        call.fail(ServerError(describe(error)))

    broker.driver.reads.look_up(
        lookup,
        done,
        failed,
        call=None if is_part_of_put else call,
        is_part_of_put=is_part_of_put,
        may_end_early=may_end_early,
    )


async def found(broker: Broker, lookup: Lookup[T]) -> T:
    """Return the result of a search; raise CommandError if the search fails."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    broker.driver.reads.look_up(
        lookup, partial(settle, future), partial(_fail_search, broker, future)
    )
    return await future


async def stepwise(broker: Broker, call: Call[Any], work: Steps[T]) -> T:
    """Return the result of a long job for a request; the jobs of all requesters take turns.

    Raise SystemBusy, with nothing done, if its turn does not come in time.
    """
    jobs, deadlines = broker.pending.incremental, broker.driver.reads.deadlines
    left_s = deadlines.left_s(waited_ms(broker, call))
    try:
        return await jobs.run(work, broker.admission.requester(call), left_s)
    except TurnExpired:
        raise deadlines.expired(jobs.waiting_count) from None


def waited_ms(broker: Broker, call: Call[Any]) -> int:
    """Return how long ago a request was received."""
    return broker.clock.monotonic_ms() - call.received_ms if call.received_ms else 0


def paused(work: Steps[T], held_bytes: int) -> Lookup[T]:
    """Return a long job as a part of a search, which pauses after each step of the job.

    `held_bytes` is the memory that the job uses; see `Pause`.
    """
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        yield Pause(held_bytes)


def settle(future: asyncio.Future[T], result: T) -> None:
    """Set the result of a future, unless it was cancelled."""
    if not future.done():
        future.set_result(result)


def _fail_search(broker: Broker, future: asyncio.Future[T], error: Exception) -> None:
    if future.done():
        return
    if not isinstance(error, CommandError):
        broker.log.warning("read.failed", error=describe(error))
        error = ServerError(describe(error))
    future.set_exception(error)
