# SPDX-License-Identifier: Apache-2.0
"""Passes over Topics and ConsumerGroups: read the brokers, decide, change them, write the status;
and which object owns a name.

Every change sets absolute values, so a pass may be interrupted anywhere, and repeated.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from cometmq.operator.api import ApiUnreachable, Body
from cometmq.operator.api_types.topics_and_groups import DeclaredStatus
from cometmq.operator.managed import Key, status_body
from cometmq.operator.metrics import DeclaredFigures, OperatorFigures
from cometmq.operator.passes import Context, ObjectTasks, Pass
from cometmq.operator.secrets import SecretFault
from cometmq.operator.topics_and_groups import decide
from cometmq.operator.topics_and_groups.decide import BrokerSeen, Outcome, Plan, Reason, Wait
from cometmq.operator.topics_and_groups.item import Claim, Declared, Entry, declared_of, owner
from cometmq.operator.topics_and_groups.suite import DeclaredBrokers, is_outage, open_admin
from cometmq.operator.unconsumed import Quiet
from cometmq.remoting.errors import CometError

PASSES_MAX: Final = 8
"""Concurrent passes: each reads a table of all topics from every broker."""
RESYNC_FACTOR: Final = 10
"""Passes over these objects are this many times rarer than those over broker groups, because
reading from brokers costs more than reading objects. Changes on brokers cause no events, so manual
changes are repaired within five minutes by default.
"""
WAIT_MS: Final = 5_000
"""Pause between passes while a change waits for consumers or producers."""
BACK_OFF_MS: Final = 2_000
BACK_OFF_MAX_MS: Final = 60_000
UNSEEN: Final = Wait(
    Reason.BROKERS_UNREACHABLE,
    "another object declares the same name, and the operator has not looked at its brokers yet",
)


class DeclaredPass(Pass[Declared]):
    """Passes over one Topic or ConsumerGroup."""

    def __init__(self, key: Key, context: Context, rivals: "DeclaredObjects") -> None:
        super().__init__(key, context)
        self._rivals = rivals
        self._quiet = Quiet(context.clock.monotonic_ms, context.quiet_ms)
        self._failures = 0
        self._found: Claim | None = None
        """The claim with the brokers that the last pass found."""
        self._reason: str | None = None
        self.status: DeclaredStatus | None = None
        """The status of the last complete pass."""

    def parse(self, body: Body) -> Declared:
        return declared_of(self.key[0], body)

    def claim_of(self, item: Declared) -> Claim:
        """Return the claim of an object, with the brokers that the last pass found."""
        claim, found = item.claim, self._found
        if found is None or found.name_servers != claim.name_servers:
            return claim
        return msgspec.structs.replace(claim, brokers=found.brokers)

    def wants_finalizer(self, item: Declared) -> bool:
        return item.is_to_delete

    async def is_released(self, item: Declared) -> bool:
        """Return whether the finalizer can be removed at once, because the entry
        stays on the brokers.
        """
        if not item.is_to_delete or self._rivals.competing(self.claim_of(item)):
            return True
        return await super().is_released(item)

    async def run(self) -> int | None:
        async with self._rivals.turns:
            return await super().run()

    async def reconcile(self, item: Declared, body: Body) -> int | None:
        """Read the entry on the brokers, make the next changes, and write the status."""
        before = msgspec.convert(body.get("status") or {}, DeclaredStatus)
        if (rival := self._rival(item)) is not None:
            self._note(item, rival.brokers or frozenset())
            await self._finish(item, Outcome(owner=rival), before)
            return self._resync_ms
        outcome, is_deleted = await self._change(item, before)
        if is_deleted:
            self.report("Deleted", f"{item.entry} is deleted at all its brokers")
            return None
        await self._finish(item, outcome, before)
        is_to_release = item.is_deleting and outcome.owner is not None
        return 0 if is_to_release else self._pause_ms(outcome)

    def _rival(self, item: Declared) -> Claim | None:
        """Return the claim of another object that owns the entry: an older one or, once this object
        is being deleted, any other. None if there is none.
        """
        claim = self.claim_of(item)
        others = self._rivals.competing(claim)
        oldest = owner(others[0] if others and item.is_deleting else claim, others)
        return None if oldest.key == claim.key else oldest

    def _note(self, item: Declared, brokers: frozenset[str]) -> None:
        """Note the addresses of the masters in the object's cluster."""
        self._found = msgspec.structs.replace(item.claim, brokers=brokers)
        self._rivals.found(self._found)

    @property
    def _resync_ms(self) -> int:
        return self.context.resync_ms * RESYNC_FACTOR

    async def _change(self, item: Declared, before: DeclaredStatus) -> tuple[Outcome, bool]:
        """Make the next changes on the brokers; return the outcome, and whether the entry has been
        deleted.
        """
        seen: tuple[BrokerSeen, ...] = ()
        try:
            async with await open_admin(item, self.context.secrets, self.context.log) as admin:
                suite = DeclaredBrokers(admin, item)
                seen = await suite.look((one.name for one in before.brokers), self._quiet.is_quiet)
                self._note(item, suite.addresses)
                if (rival := self._rival(item)) is not None:
                    return Outcome(owner=rival), False
                if item.is_deleting and self._rivals.has_unseen(self.claim_of(item)):
                    return Outcome(seen=seen, waits=(UNSEEN,)), False
                plan = decide.plan(item, seen)
                if plan.may_delete:
                    await suite.delete()
                    return Outcome(seen=seen), True
                seen = await self._put(item, suite, plan, seen)
                return Outcome(seen=seen, waits=plan.waits), False
        except ApiUnreachable:
            raise
        except SecretFault as error:
            wait = Wait(error.reason, str(error))
            return Outcome(waits=(wait,)), False
        except CometError as error:
            wait = Wait(Reason.BROKERS_UNREACHABLE, str(error))
            return Outcome(seen=seen, waits=(wait,)), False
        finally:
            if self.claim_of(item).brokers is None:
                self._note(item, frozenset())

    async def _put(
        self, item: Declared, suite: DeclaredBrokers, plan: Plan, seen: tuple[BrokerSeen, ...]
    ) -> tuple[BrokerSeen, ...]:
        """Write the planned settings; return the state afterwards."""
        after = []
        for one in seen:
            config = plan.puts.get(one.name)
            if config is None:
                after.append(one)
                continue
            try:
                await suite.put(one.name, config)
            except CometError as error:
                part = "fault" if is_outage(error) else "refusal"
                after.append(msgspec.structs.replace(one, **{part: str(error)}))
                continue
            change = decide.differences(one.config, config)
            verb = "created" if one.config is None else "changed"
            text = f"{item.entry} is {verb} at {one.name}" + (f": {change}" if one.config else "")
            self.report("Created" if one.config is None else "Changed", text)
            after.append(msgspec.structs.replace(one, config=config))
        return tuple(after)

    def _pause_ms(self, outcome: Outcome) -> int:
        is_failed = any(one.fault or one.refusal for one in outcome.seen) or any(
            one.reason is Reason.BROKERS_UNREACHABLE for one in outcome.waits
        )
        if is_failed:
            self._failures += 1
            return int(min(BACK_OFF_MS << min(self._failures - 1, 10), BACK_OFF_MAX_MS))
        self._failures = 0
        if outcome.waits:
            return WAIT_MS
        self._quiet.forget()
        return self._resync_ms

    async def _finish(self, item: Declared, outcome: Outcome, before: DeclaredStatus) -> None:
        """Write the status if it has changed, and report a new reason."""
        now = self.context.wall_time()
        status = self.status = decide.status_of(item, outcome, before, now)
        if status != before:
            await self.context.api.apply(status_body(self.key, status), part="Status")
        (ready,) = status.conditions
        old = next((one.reason for one in before.conditions), None)
        if ready.reason not in (self._reason, old) and ready.reason != Reason.APPLYING:
            is_warning = ready.reason != Reason.AS_SPECIFIED
            self.report(ready.reason, ready.message, is_warning=is_warning)
        self._reason = ready.reason


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
