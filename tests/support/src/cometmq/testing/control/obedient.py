# SPDX-License-Identifier: Apache-2.0
"""A member that obeys immediately, writes a real record, and runs its own control server."""

from cometmq.control.controlled import Target
from cometmq.control.server import ControlServer
from cometmq.ha.orders import Follow, HandOver, Order, Promote
from cometmq.ha.port import RecordPort
from cometmq.ha.record import Versioned
from cometmq.ha.role import Role
from cometmq.testing.control.scripted import ScriptedMember


class ObedientMember(ScriptedMember):
    """Becomes master, slave or fenced as ordered; it has no log."""

    def __init__(self, target: Target, record: RecordPort) -> None:
        super().__init__(target, incarnation=f"i{target.ordinal}")
        self.server = ControlServer(self)
        self._record = record

    async def obey(self, order: Order) -> None:
        """Become master if the record names this member, or follow, or hand over by the record."""
        await super().obey(order)
        match order:
            case Promote():
                record = (await self._found()).record
                if (
                    record.holder == self.now.status.copy
                    and record.epoch > self.now.status.promised
                ):
                    self.becomes(role=Role.MASTER, epoch=record.epoch, promised=record.epoch)
            case Follow(epoch=epoch):
                self.becomes(role=Role.SLAVE, epoch=epoch, promised=epoch)
            case HandOver(successor=successor):
                found = await self._found()
                copy = found.record.member(successor)
                assert copy is not None
                epoch = found.record.epoch + 1
                await self._record.replace(found, found.record.elected(copy, epoch, deposes=False))
                self.becomes(role=Role.SLAVE, epoch=epoch, promised=epoch)
            case _:
                pass

    async def _found(self) -> Versioned:
        found = await self._record.read()
        assert found is not None
        return found
