# SPDX-License-Identifier: Apache-2.0
"""What electors and operators see of a member: its status, and the orders that it obeys."""

import asyncio

import msgspec

from cometmq.broker.copies.roles.acting import Current
from cometmq.broker.copies.roles.inbox import Job
from cometmq.broker.copies.roles.member_driver import MemberDriver
from cometmq.ha import member as rules
from cometmq.ha.actions import Status
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import HandOver, Order
from cometmq.ha.port import Answer
from cometmq.remoting.log import Log


class Membership:
    """One broker's membership; its driver must be running for orders to be answered.

    A call that raises OrderRefused has changed nothing.
    """

    def __init__(self, driver: MemberDriver, current: Current, log: Log) -> None:
        self._driver = driver
        self._saved = driver.saved
        self._duties = driver.duties
        self._inbox = driver.inbox
        self._log = log
        self._current = current

    def status(self) -> Status:
        """Return the state after the last completed event, and the broker's current position.

        While an event is in progress, the promise on disk may be newer than the returned one. With
        the new promise, but still as a slave, the member that the record names would look like a
        master that cannot open, and electors would replace it.
        """
        settled = self._driver.settled
        return Status(
            copy=settled.me,
            role=settled.role,
            promised=settled.promised,
            epoch=settled.epoch,
            standing=self._saved.state.standing,
            last_in_sync=self._saved.state.last_in_sync,
            **msgspec.structs.asdict(self._duties.position()),
        )

    async def obey(self, order: Order) -> Status:
        """Carry out an order; return the status after the event that it caused.

        After an order to become master, this member may not lead yet when the call returns.
        """
        if isinstance(order, HandOver):
            return await self._hand_over(order)
        if type(order) in rules.CHANGE_THE_ROLE:
            return await self._handle(order)
        self._check(order)
        self._current.acting.obey(order)
        return self.status()

    async def _hand_over(self, order: HandOver) -> Status:
        """Make a different member the master without failing any send; return once the record names
        it.

        Raise OrderRefused, with this broker still the master, if the target does not catch up in
        time or the record cannot be written.
        """
        target = order.successor
        await self._handle(order)
        result = await self._current.acting.hand_over(order)
        if result is None:
            await self._handle(rules.Abandoned())
            raise self._not_handed_over(
                OrderRefusal.NOT_IN_SYNC,
                f"broker {target} did not catch up in time; try again when it lags less",
            )
        answer, epoch = result
        status = await self._handle(rules.HandedOver(answer, target, epoch))
        has_followed = (self._inbox.member.epoch, self._inbox.member.master) == (epoch, target)
        if answer is not Answer.APPLIED and not has_followed:
            raise self._not_handed_over(
                OrderRefusal.NOT_MASTER,
                f"the record did not confirm broker {target} as the master of epoch {epoch}:"
                f" {answer.value}; look at the state of the group before trying again",
            )
        return status

    def _not_handed_over(self, reason: OrderRefusal, text: str) -> OrderRefused:
        self._log.warning("hand_over.failed", error=text)  # a broker that stops has no caller
        return OrderRefused(reason, text)

    def _check(self, order: Order) -> None:
        """Raise OrderRefused if this member cannot obey an order that changes no role."""
        member = self._inbox.member
        if member.role not in order.obeyed_in:
            roles = " or ".join(sorted(order.obeyed_in))
            raise OrderRefused(
                OrderRefusal.NOT_MASTER,
                f"broker {member.me.ordinal} is {member.role}, not the {roles}",
            )
        if fault := order.fault(member.me.ordinal):
            raise OrderRefused(OrderRefusal.NOT_IN_SYNC, fault)

    async def _handle(self, event: rules.Event) -> Status:
        done = asyncio.get_running_loop().create_future()
        self._inbox.jobs.put_nowait(Job(event, done))
        await done
        return self.status()
