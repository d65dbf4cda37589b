# SPDX-License-Identifier: Apache-2.0
"""Answers given outside of the dispatcher: to what was held, or had to wait for the disk."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from cometmq.broker.broker import Broker
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.errors import CometError, CommandError, ServerError
from cometmq.runtime.tasks import describe
from cometmq.store.reads import Lookup

T = TypeVar("T")


def answer(call: Call[Any], work: Callable[[], Reply | msgspec.Struct | None]) -> None:
    """Answer with what the work returns; that it fails must not stop what else goes on."""
    try:
        reply = work()
    except CommandError as error:
        call.fail(error)
    except CometError as error:
        call.fail(ServerError(describe(error)))
    else:
        if reply is not None:
            call.answer(reply)


def look_up(
    broker: Broker,
    call: Call[Any],
    lookup: Lookup[T],
    conclude: Callable[[T], Reply | msgspec.Struct | None],
) -> None:
    """Answer with what is made of a search's result: at once if all it reads is in memory."""

    def done(found: T) -> None:
        answer(call, lambda: conclude(found))

    def failed(error: Exception) -> None:
        if isinstance(error, CommandError):
            call.fail(error)
            return
        broker.log.warning("read.failed", code=call.code, error=describe(error))
        call.fail(ServerError(describe(error)))

    broker.driver.look_up(lookup, done, failed, peer=call.peer)
