# SPDX-License-Identifier: Apache-2.0
"""One pass over a group: read its objects, decide, act, and write the status.

A pass may be interrupted anywhere, and the next one starts from the beginning: every write is
idempotent or names the version or uid that it was based on. An object is applied only if its last
known version was not written by the operator, so an idle group causes no writes.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from cometmq.ha.actions import Fence, HandOver
from cometmq.ha.places.kubernetes import ANNOTATION
from cometmq.ha.record import decode_record
from cometmq.operator import decide, orders, render
from cometmq.operator.access import SERVER_KEYS, Link, SecretFault, Secrets
from cometmq.operator.api import ApiRefused, Body, KubeApi
from cometmq.operator.decide import Backlog, Ending, Nothing, Release, Restart, Seen, Step, Wait
from cometmq.operator.events import Reporter
from cometmq.operator.group import (
    CONTROL_NAME,
    FINALIZER,
    KEY_MARK,
    ROLE_LABEL,
    TLS_SECRET,
    BrokerGroup,
    group_of,
)
from cometmq.operator.key_secret import KeySecret
from cometmq.operator.master_endpoint import KIND as ENDPOINT
from cometmq.operator.master_endpoint import MasterEndpoint
from cometmq.operator.master_service import (
    MasterPod,
    ServiceSeen,
    address_of,
    is_wanted,
    service_seen,
)
from cometmq.operator.members import Members
from cometmq.operator.observe import (
    Live,
    is_ending,
    is_key_required,
    is_owned,
    marks_of,
    seen_of,
    volume_size,
)
from cometmq.operator.orders import AcceptLoss, Discard, Plan, Refused, RotateKey, Verb
from cometmq.operator.secret_keys import ACL_FILE
from cometmq.operator.status import Findings, status_of
from cometmq.operator.status_types import GroupStatus, LastOperation
from cometmq.remoting.errors import CometError

SOON_MS: Final = 1_000
"""Pause before the next pass while a change is in progress."""


class Context(msgspec.Struct, frozen=True):
    """Settings and services that the passes over all groups share."""

    api: KubeApi
    image: str
    operator_namespace: str
    resync_ms: int
    """Pause between passes over an idle group."""
    quiet_ms: int
    """A read-only group that stores no message for this long counts as abandoned by its producers.
    """
    wall_time: Callable[[], str]
    """Returns the time in the API's format."""
    secrets: Secrets


def _key(body: Body) -> tuple[str, str]:
    return body["kind"], body["metadata"]["name"]


