# SPDX-License-Identifier: Apache-2.0
"""Gives orders to members; orders are idempotent, so one that fails is decided on again."""

from collections.abc import Awaitable, Callable, Mapping

from cometmq.control.controlled import Report
from cometmq.elector.asked_member import Link, Member
from cometmq.elector.stats import ElectorStats
from cometmq.ha.actions import Drop, Fence, Follow, HandOver, Promote, Resize
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import Log
from cometmq.remoting.transport.tasks import TaskSet

Order = Promote | Follow | Fence | HandOver | Drop | Resize


class Orders:
    def __init__(self, members: Mapping[int, Member], stats: ElectorStats, log: Log) -> None:
        self._members = members
        self._stats = stats
        self._log = log
        self._handovers = TaskSet(log)

    async def close(self) -> None:
        """Stop waiting for handovers, which the members still complete."""
        await self._handovers.close()

    def begin(self, order: HandOver) -> None:
        """Give an order that takes long, and do not wait for the answer."""

        async def hand_over() -> None:
            await self.give(order)

        if not len(self._handovers):  # another order would be refused until it ends
            self._handovers.spawn(hand_over(), name="elector-hand-over")

    async def give(self, order: Order) -> OrderRefusal | None:
        """Give an order; return why the member refused it, if it did."""
        ordinal, call = _call_of(order)
        member = self._members.get(ordinal)
        if member is None:  # the settings lack a broker that the record names
            return None
        name, outcome, error, refused = type(order).__name__, "obeyed", "", None
        try:
            await call(member.link)
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


def _call_of(order: Order) -> tuple[int, Callable[[Link], Awaitable[Report]]]:
    """Return the member that must receive an order, and the call that sends it."""
    match order:
        case Promote(ordinal=ordinal, epoch=epoch):
            return ordinal, lambda link: link.promote(epoch)
        case Follow(ordinal=ordinal, epoch=epoch, master=master):
            return ordinal, lambda link: link.follow(epoch, master)
        case Fence(ordinal=ordinal, epoch=epoch):
            return ordinal, lambda link: link.fence(epoch)
        case HandOver(master=master, target=target, leaves=leaves):
            return master, lambda link: link.hand_over(target, leaves=leaves)
        case Drop(master=master, ordinal=ordinal):
            return master, lambda link: link.drop(ordinal)
        case Resize(master=master, copies=copies):
            return master, lambda link: link.resize(copies)
