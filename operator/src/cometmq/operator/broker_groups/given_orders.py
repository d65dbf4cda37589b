# SPDX-License-Identifier: Apache-2.0
"""Carries out the orders that annotations give, and reports their results."""

from collections import Counter

import msgspec

from cometmq.ha.actions import Tell
from cometmq.ha.places.kubernetes import ANNOTATION
from cometmq.ha.record import decode_record
from cometmq.operator.api import ApiRefused, Body
from cometmq.operator.api_types.broker_group import KIND
from cometmq.operator.api_types.status import GroupStatus, LastOperation
from cometmq.operator.broker_groups import user_orders
from cometmq.operator.broker_groups.group import BrokerGroup
from cometmq.operator.broker_groups.group_elector import GroupElector
from cometmq.operator.broker_groups.key_secret import KeySecret
from cometmq.operator.broker_groups.seen import Election, Seen
from cometmq.operator.broker_groups.user_orders import (
    AcceptLoss,
    Plan,
    Refused,
    RotateKey,
    UserOrder,
    Verb,
)
from cometmq.operator.passes import Context
from cometmq.remoting.errors import CometError


class GivenOrders:
    def __init__(self, context: Context, elector: GroupElector, key: KeySecret) -> None:
        self._context = context
        self._elector = elector
        self._key = key
        self.operations: Counter[tuple[str, str]] = Counter()
        """Number of users' orders by verb and result."""

    async def obey(
        self, group: BrokerGroup, seen: Seen, order: UserOrder, body: Body
    ) -> LastOperation | None:
        """Carry out the order in an annotation of `body`; return None if `body` has changed.

        The annotation is removed first: an operator that dies here loses the order instead of
        repeating it, because a second fence or rebuild causes damage. The removal names the version
        that was read, so that of two operators only one obeys.
        """
        version = body["metadata"]["resourceVersion"]
        patch = {"metadata": {"annotations": {order.annotation: None}, "resourceVersion": version}}
        try:
            await self._context.api.patch(KIND, group.namespace, group.name, patch)
        except ApiRefused as refusal:
            if refusal.status != 409:
                raise
            return None
        error = await self._carry_out(group, user_orders.plan(group, seen, order))
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
                case Tell():
                    await self._elector.tell(group, plan)
                case RotateKey():
                    return await self._key.rotate(group)
                case AcceptLoss():
                    return await self._accept_loss(group, plan)
                case Refused(text=text):
                    return text
        except CometError as error:
            return str(error)
        return ""

    async def _accept_loss(self, group: BrokerGroup, plan: AcceptLoss) -> str:
        """Delete the record if there is one, and let the elector create the next one; return why
        that failed, or an empty text.

        The operator may stop after each step, because no step makes a broker master that would not
        have become it without an operator:

        1. The annotation is removed. Nothing else has changed; the person gives the order again.
        2. The record is deleted. Only the version that was judged is deleted, so no election has
           happened since. No broker is master, and none becomes one without a record. The next
           operator fences all brokers, and waits for a person again if that is necessary (R10).
        3. Brokers are fenced for the new record. Promises only grow; the next operator fences with
           a later epoch, and waits for a person as after step 2.
        4. The record is created. Every elector completes this election, as any other.

        The acceptance itself is in the elector's memory, so no later operator can use it. If the
        answer to a deletion is lost, the record may still be deleted later; the state is then as
        after step 2.
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
        self._elector.accept_loss(plan)
        return ""

    def end_of_acceptance(
        self, group: BrokerGroup, election: Election, before: GroupStatus
    ) -> LastOperation | None:
        """Return the outcome of an accepted loss that has started; None while it is unknown, or if
        none has started.

        A later operator, which does not have the acceptance, reports the outcome, too.
        """
        last, record = before.last_operation, election.record
        if last is None or (last.verb, last.result) != (Verb.ACCEPT_LOSS, "Started"):
            return None
        if not (election.has_looked and election.is_record_known):
            return None
        if record is not None and last.value.isdecimal() and record.epoch > int(last.value):
            result = "Done"
            text = (
                f"the store of {group.pod(record.holder.ordinal)} was chosen, for epoch"
                f" {record.epoch}"
            )
        elif election.is_accepting_loss:
            return None
        else:
            _, fault = election.fault or ("", "the brokers were being fenced")
            result, text = "Refused", f"no record was created in time: {fault}"
        self.operations[Verb.ACCEPT_LOSS, result] += 1
        return msgspec.structs.replace(
            last, result=result, message=text, time=self._context.wall_time()
        )
