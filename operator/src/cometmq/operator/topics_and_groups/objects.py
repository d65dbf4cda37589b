# SPDX-License-Identifier: Apache-2.0
"""Runs the tasks of all Topics and ConsumerGroups, and decides which object owns a name."""

import asyncio
import itertools
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from cometmq.operator.api import ApiRefused, ApiUnreachable, Body
from cometmq.operator.api_types.topics_and_groups import PLURALS
from cometmq.operator.engine.context import Context
from cometmq.operator.engine.engine import RETRY_MS, Engine
from cometmq.operator.engine.managed import Key
from cometmq.operator.metrics import DeclaredFigures, OperatorFigures
from cometmq.operator.topics_and_groups.declared_pass import DeclaredPass
from cometmq.operator.topics_and_groups.item import Claim, declared_of

PASSES_MAX: Final = 8
"""Concurrent passes: each reads a table of all topics from every broker."""


class DeclaredObjects(Engine[DeclaredPass]):
    def __init__(self, context: Context, figures: OperatorFigures) -> None:
        super().__init__(context, figures.count)
        self._claims: dict[Key, Claim] = {}
        self._marks: dict[Key, tuple[object, ...]] = {}
        """The parts of each object, as last seen, whose change starts a pass."""
        self._is_loaded = asyncio.Event()
        self.turns = asyncio.Semaphore(PASSES_MAX)

    def new(self, key: Key) -> DeclaredPass:
        return DeclaredPass(key, self.context, self)

    def start(self, namespaces: Sequence[str]) -> None:
        """Load the claims in these namespaces in the background; without namespaces, in all.

        Passes begin only once the claims are loaded. Otherwise, the younger of two objects might
        change a topic that the older one owns.
        """
        self.tasks.keep(lambda: self._load(tuple(namespaces) or ("",)), name="declared-claims")

    async def loaded(self) -> None:
        """Wait until the claims are known."""
        await self._is_loaded.wait()

    def changed(self, kind: str, body: Body) -> None:
        """Note an object that was created or changed; start a pass over it, unless
        only its status has changed.

        The operator itself writes the status, so a shrinking backlog would otherwise cause passes
        without a pause.
        """
        self._note(kind, body)
        metadata = body["metadata"]
        key = (kind, metadata["namespace"], metadata["name"])
        parts = ("uid", "generation", "annotations", "finalizers", "deletionTimestamp")
        mark = tuple(metadata.get(part) for part in parts)
        if self._marks.get(key) != mark or key not in self:
            self._marks[key] = mark
            self.wake(key)

    def deleted(self, kind: str, namespace: str, name: str) -> None:
        """Forget an object; another object that declares the same name takes over."""
        self.ended((kind, namespace, name))

    def ended(self, key: Key) -> None:
        self._marks.pop(key, None)
        self._forget(key)

    def competing(self, claim: Claim) -> list[Claim]:
        """Return the claims of other objects to the same entry that are not being deleted."""
        return [one for one in self._claims.values() if claim.competes(one)]

    def has_unseen(self, claim: Claim) -> bool:
        """Return whether no pass has looked yet for the brokers of an object that may compete."""
        others = [one for one in self._claims.values() if claim.is_namesake(one)]
        return any(one.brokers is None for one in others)

    def found(self, claim: Claim) -> None:
        """Note the brokers of a claim; wake the objects that it turns out to compete with."""
        before = self._claims.get(claim.key)
        if before is not None and before.brokers != claim.brokers:
            self._claims[claim.key] = claim
            self._wake_all(claim)

    def figures(self) -> list[DeclaredFigures]:
        return [DeclaredFigures(*work.key, work.status) for work in self]

    async def _load(self, namespaces: Iterable[str]) -> None:
        while not self._is_loaded.is_set():
            try:
                for kind, namespace in itertools.product(PLURALS, namespaces):
                    for body in await self.context.api.list_all(kind, namespace):
                        self._note(kind, body)
                self._is_loaded.set()
            except (ApiUnreachable, ApiRefused) as error:
                self.context.log.warning("declared.unattended", object="all", error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)

    def _note(self, kind: str, body: Body) -> None:
        try:
            item = declared_of(kind, body)
        except msgspec.ValidationError:  # of another version of the definition: its pass reports it
            return
        if item.is_deleting:
            self._forget(item.key)
            return
        before, work = self._claims.get(item.key), self.get(item.key)
        claim = self._claims[item.key] = item.claim if work is None else work.claim_of(item)
        if before is not None and before != claim:
            self._wake_all(before)

    def _forget(self, key: Key) -> None:
        claim = self._claims.pop(key, None)
        if claim is not None:
            self._wake_all(claim)

    def _wake_all(self, claim: Claim) -> None:
        for one in self.competing(claim):
            self.wake(one.key)
