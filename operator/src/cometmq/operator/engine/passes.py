# SPDX-License-Identifier: Apache-2.0
"""The frame of every pass: read the object, keep its finalizer, reconcile, remove the finalizer.

A pass may be interrupted anywhere, and the next one starts from the beginning: it reads the current
state, and every write is idempotent or names the version or uid that it was based on.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from cometmq.operator.api import Body
from cometmq.operator.engine.context import Context
from cometmq.operator.engine.managed import Key, Managed

M = TypeVar("M", bound=Managed)


class Pass(ABC, Generic[M]):
    """Passes over one object; the fields kept between them are hints, and may be lost."""

    finalizer: ClassVar[str]

    def __init__(self, key: Key, context: Context) -> None:
        self.key = key
        self.context = context

    async def run(self) -> int | None:
        """Reconcile the object once; return the pause before the next pass, or None if it is gone.

        Raise ApiUnreachable or ApiRefused if a call to the API fails, and msgspec.ValidationError
        for an invalid spec; the next pass starts from the beginning.
        """
        body = await self.context.api.get(*self.key)
        if body is None:
            return None
        one = self.parse(body)
        if one.is_deleting:
            if not one.has_finalizer:
                return None
            if await self.is_released(one):
                return await self._let_go(body)
        elif one.has_finalizer != self.wants_finalizer(one):
            await self._set_finalizer(body, present=not one.has_finalizer)
            return 0
        pause_ms = await self.reconcile(one, body)
        return await self._let_go(body) if pause_ms is None else pause_ms

    async def _let_go(self, body: Body) -> int | None:
        await self.close()
        return None if await self._set_finalizer(body, present=False) else 0

    async def _set_finalizer(self, body: Body, *, present: bool) -> bool:
        return await self.context.set_finalizer(self.key, body, self.finalizer, present=present)

    @abstractmethod
    def parse(self, body: Body) -> M:
        """Raise msgspec.ValidationError for an invalid spec."""

    @abstractmethod
    async def reconcile(self, one: M, body: Body) -> int | None:
        """Read, decide, act and report; return the pause before the next pass, or None if the
        deletion of the object may go on.
        """

    @abstractmethod
    def note_failure(self, error: Exception) -> None:
        """Log why a pass failed."""

    def wants_finalizer(self, _one: M) -> bool:
        """Return whether the object has to wait for the operator before it is deleted."""
        return True

    async def is_released(self, one: M) -> bool:
        """Return whether the finalizer can be removed without a further step: true if the namespace
        is being deleted, which must not wait for brokers; the operator may have lost its rights.
        """
        return await self.context.is_ending(one.namespace)

    def view(self) -> object:
        """Return state outside of Kubernetes whose change starts a pass; None if there is none."""
        return None

    async def attend(self) -> None:
        """Do what cannot wait for a pass, until cancelled."""

    async def close(self) -> None:
        """Stop what runs between passes; the next pass starts it again."""
