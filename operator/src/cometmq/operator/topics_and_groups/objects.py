# SPDX-License-Identifier: Apache-2.0
"""Runs the tasks of all Topics and ConsumerGroups, and decides which object owns a name."""

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from cometmq.operator.managed import Key
from cometmq.operator.metrics import DeclaredFigures, OperatorFigures
from cometmq.operator.passes import Context, ObjectTasks
from cometmq.operator.topics_and_groups.declared_pass import DeclaredPass
from cometmq.operator.topics_and_groups.item import Claim, Entry

PASSES_MAX: Final = 8
"""Concurrent passes: each reads a table of all topics from every broker."""


class DeclaredObjects(ObjectTasks[DeclaredPass]):
    def __init__(self, context: Context, figures: OperatorFigures) -> None:
        super().__init__(context, figures.count)
        self._found: dict[Key, Claim] = {}
        """The claims with the brokers that passes have found."""
        self._gone: set[Claim] = set()
        """Claims in kopf's index whose objects are gone: after a lost watch, kopf lists what
        exists, and is not told what was deleted meanwhile."""
        self._marks: dict[Key, tuple[object, ...]] = {}
        """The parts of each object, as last seen, whose change starts a pass."""
        self.turns = asyncio.Semaphore(PASSES_MAX)

    def new(self, key: Key) -> DeclaredPass:
        return DeclaredPass(key, self.context, self)

    def changed(self, key: Key, entry: Entry, mark: tuple[object, ...]) -> None:
        """Start passes over an object and its namesakes unless its `mark` is as before.

        The operator itself writes statuses, so a shrinking backlog would otherwise cause passes
        without a pause.
        """
        if self._marks.get(key) != mark or key not in self:
            self._marks[key] = mark
            self.wake(key)
            self._wake_namesakes(key, entry)

    def deleted(self, key: Key, entry: Entry) -> None:
        """Start passes over the object, which end its task, and over its namesakes."""
        self.wake(key)
        self._wake_namesakes(key, entry)

    def ended(self, key: Key) -> None:
        self._marks.pop(key, None)
        self._found.pop(key, None)
        for entry, claims in list(self.context.claims.items()):
            gone = {one for one in list(claims) if one.key == key}
            self._gone |= gone
            if gone:
                self._wake_namesakes(key, entry)

    def competing(self, claim: Claim) -> list[Claim]:
        """Return the claims of other objects to the same entry that are not being deleted."""
        return [one for one in self._namesakes(claim.key, claim.entry) if claim.competes(one)]

    def has_unseen(self, claim: Claim) -> bool:
        """Return whether no pass has looked yet for the brokers of an object that may compete."""
        return any(one.brokers is None for one in self._namesakes(claim.key, claim.entry))

    def found(self, claim: Claim) -> None:
        """Note the brokers of a claim; wake the objects that it turns out to compete with."""
        before, self._found[claim.key] = self._found.get(claim.key), claim
        if before is None or before.brokers != claim.brokers:
            self._wake_namesakes(claim.key, claim.entry)

    def figures(self) -> list[DeclaredFigures]:
        return [DeclaredFigures(*work.key, work.status) for work in self]

    def _namesakes(self, key: Key, entry: Entry) -> Iterator[Claim]:
        """Yield the claims of other objects to an entry, with the brokers that passes found."""
        for one in list(self.context.claims.get(entry, ())):
            if one.key != key and one not in self._gone:
                found = self._found.get(one.key)
                is_same = found is not None and found.name_servers == one.name_servers
                brokers = found.brokers if found is not None and is_same else None
                yield msgspec.structs.replace(one, brokers=brokers)

    def _wake_namesakes(self, key: Key, entry: Entry) -> None:
        for one in self._namesakes(key, entry):
            self.wake(one.key)
