# SPDX-License-Identifier: Apache-2.0
"""Passes over groups: read the objects of a group, decide, act, and write the status."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from cometmq.ha.actions import Tell
from cometmq.ha.port import RecordPort
from cometmq.operator.api import ApiRefused, ApiUnreachable, Body
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.api_types.status import GroupStatus
from cometmq.operator.broker_groups import user_orders
from cometmq.operator.broker_groups.decide import (
    Ending,
    Nothing,
    Reason,
    Release,
    Restart,
    Step,
    Wait,
    decide,
)
from cometmq.operator.broker_groups.drain import Drain
from cometmq.operator.broker_groups.events import Reporter
from cometmq.operator.broker_groups.given_orders import GivenOrders
from cometmq.operator.broker_groups.group import (
    CONTROL_NAME,
    KEY_MARK,
    ROLE_LABEL,
    TLS_SECRET,
    BrokerGroup,
    group_of,
)
from cometmq.operator.broker_groups.group_elector import Addresses, GroupElector, MemberAccess
from cometmq.operator.broker_groups.key_secret import KeySecret
from cometmq.operator.broker_groups.live import Live, seen_of
from cometmq.operator.broker_groups.master_endpoint import KIND as SLICE
from cometmq.operator.broker_groups.master_endpoint import MasterEndpoint
from cometmq.operator.broker_groups.master_service import MasterPod
from cometmq.operator.broker_groups.owned import OwnedObjects, delete_record
from cometmq.operator.broker_groups.render import config_hash
from cometmq.operator.broker_groups.seen import Seen
from cometmq.operator.broker_groups.status import Findings, status_of
from cometmq.operator.managed import Key, status_body
from cometmq.operator.metrics import GroupFigures, OperatorFigures
from cometmq.operator.passes import Context, ObjectTasks, Pass
from cometmq.operator.secrets import SecretFault
from cometmq.remoting.errors import CometError

POINT_AGAIN_MS: Final = 500
SOON_MS: Final = 1_000
"""Pause before the next pass while a change is in progress."""


class GroupPass(Pass[BrokerGroup]):
    def __init__(self, key: Key, context: Context, elector: GroupElector) -> None:
        super().__init__(key, context)
        self.elector = elector
        self._reporter = Reporter(context.clock.monotonic_ms, self.report)
        self._group_key = KeySecret(context.api, log=context.log)
        self._owned = OwnedObjects(context)
        self._orders = GivenOrders(context, elector, self._group_key)
        self._drain = Drain(context, elector)
        self._endpoint = MasterEndpoint(context.api, log=context.log)
        self._group: BrokerGroup | None = None
        """The group, as of the last pass."""
        self.operations = self._orders.operations
        self.status: GroupStatus | None = None
        """The status of the last complete pass."""

    def parse(self, body: Body) -> BrokerGroup:
        return group_of(body)

    def note_version(self, kind: str, name: str, version: str) -> None:
        """Note an owned object's version; the next pass repairs it if another client wrote it."""
        if kind == SLICE:
            self._endpoint.note_version(name, version)
        self._owned.note_version(kind, name, version)

    def view(self) -> object:
        """Return the parts of the record and the members that the status shows, except offsets."""
        election = self.elector.election
        record = election.record
        return (
            record and (record.epoch, record.holder, record.in_sync, record.copies),
            tuple((one.copy, one.role, one.epoch) for one in election.statuses),
            election.fault,
        )

    async def attend(self) -> None:
        """Point the Service at each master that opens, without waiting for a pass."""
        opened = self.elector.master_opened
        while True:
            await opened.wait()
            opened.clear()
            try:
                await self._point()
            except (ApiUnreachable, ApiRefused) as error:
                name = "/".join(self.key[1:])
                self.context.log.warning("master_service.unmoved", group=name, error=str(error))
                await asyncio.sleep(POINT_AGAIN_MS / 1000)
                opened.set()

    async def _point(self) -> None:
        """Point the Service at the open master's pod; do nothing if there is no such master.

        A pod that has just started has no address yet; the pass that follows its event finds it.
        """
        record, service, group = self.elector.open_master, self._owned.service, self._group
        if group is None or service is None or record is None or not group.has_master_service:
            return
        name = group.pod(record.holder.ordinal)
        pods = list(self.context.pods.get((group.namespace, group.name), ()))
        pod = next((one for one in pods if one.name == name and one.address), None)
        if pod is not None:
            master = MasterPod(**msgspec.structs.asdict(pod), epoch=record.epoch)
            await self._endpoint.point(group, service["metadata"]["uid"], master)

    async def close(self) -> None:
        await self.elector.close()

    async def reconcile(self, group: BrokerGroup, body: Body) -> int | None:
        """Read the state, decide, apply the objects, obey an order, take a step, report."""
        before = msgspec.convert(body.get("status") or {}, GroupStatus)
        live = await Live.read(self.context.api, group)
        fault = await self._secret_fault(group, live)
        self._group = group
        await self._configure_elector(group, live)
        election = self.elector.election
        seen = await self._drain.look(group, seen_of(group, live, election, before))
        decision = decide(group, seen, fault)
        wanted = await self._owned.wanted(group, live, decision.replicas)
        refusal = ""
        is_to_apply = live.stateful_set is not None or not group.is_deleting
        # Without its Secrets no pod starts, so nothing is changed that would restart one.
        if not group.spec.paused and is_to_apply and fault is None:
            try:
                if await self._owned.apply(group, wanted, live):
                    return 0
            except ApiRefused as error:
                refusal = str(error)
        order, operation = user_orders.given(group), None
        # An operator that has just started knows no master yet, and would refuse every order.
        if order is not None and election.has_looked and not group.is_deleting:
            operation = await self._orders.obey(group, seen, order, body)
        operation = operation or self._orders.end_of_acceptance(group, election, before)
        step = await self._act(group, decision.step, live)
        if isinstance(step, Release):
            await self.close()
            await delete_record(self.context.api, group)
            return None
        await self._label_roles(group, seen, live)
        await self._point()
        found = Findings(
            seen=seen,
            step=step,
            refusal=refusal,
            secret_fault=fault,
            config_hash=config_hash(wanted),
            last_operation=operation,
        )
        await self._write_status(group, found, before)
        self._reporter.note(group, found, before)
        is_idle = isinstance(step, Nothing) and order is None and not (refusal or fault)
        return self.context.resync_ms if is_idle and seen.has_master else SOON_MS

    # ---- election ----------------------------------------------------------------------------

    async def _configure_elector(self, group: BrokerGroup, live: Live) -> None:
        """Tell the elector which pods should exist; without a StatefulSet there are none."""
        if live.replicas is None:
            return
        leaving = group.leaving(live.replicas, live.pods)
        staying = live.replicas if group.is_deleting else group.spec.replicas
        count = max([staying, *(one + 1 for one in leaving)])
        going = frozenset(range(staying, count))  # no gaps: pods may disappear in any order
        links = {one: await self._link(group, live, one) for one in range(count)}
        await self.elector.look_after(group, range(count), going, links)

    async def _link(self, group: BrokerGroup, live: Live, ordinal: int) -> MemberAccess:
        """Return how a member's ports are reached; pods differ while TLS is being rolled out.

        If the Secret cannot be used any more, return the access of the last pass.
        """
        marks = live.marks(ordinal)
        secret, has_key = marks.get(TLS_SECRET), KEY_MARK in marks
        if secret is None:
            return MemberAccess(has_key=has_key)
        try:
            tls = await self.context.secrets.tls(group.namespace, secret)
        except SecretFault as error:
            self.context.log.warning("secret.unusable", group=group.name, error=str(error))
            return self.elector.links.get(ordinal, MemberAccess(has_key=has_key))
        return MemberAccess(tls, marks.get(CONTROL_NAME, ""), has_key)

    async def _secret_fault(self, group: BrokerGroup, live: Live) -> Wait | None:
        """Return why the Secrets that the spec names, or the Secret with the
        group's key, cannot be used; None if all can.

        Also create the key, or take the next step of its replacement, unless the group is paused or
        being deleted, or has another fault; then pass the keys to the elector.
        """
        elector, fault = self.elector, None
        try:
            await self.context.secrets.check(group.namespace, group.spec.tls, group.spec.accounts)
        except SecretFault as error:
            fault = Wait(error.reason, str(error))
        try:
            if fault is not None or group.spec.paused or group.is_deleting:
                await self._group_key.read(group)
            else:
                await self._group_key.keep(group, elector.election.reported_keys, live.pods)
        except SecretFault as error:
            fault = fault or Wait(error.reason, str(error))
        finally:
            elector.keys = self._group_key.keys
        return fault

    # ---- steps -------------------------------------------------------------------------------

    async def _act(self, group: BrokerGroup, step: Step | Ending, live: Live) -> Step | Ending:
        match step:
            case Restart(ordinal=ordinal):
                uid = live.pods[ordinal]["metadata"]["uid"]
                await self.context.api.delete("Pod", group.namespace, group.pod(ordinal), uid=uid)
            case Tell():
                try:
                    await self.elector.tell(group, step)
                except CometError as error:
                    return Wait(Reason.NO_SUCCESSOR, str(error))
            case _:
                pass
        return step

    async def _label_roles(self, group: BrokerGroup, seen: Seen, live: Live) -> None:
        roles = {one.copy.ordinal: one.role.value for one in seen.statuses}
        for ordinal, pod in live.pods.items():
            role = roles.get(ordinal)
            if role is None or pod["metadata"].get("labels", {}).get(ROLE_LABEL) == role:
                continue
            patch: dict[str, Any] = {"metadata": {"labels": {ROLE_LABEL: role}}}
            await self.context.api.patch("Pod", group.namespace, group.pod(ordinal), patch)

    async def _write_status(self, group: BrokerGroup, found: Findings, before: GroupStatus) -> None:
        status = self.status = status_of(group, found, before, self.context.wall_time())
        if status != before:
            await self.context.api.apply(status_body(self.key, status), part="Status")


class Groups(ObjectTasks[GroupPass]):
    def __init__(
        self,
        context: Context,
        figures: OperatorFigures,
        *,
        record_of: Callable[[str, str], RecordPort],
        addresses: Addresses | None = None,
    ) -> None:
        """`record_of` returns the record of the group with this namespace and name."""
        super().__init__(context, figures.count)
        self._record_of = record_of
        self._addresses = addresses

    def new(self, key: Key) -> GroupPass:
        context = self.context
        record = self._record_of(*key[1:])
        elector = GroupElector(
            record, clock=context.clock, log=context.log, addresses=self._addresses
        )
        return GroupPass(key, context, elector)

    def note(self, kind: str, namespace: str, name: str, group: str, version: str) -> None:
        """Note the version of an owned object and wake its group, which repairs the object if
        another client changed it.
        """
        key = (KIND, namespace, group)
        work = self.get(key)
        if work is not None:
            work.note_version(kind, name, version)
            self.wake(key)

    def figures(self) -> list[GroupFigures]:
        return [
            GroupFigures(
                namespace=work.key[1],
                name=work.key[2],
                status=work.status,
                elector=work.elector.stats,
                operations=work.operations,
            )
            for work in self
        ]
