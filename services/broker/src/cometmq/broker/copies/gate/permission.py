# SPDX-License-Identifier: Apache-2.0
"""Delays requests and answers until the copies have confirmed what they need.

A read waits until consumers may see the ends of queues; the answer to a change of a table waits
until the copies have the change. Each wait ends with an error after `WAIT_MS_MAX`, or as soon as a
different broker leads.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from cometmq.remoting import remarks
from cometmq.remoting.command import Call
from cometmq.remoting.errors import ServiceNotAvailable, SystemBusy
from cometmq.remoting.transport.dispatch import Handler, Result

ContextT = TypeVar("ContextT")

WAIT_MS_MAX: Final = 3_000
"""How long a request may wait for a confirmation; RocketMQ's clients wait 3 to 5 seconds."""
CHECK_PAUSE_MS: Final = 20


class Confirming(Protocol):
    """The questions that `Permission` asks the leadership of this broker (`Confirmation`)."""

    def has_enough_copies(self) -> bool: ...

    def has_confirmed_tables(self, tables: int) -> bool: ...

    def may_read(self) -> bool: ...

    def may_answer_unlogged(self) -> bool: ...

    async def progress(self) -> None: ...


class Permission:
    def __init__(
        self,
        *,
        changes: Callable[[], int],
        may_read_copy: Callable[[], bool],
        now_ms: Callable[[], int],
    ) -> None:
        """`changes` journals pending table changes, and returns their number in this epoch."""
        self.confirmation: Confirming | None = None
        self.wait_ms_max = WAIT_MS_MAX
        self._changes = changes
        self._may_read_copy = may_read_copy
        self._now_ms = now_ms

    def may_read(self) -> bool:
        leader = self.confirmation
        return self._may_read_copy() if leader is None else leader.may_read()

    def change(self, handler: Handler[ContextT]) -> Handler[ContextT]:
        async def change(context: ContextT, call: Call[Any]) -> Any:
            leader = self._leading()
            if not leader.has_enough_copies():
                raise ServiceNotAvailable(
                    "nothing was changed: fewer copies of this broker are in sync than minInSync,"
                    " so the change could be lost; repair the other copies first (cometmq ha"
                    " status)"
                )
            return await self._confirmed(
                leader, handler(context, call), has_enough=leader.has_enough_copies
            )

        return change

    def commit(self, handler: Handler[ContextT]) -> Handler[ContextT]:
        unlogged = self.unlogged(handler)

        def commit(context: ContextT, call: Call[Any]) -> Result:
            result = unlogged(context, call)
            return result if call.is_oneway else self._confirmed(self._leading(), result)

        return commit

    async def _confirmed(
        self, leader: Confirming, result: Result, *, has_enough: Callable[[], bool] = lambda: True
    ) -> Any:
        """Return an answer once the copies have its table changes, and `has_enough` holds."""
        answer = await settled(result)
        await asyncio.sleep(0)  # all changes of this turn become one entry of the journal
        changes = self._changes()
        await self._until(
            leader,
            lambda: has_enough() and leader.has_confirmed_tables(changes),
            "the change is stored here, but the other copies have not confirmed it",
        )
        return answer

    def unlogged(self, handler: Handler[ContextT]) -> Handler[ContextT]:
        async def later(leader: Confirming, context: ContextT, call: Call[Any]) -> Any:
            await self._until(
                leader, leader.may_answer_unlogged, "the other copies have not been heard from"
            )
            return await settled(handler(context, call))

        def unlogged(context: ContextT, call: Call[Any]) -> Result:
            leader = self._leading()
            if leader.may_answer_unlogged():
                return handler(context, call)
            return later(leader, context, call)

        return unlogged

    def read(self, handler: Handler[ContextT]) -> Handler[ContextT]:
        async def later(context: ContextT, call: Call[Any]) -> Any:
            await self._until(self.confirmation, self.may_read, remarks.ENDS_UNCONFIRMED)
            return await settled(handler(context, call))

        def read(context: ContextT, call: Call[Any]) -> Result:
            return handler(context, call) if self.may_read() else later(context, call)

        return read

    def _leading(self) -> Confirming:
        if self.confirmation is None:
            raise not_the_master()
        return self.confirmation

    async def _until(
        self, leader: Confirming | None, condition: Callable[[], bool], missing: str
    ) -> None:
        """Wait for a condition while the same broker leads; raise SystemBusy after a while."""
        deadline_ms = self._now_ms() + self.wait_ms_max
        while not condition():
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0 or self.confirmation is not leader:
                raise SystemBusy(f"{missing}; try again")
            pause_ms = min(left_ms, CHECK_PAUSE_MS)
            if leader is None:
                await asyncio.sleep(pause_ms / 1000)
                continue
            try:
                async with asyncio.timeout(pause_ms / 1000):
                    await leader.progress()
            except TimeoutError:
                continue


def not_the_master(reason: str = "") -> ServiceNotAvailable:
    return ServiceNotAvailable(f"{remarks.NOT_THE_MASTER} its group now{reason and f', {reason}'}")


async def settled(result: Result) -> Any:
    return await result if inspect.isawaitable(result) else result
