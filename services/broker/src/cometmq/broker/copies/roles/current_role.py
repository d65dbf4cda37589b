# SPDX-License-Identifier: Apache-2.0
"""Holds the object of a member's current role."""

import asyncio

from cometmq.broker.broker import Broker
from cometmq.broker.copies.roles.acting import Acting, InactiveRole
from cometmq.broker.copies.roles.master_role import MasterRole


class CurrentRole:
    """The current role object; only role changes replace it (`role_changes.py`)."""

    def __init__(self, broker: Broker) -> None:
        self.acting: Acting = InactiveRole()
        self._broker = broker
        self._confirmed_led = 0  # by this broker, in its last leadership
        self._led = asyncio.Event()

    @property
    def leading(self) -> MasterRole | None:
        """The current role if it is the master's and has not ended; otherwise None."""
        acting = self.acting
        if isinstance(acting, MasterRole) and not acting.confirmation.has_ended():
            return acting
        return None

    @property
    def confirm_offset(self) -> int:
        """The last confirm offset known to this member, but at most the end of its log; 0 if none
        is known.
        """
        return min(self.acting.confirm_offset(), self._broker.store.commit_log.end)

    async def run(self) -> None:
        """Run the record writer of each leadership, one after another, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._led.wait()
                self._led.clear()
                if (leading := self.leading) is not None:
                    group.create_task(leading.writer.run(), name="member-leader")

    def lead(self, leading: MasterRole) -> None:
        self.acting = leading
        self._led.set()

    def deactivate(self, followed: int) -> None:
        """End the role of master or slave; `followed` is the confirm offset last known as a
        slave.
        """
        ended = self.acting
        if isinstance(ended, MasterRole):
            self._confirmed_led = ended.confirm_offset()
            ended.confirmation.end()
        self.acting = InactiveRole(max(self._confirmed_led, followed))

    def before_write(self) -> None:
        """Close all connections if this master's lease has lapsed; runs before answers are sent."""
        self.acting.before_write()
