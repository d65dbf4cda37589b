# SPDX-License-Identifier: Apache-2.0
"""Sends orders to members, and logs and counts their outcomes.

A failed order is not repeated here: orders are idempotent, and the next round decides anew.
"""

from collections.abc import Mapping

from cometmq.elector.asked_member import AskedMember
from cometmq.elector.stats import ElectorStats
from cometmq.ha.actions import Tell
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Order
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet


class OrderSender:
    def __init__(self, members: Mapping[int, AskedMember], stats: ElectorStats, log: Log) -> None:
        self._members = members
        self._stats = stats
        self._log = log
        self._handovers = TaskSet(log)

    async def close(self) -> None:
        """Stop waiting for handovers, which the members still complete."""
        await self._handovers.close()

    def begin(self, action: Tell[Order]) -> None:
        """Send an order to hand over, without waiting for the answer; do nothing while another such
        order is unanswered.
        """

        async def hand_over() -> None:
            await self.give(action)

        if not len(self._handovers):  # the member would refuse another order
            self._handovers.spawn(hand_over(), name="elector-hand-over")

    async def give(self, action: Tell[Order]) -> OrderRefusal | None:
        """Send an order; return why the member refused it, None if it obeyed or did not answer."""
        ordinal, order = action.ordinal, action.order
        member = self._members.get(ordinal)
        if member is None:  # the settings lack a broker that the record names
            return None
        name, outcome, error, refused = type(order).__name__, "obeyed", "", None
        try:
            await member.link.order(order)
        except OrderRefused as refusal:
            outcome, error, refused = "refused", str(refusal), refusal.reason
        except CometError as failure:
            outcome, error = "unanswered", str(failure)
        self._stats.orders[name, outcome] += 1
        given = (order, outcome, error)
        if given != member.given:
            member.given = given
            facts = {"order": name, "ordinal": ordinal, "epoch": getattr(order, "epoch", None)}
            if error:
                self._log.warning("order.failed", **facts, outcome=outcome, error=error)
            else:
                self._log.info("order.obeyed", **facts)
        return refused
