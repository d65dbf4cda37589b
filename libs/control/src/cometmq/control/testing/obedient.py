# SPDX-License-Identifier: Apache-2.0
"""A member that obeys immediately, writes a real record, and runs its own control server."""

from cometmq.control.controlled import Target
from cometmq.control.server import ControlServer
from cometmq.control.testing.scripted import ScriptedMember
from cometmq.ha.port import RecordPort
from cometmq.ha.record import Versioned
from cometmq.ha.role import Role


class ObedientMember(ScriptedMember):
    """Becomes master, slave or fenced as ordered; it has no log."""

    def __init__(self, target: Target, record: RecordPort) -> None:
        super().__init__(target, incarnation=f"i{target.ordinal}")
        self.server = ControlServer(self)
        self._record = record

    async def promote(self, epoch: int) -> None:
        """Become master if the record names this member."""
        await super().promote(epoch)
        record = (await self._found()).record
        if record.holder == self.now.status.copy and record.epoch > self.now.status.promised:
            self.becomes(role=Role.MASTER, epoch=record.epoch, promised=record.epoch)

    async def follow(self, epoch: int, master: int) -> None:
        """Follow a master."""
        await super().follow(epoch, master)
        self.becomes(role=Role.SLAVE, epoch=epoch, promised=epoch)

    async def hand_over(self, successor: int, *, leaves: bool) -> None:
        """Write the record that makes another member the master, and follow it."""
        await super().hand_over(successor, leaves=leaves)
        found = await self._found()
        copy = found.record.member(successor)
        assert copy is not None
        epoch = found.record.epoch + 1
        await self._record.replace(found, found.record.elected(copy, epoch, deposes=False))
        self.becomes(role=Role.SLAVE, epoch=epoch, promised=epoch)

    async def _found(self) -> Versioned:
        found = await self._record.read()
        assert found is not None
        return found
