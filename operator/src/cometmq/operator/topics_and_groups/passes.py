# SPDX-License-Identifier: Apache-2.0
"""One pass over a Topic or ConsumerGroup: read the brokers, decide, change them, write the status.

Each pass starts from the current state, and every change sets absolute values. So a pass may be
interrupted anywhere, and repeated.
"""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from cometmq.operator.access import SecretFault, Secrets
from cometmq.operator.api import ApiRefused, ApiUnreachable, Body, KubeApi
from cometmq.operator.events import event_of
from cometmq.operator.observe import is_ending
from cometmq.operator.topics_and_groups import decide
from cometmq.operator.topics_and_groups.decide import BrokerSeen, Outcome, Plan, Reason, Wait
from cometmq.operator.topics_and_groups.item import (
    FINALIZER,
    Claim,
    Declared,
    Key,
    declared_of,
    owner,
)
from cometmq.operator.topics_and_groups.models import DeclaredStatus
from cometmq.operator.topics_and_groups.suite import Suite, is_outage, open_admin
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log

WAIT_MS: Final = 5_000
"""Pause between passes while a change waits for consumers or producers."""
BACK_OFF_MS: Final = 2_000
BACK_OFF_MAX_MS: Final = 60_000


class Shared(msgspec.Struct, frozen=True):
    """Settings and services that the passes over all objects share."""

    api: KubeApi
    resync_ms: int
    """Pause between passes over an object whose brokers are as specified."""
    quiet_ms: int
    """A queue that stores no message for this long counts as abandoned by its producers."""
    wall_time: Callable[[], str]
    """Returns the time in the API's format."""
    now_ms: Callable[[], int]
    others: Callable[[Claim], Iterable[Claim]]
    """Returns the claims of objects that are not being deleted."""
    secrets: Secrets
    log: Log


class Pass:
    """Passes over one object; the fields kept between them are hints, and may be lost."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._ends: dict[str, tuple[int, int]] = {}
        """The end of the queues to be removed on each broker, and when it was first seen."""
        self._failures = 0
        self._reason: str | None = None
        self.status: DeclaredStatus | None = None
        """The status of the last complete pass."""

    async def run(self, key: Key) -> int | None:
        """Reconcile an object once; return the pause before the next pass, or None if it is gone.

        Raise ApiUnreachable or ApiRefused if a call to the API fails.
        """
        kind, namespace, name = key
        body = await self._shared.api.get(kind, namespace, name)
        if body is None:
            return None
        item = declared_of(kind, body)
        if item.is_deleting and not item.has_finalizer:
            return None
        others = list(self._shared.others(item.claim))
        if item.is_deleting and await self._is_released(item, others):
            await self._set_finalizer(item, body, present=False)
            return None
        if not item.is_deleting and item.has_finalizer != item.is_to_delete:
            await self._set_finalizer(item, body, present=item.is_to_delete)
            return 0
        before = msgspec.convert(body.get("status") or {}, DeclaredStatus)
        if (oldest := owner(item.claim, others)) != item.claim:
            await self._finish(item, Outcome(owner=oldest), before)
            return self._shared.resync_ms
        outcome, is_deleted = await self._reconcile(item, before)
        if is_deleted:
            await self._report(item, "Deleted", f"{item.entry} is deleted at all its brokers")
            await self._set_finalizer(item, body, present=False)
            return None
        await self._finish(item, outcome, before)
        return self._pause_ms(outcome)

    async def _is_released(self, item: Declared, others: Iterable[Claim]) -> bool:
        """Return whether a deleted object leaves its entry as it is.

        The deletion of a namespace deletes no topic, because it must not depend on brokers.
        """
        if not item.is_to_delete or any(item.claim.competes(one) for one in others):
            return True
        return await is_ending(self._shared.api, item.key[1])

    async def _reconcile(self, item: Declared, before: DeclaredStatus) -> tuple[Outcome, bool]:
        """Make the next changes on the brokers; return the outcome, and whether the entry has been
        deleted.
        """
        seen: tuple[BrokerSeen, ...] = ()
        try:
            async with await open_admin(item, self._shared.secrets, self._shared.log) as admin:
                suite = Suite(admin, item)
                seen = await suite.look((one.name for one in before.brokers), self._is_quiet)
                plan = decide.plan(item, seen)
                if plan.may_delete:
                    await suite.delete()
                    return Outcome(seen=seen), True
                seen = await self._put(item, suite, plan, seen)
                return Outcome(seen=seen, waits=plan.waits), False
        except ApiUnreachable:
            raise
        except SecretFault as error:
            wait = Wait(Reason(error.reason.value), str(error))
            return Outcome(waits=(wait,)), False
        except CometError as error:
            wait = Wait(Reason.BROKERS_UNREACHABLE, str(error))
            return Outcome(seen=seen, waits=(wait,)), False

    async def _put(
        self, item: Declared, suite: Suite, plan: Plan, seen: tuple[BrokerSeen, ...]
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
            await self._report(item, "Created" if one.config is None else "Changed", text)
            after.append(msgspec.structs.replace(one, config=config))
        return tuple(after)

    def _is_quiet(self, broker: str, end: int) -> bool:
        """Return whether the queues on a broker have stored nothing for `quiet_ms`."""
        now_ms = self._shared.now_ms()
        known = self._ends.get(broker)
        if known is None or known[0] != end:
            known = self._ends[broker] = (end, now_ms)
        return now_ms - known[1] >= self._shared.quiet_ms

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
        self._ends.clear()
        return self._shared.resync_ms

    async def _finish(self, item: Declared, outcome: Outcome, before: DeclaredStatus) -> None:
        """Write the status if it has changed, and report a new reason."""
        status = self.status = decide.status_of(item, outcome, before, self._shared.wall_time())
        if status != before:
            empty = dict.fromkeys(DeclaredStatus.__struct_encode_fields__)
            patch = {"status": {**empty, **msgspec.to_builtins(status)}}
            kind, namespace, name = item.key
            await self._shared.api.patch(kind, namespace, name, patch, part="status")
        (ready,) = status.conditions
        old = next((one.reason for one in before.conditions), None)
        if ready.reason not in (self._reason, old) and ready.reason != Reason.APPLYING:
            is_warning = ready.reason != Reason.AS_SPECIFIED
            await self._report(item, ready.reason, ready.message, is_warning=is_warning)
        self._reason = ready.reason

    async def _report(
        self, item: Declared, reason: str, text: str, *, is_warning: bool = False
    ) -> None:
        """Write one Event; a failure is only logged, as nothing depends on Events."""
        shared = self._shared
        shared.log.info("declared.changed", object="/".join(item.key), reason=reason, text=text)
        change = (reason, text)
        body = event_of(item.key, item.uid, change, is_warning=is_warning, now=shared.wall_time())
        try:
            await shared.api.create("Event", item.key[1], body)
        except (ApiRefused, ApiUnreachable) as error:
            shared.log.warning("event.lost", group=item.key[2], error=str(error))

    async def _set_finalizer(self, item: Declared, body: Body, *, present: bool) -> None:
        metadata = body["metadata"]
        others = [one for one in metadata.get("finalizers") or () if one != FINALIZER]
        patch = {
            "metadata": {
                "finalizers": [*others, FINALIZER] if present else others,
                "resourceVersion": metadata["resourceVersion"],
            }
        }
        kind, namespace, name = item.key
        try:
            await self._shared.api.patch(kind, namespace, name, patch)
        except ApiRefused as error:
            if error.status != 409:  # changed since it was read: its event starts the next pass
                raise