class Pass:
    """Passes over one group; the fields kept between them are hints, and may be lost."""

    def __init__(
        self,
        context: Context,
        members: Members,
        reporter: Reporter,
        now_ms: Callable[[], int],
    ) -> None:
        self._context = context
        self._now_ms = now_ms
        self._members = members
        self._reporter = reporter
        self._applied: dict[tuple[str, str], tuple[str, str]] = {}
        """Hash of each applied object, and the version that resulted."""
        self._owned: frozenset[tuple[str, str]] | None = None
        """Kinds and names of the objects that may exist; None before the first pass."""
        self._key = KeySecret(context.api, log=reporter.log)
        self._endpoint = MasterEndpoint(context.api, log=reporter.log)
        self._service: ServiceSeen | None = None
        """The Service that leads to the master; None before the first pass that finds it."""
        self._found: tuple[BrokerGroup, Mapping[int, Body]] | None = None
        """The group and its pods, as of the last pass."""
        self._end = (-1, 0)
        """The end of the longest log, and when it was first seen."""
        self.status: GroupStatus | None = None
        """The status of the last complete pass."""
        self.operations: Counter[tuple[str, str]] = Counter()
        """Number of users' orders by verb and result."""

    def forget(self, kind: str, name: str, version: str) -> None:
        """Note an owned object's version; the next pass repairs it if another client wrote it."""
        if kind == ENDPOINT:
            self._endpoint.forget(name, version)
        known = self._applied.get((kind, name))
        if known is not None and known[1] != version:
            del self._applied[kind, name]

    async def run(self, namespace: str, name: str) -> int | None:
        """Reconcile a group once; return the pause before the next pass, or None if the group was
        deleted.

        Raise ApiUnreachable if a call fails; the next pass starts from the beginning.
        """
        body = await self._context.api.get("BrokerGroup", namespace, name)
        if body is None:
            await self._members.close()
            return None
        group = group_of(body)
        pause = await self._enter_or_leave(group, body)
        return await self._reconcile(group, body) if pause is None else pause

    async def _enter_or_leave(self, group: BrokerGroup, body: Body) -> int | None:
        """Set the finalizer of a new group, and leave a group that needs no further pass; return
        the pause before the next pass, or None if this pass is to go on.
        """
        if group.is_deleting and not group.has_finalizer:
            await self._members.close()
            return SOON_MS
        if not group.has_finalizer:
            await self._set_finalizer(body, present=True)
            return 0
        if group.is_deleting and await is_ending(self._context.api, group.namespace):
            # Everything else, including the Lease, is deleted with the namespace; the operator may
            # have lost its rights there already.
            await self._members.close()
            await self._set_finalizer(body, present=False)
            return SOON_MS
        return None

    async def _reconcile(self, group: BrokerGroup, body: Body) -> int:
        """Elect, apply, obey, act and report; return the pause before the next pass."""
        before = msgspec.convert(body.get("status") or {}, GroupStatus)
        live = await Live.read(self._context.api, group)
        fault = await self._secret_fault(group)
        fault = await self._keep_key(group, live, fault)
        await self._find_service(group)
        self._found = (group, live.pods)
        await self._elect(group, live)
        # An operator that has just started knows no master yet, and would refuse every order.
        has_looked = self._members.has_looked
        seen = self._seen(group, live, before)
        refusal = ""
        is_to_apply = live.stateful_set is not None or not group.is_deleting
        # Without its Secrets no pod starts, so nothing is changed that would restart one.
        if not group.spec.paused and is_to_apply and fault is None:
            try:
                changed = await self._apply(group, seen, live)
            except ApiRefused as error:
                refusal, changed = str(error), False
            if changed:
                return 0
        operation = await self._obey(group, seen) if has_looked else None
        operation = operation or self._end_of_acceptance(group, before)
        seen = await self._with_backlog(group, seen)
        step = await self._act(group, seen, live, fault)
        if isinstance(step, Release):
            await self._release(group, body)
            return SOON_MS
        await self._label_roles(group, seen, live)
        await self.point_at_master()
        found = Findings(
            seen=seen,
            step=step,
            refusal=refusal,
            secret_fault=fault,
            config_hash=render.config_hash(
                group,
                is_key_required=is_key_required(live),
                group_address=address_of(group, self._service),
            ),
            last_operation=operation,
        )
        await self._write_status(group, found, before)
        await self._reporter.note(group, found, before)
        is_idle = isinstance(step, Nothing) and orders.given(group) is None and not refusal
        is_idle = is_idle and fault is None
        return self._context.resync_ms if is_idle and decide.has_master(seen) else SOON_MS

    def _seen(self, group: BrokerGroup, live: Live, before: GroupStatus) -> Seen:
        members = self._members
        return msgspec.structs.replace(
            seen_of(group, live, members.record, members.statuses),
            may_have_data=self._may_have_data(before),
            asked=members.asked,
            election_fault=members.fault,
        )

    # ---- election ----------------------------------------------------------------------------

    async def _elect(self, group: BrokerGroup, live: Live) -> None:
        """Elect a master among the pods that should exist; without a StatefulSet there are none."""
        if live.stateful_set is None:
            return
        seen = seen_of(group, live, None, ())
        leaving = decide.leaving(group, seen)
        staying = seen.replicas or 0 if group.is_deleting else group.spec.replicas
        count = max([staying, *(one + 1 for one in leaving)])
        going = frozenset(range(staying, count))  # no gaps: pods may disappear in any order
        links = {one: await self._link(group, live, one) for one in range(count)}
        await self._members.look_after(group, range(count), going, links)

    async def _link(self, group: BrokerGroup, live: Live, ordinal: int) -> Link:
        """Return how a member is reached: while TLS is being rolled out, pods differ.

        If its Secret cannot be used any more, the member is reached as before.
        """
        marks = marks_of(live, ordinal)
        secret, has_key = marks.get(TLS_SECRET), KEY_MARK in marks
        if secret is None:
            return Link(has_key=has_key)
        try:
            tls = await self._context.secrets.tls(group.namespace, secret)
        except SecretFault as error:
            self._reporter.log.warning("secret.unusable", group=group.name, error=str(error))
            return self._members.links.get(ordinal, Link(has_key=has_key))
        return Link(tls, marks.get(CONTROL_NAME, ""), has_key)

    async def _keep_key(self, group: BrokerGroup, live: Live, fault: Wait | None) -> Wait | None:
        """Create the group's key or take the next step of its replacement, and give it to the
        elector; return why nothing can be changed: `fault`, or that of the key.
        """
        members = self._members
        try:
            if fault is not None or group.spec.paused or group.is_deleting:
                await self._key.read(group)
            else:
                await self._key.keep(group, members.reported_keys, live.pods)
        except SecretFault as error:
            return fault or Wait(error.reason, str(error))
        finally:
            members.keys = self._key.keys
        return fault

    async def _secret_fault(self, group: BrokerGroup) -> Wait | None:
        """Return why the Secrets that the spec names cannot be used, or None if they can."""
        tls, accounts, secrets = group.spec.tls, group.spec.accounts, self._context.secrets
        try:
            if tls is not None:
                await secrets.tls(group.namespace, tls.secret_name, SERVER_KEYS)
            if accounts is not None:
                await secrets.require(group.namespace, accounts.secret_name, (ACL_FILE,))
                await secrets.account(group.namespace, accounts.operator_secret_name)
        except SecretFault as error:
            return Wait(error.reason, str(error))
        return None

    # ---- the master's Service ----------------------------------------------------------------

    async def _find_service(self, group: BrokerGroup) -> None:
        """Read the Service of the master once: a paused group's is not applied, but still moved."""
        if self._service is None and is_wanted(group):
            found = await self._context.api.get("Service", group.namespace, group.master_service)
            self._service = None if found is None else service_seen(found)

    async def point_at_master(self) -> None:
        """Point the Service at the open master's pod; do nothing if there is no such master.

        This is also called between passes, when a master opens. A pod that has just started has no
        address yet; the pass that follows its event finds it.
        """
        record = self._members.open_master
        if self._found is None or self._service is None or record is None:
            return
        group, pods = self._found
        pod = pods.get(record.holder.ordinal)
        address = "" if pod is None else pod.get("status", {}).get("podIP", "")
        if pod is None or not address or not is_wanted(group):
            return
        metadata, node = pod["metadata"], pod["spec"].get("nodeName", "")
        master = MasterPod(metadata["name"], metadata["uid"], address, node, record.epoch)
        await self._endpoint.point(group, self._service, master)

    # ---- owned objects -----------------------------------------------------------------------

    async def _apply(self, group: BrokerGroup, seen: Seen, live: Live) -> bool:
        """Create and repair the owned objects; return whether the StatefulSet has changed."""
        if is_wanted(group):  # first, because its address is in the settings of the brokers
            service = await self._apply_one(render.master_service(group))
            self._service = self._service if service is None else service_seen(service)
        wanted = render.objects(
            group,
            image=self._context.image,
            replicas=decide.replicas(group, seen),
            volume_size=volume_size(group, live),
            operator_namespace=self._context.operator_namespace,
            is_key_required=is_key_required(live),
            group_address=address_of(group, self._service),
        )
        changed = False
        for one in wanted:
            is_new = await self._apply_one(one)
            if is_new and one["kind"] == "StatefulSet":
                before = live.stateful_set and live.stateful_set["metadata"]["generation"]
                changed = is_new["metadata"]["generation"] != before
        await self._delete_unwanted(group, wanted)
        await self._grow_volumes(group, live)
        return changed

    async def _delete_unwanted(self, group: BrokerGroup, wanted: list[Body]) -> None:
        """Delete the group's objects that the spec no longer asks for."""
        api, names = self._context.api, frozenset(map(_key, wanted))
        if self._owned is None:
            found = [
                {**one, "kind": kind}
                for kind in render.OPTIONAL
                for one in await api.list(kind, group.namespace, group.selector)
            ]
            self._owned = frozenset(_key(one) for one in found if is_owned(one, group))
        self._owned |= names
        for kind, name in self._owned - names:
            await api.delete(kind, group.namespace, name)
        self._owned = names

    async def _apply_one(self, wanted: Body) -> Body | None:
        """Apply an object unless this operator's last version is current; return it if applied."""
        key = _key(wanted)
        mark = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
        if self._applied.get(key, ("",))[0] == mark:
            return None
        done = await self._context.api.apply(wanted)
        self._applied[key] = (mark, done["metadata"]["resourceVersion"])
        return done

    async def _grow_volumes(self, group: BrokerGroup, live: Live) -> None:
        """Expand volumes that are smaller than in the spec."""
        size = group.spec.storage.size
        for claim in live.claims:
            if decide.bytes_of(claim["spec"]["resources"]["requests"]["storage"]) < (
                decide.bytes_of(size)
            ):
                patch = {"spec": {"resources": {"requests": {"storage": size}}}}
                name = claim["metadata"]["name"]
                await self._context.api.patch("PersistentVolumeClaim", group.namespace, name, patch)

    # ---- steps -------------------------------------------------------------------------------

    async def _act(
        self, group: BrokerGroup, seen: Seen, live: Live, fault: Wait | None
    ) -> Step | Ending:
        if group.is_deleting:
            return decide.ending(group, seen)
        if group.spec.paused:
            return Nothing()
        if fault is not None:
            return fault
        step = decide.next_step(group, seen)
        match step:
            case Restart(ordinal=ordinal):
                uid = live.pods[ordinal]["metadata"]["uid"]
                await self._context.api.delete("Pod", group.namespace, group.pod(ordinal), uid=uid)
            case HandOver():
                try:
                    await self._members.hand_over(group, step)
                except CometError as error:
                    return Wait(decide.Reason.NO_SUCCESSOR, str(error))
            case _:
                pass
        return step

    async def _obey(self, group: BrokerGroup, seen: Seen) -> LastOperation | None:
        """Carry out the order in an annotation.

        The annotation is removed first: an operator that dies here loses the order instead of
        repeating it, because a second fence or rebuild causes damage.
        """
        order = orders.given(group)
        if order is None or group.is_deleting:
            return None
        patch = {"metadata": {"annotations": {order.annotation: None}}}
        await self._context.api.patch("BrokerGroup", group.namespace, group.name, patch)
        error = await self._carry_out(group, orders.plan(group, seen, order))
        result = "Refused" if error else "Started"
        self.operations[order.verb, result] += 1
        return LastOperation(
            verb=order.verb, value=order.value, result=result, message=error,
            time=self._context.wall_time(),
        )  # fmt: skip

    async def _carry_out(self, group: BrokerGroup, plan: Plan) -> str:
        """Make the call that an order requires; return why it failed, or an empty text."""
        try:
            match plan:
                case HandOver():
                    await self._members.hand_over(group, plan)
                case Fence():
                    await self._members.fence(group, plan)
                case Discard():
                    await self._members.rebuild(group, plan)
                case RotateKey():
                    return await self._key.rotate(group)
                case AcceptLoss():
                    return await self._accept_loss(group, plan)
                case Refused(text=text):
                    return text
        except CometError as error:
            return str(error)
        return ""

    # ---- accepted losses ---------------------------------------------------------------------

    async def _accept_loss(self, group: BrokerGroup, plan: AcceptLoss) -> str:
        """Delete the record if there is one, and let the elector create the next one; return why
        that failed, or an empty text.

        The operator may stop after each step, because no step makes a broker master that would not
        have become it without an operator:

        1. The annotation is removed. Nothing else has changed; the person gives the order again.
        2. The record is deleted. Only the version that was judged is deleted, so nobody has elected
           since. No broker is master, and none becomes one without a record. The next operator
           fences all brokers, and waits for a person again if that is necessary (R10).
        3. Brokers are fenced for the new record. Promises only grow; the next operator fences with
           a later epoch, and waits for a person as after step 2.
        4. The record is created. Every elector completes this election, as any other.

        The acceptance itself is in the elector's memory, so no later operator can use it. A
        deletion whose answer is lost may still happen; the state is then that after step 2.
        """
        if plan.record is not None:
            lease = await self._context.api.get("Lease", group.namespace, group.name)
            metadata = {} if lease is None else lease["metadata"]
            text = (metadata.get("annotations") or {}).get(ANNOTATION, "")
            place = f"lease {group.namespace}/{group.name}"
            is_same = text != "" and decode_record(text.encode(), place=place) == plan.record
            if not is_same or not await self._context.api.delete(
                "Lease", group.namespace, group.name,
                uid=metadata["uid"], version=metadata["resourceVersion"],
            ):  # fmt: skip
                return "the record has changed since it was judged: look at the group again"
        self._members.accept_loss(plan)
        return ""

    def _end_of_acceptance(self, group: BrokerGroup, before: GroupStatus) -> LastOperation | None:
        """Return the outcome of an accepted loss that has started; None if there is nothing new.

        An operator that starts in the middle reports the end too, but does not carry it out.
        """
        last, members = before.last_operation, self._members
        if last is None or (last.verb, last.result) != (Verb.ACCEPT_LOSS, "Started"):
            return None
        if not (members.has_looked and members.is_record_known):
            return None
        # `Seen` is older than the acceptance: the record may have been created since.
        record = members.record
        if record is not None and last.value.isdecimal() and record.epoch > int(last.value):
            result = "Done"
            text = (
                f"the store of {group.pod(record.holder.ordinal)} was chosen, for epoch"
                f" {record.epoch}"
            )
        elif members.is_accepting_loss:
            return None
        else:
            _, fault = members.fault or ("", "the brokers were being fenced")
            result, text = "Refused", f"no record was created in time: {fault}"
        self.operations[Verb.ACCEPT_LOSS, result] += 1
        return msgspec.structs.replace(
            last, result=result, message=text, time=self._context.wall_time()
        )

    # ---- deletion ----------------------------------------------------------------------------

    async def _with_backlog(self, group: BrokerGroup, seen: Seen) -> Seen:
        """Make the group read-only, and count the unconsumed messages.

        Producers learn from the name servers that the group is read-only, and brokers accept their
        sends until then. So a count of 0 is final only once nothing has been stored for a while.
        """
        if not group.is_deleting or decide.may_skip_drain(group, seen):
            return seen
        backlog: Backlog | None = None
        try:
            await self._members.refuse_sends(group, range(seen.replicas or 0))
        except CometError as error:
            self._reporter.log.warning("drain.blocked", group=group.name, error=str(error))
        else:
            backlog = await self._backlog(group)
        return msgspec.structs.replace(seen, backlog=backlog, is_quiet=self._is_quiet(seen))

    async def _backlog(self, group: BrokerGroup) -> Backlog | None:
        accounts, account = group.spec.accounts, None
        try:
            if accounts is not None:
                name = accounts.operator_secret_name
                account = await self._context.secrets.account(group.namespace, name)
        except SecretFault:  # a condition reports it
            return None
        return await self._members.backlog(group, account)

    def _may_have_data(self, before: GroupStatus) -> bool:
        """Return whether there is, may be or has been a master.

        Without a record, the status soon has no epoch either, but the stores know that they had a
        master.
        """
        members = self._members
        return (
            members.record is not None
            or not members.is_record_known
            or before.epoch > 0
            or any(one.last_log_epoch > 0 for one in members.statuses)
        )

    def _is_quiet(self, seen: Seen) -> bool:
        """Return whether the end of the longest log has not moved for `quiet_ms`."""
        end, now_ms = max((one.max_offset for one in seen.statuses), default=-1), self._now_ms()
        if end != self._end[0] or end < 0:
            self._end = (end, now_ms)
        return now_ms - self._end[1] >= self._context.quiet_ms

    async def _release(self, group: BrokerGroup, body: Body) -> None:
        """Delete the group's record, then remove the finalizer."""
        await self._members.close()
        await self._context.api.delete("Lease", group.namespace, group.name)
        await self._set_finalizer(body, present=False)

    async def _set_finalizer(self, body: Body, *, present: bool) -> None:
        metadata = body["metadata"]
        others = [one for one in metadata.get("finalizers") or () if one != FINALIZER]
        finalizers = [*others, FINALIZER] if present else others
        patch = {
            "metadata": {
                "finalizers": finalizers,
                "resourceVersion": metadata["resourceVersion"],
            }
        }
        try:
            await self._context.api.patch(
                "BrokerGroup", metadata["namespace"], metadata["name"], patch
            )
        except ApiRefused as error:
            if error.status != 409:  # changed since it was read: the next pass tries again
                raise

    # ---- labels and status -------------------------------------------------------------------

    async def _label_roles(self, group: BrokerGroup, seen: Seen, live: Live) -> None:
        roles = {one.copy.ordinal: one.role.value for one in seen.statuses}
        for ordinal, pod in live.pods.items():
            role = roles.get(ordinal)
            if role is None or pod["metadata"].get("labels", {}).get(ROLE_LABEL) == role:
                continue
            patch: dict[str, Any] = {"metadata": {"labels": {ROLE_LABEL: role}}}
            await self._context.api.patch("Pod", group.namespace, group.pod(ordinal), patch)

    async def _write_status(self, group: BrokerGroup, found: Findings, before: GroupStatus) -> None:
        status = self.status = status_of(group, found, before, self._context.wall_time())
        if status == before:
            return
        # A merge patch keeps fields that it does not name, so fields that are now empty are set to
        # null.
        empty = dict.fromkeys(GroupStatus.__struct_encode_fields__)
        patch = {"status": {**empty, **msgspec.to_builtins(status)}}
        await self._context.api.patch(
            "BrokerGroup", group.namespace, group.name, patch, part="status"
        )
