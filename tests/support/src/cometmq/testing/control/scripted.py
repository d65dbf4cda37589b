# SPDX-License-Identifier: Apache-2.0
"""A member that records its orders and reports the status that a test has set."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.control.controlled import ConfigChange, Report, Target
from cometmq.ha.actions import Status
from cometmq.ha.orders import Fence, Order
from cometmq.ha.record import Copy
from cometmq.ha.role import Role
from cometmq.remoting.errors import SettingsError

TARGET: Final = Target("orders", 1)


class ScriptedMember:
    """Records orders without executing them; a test changes `now` and reads `orders`."""

    def __init__(self, target: Target = TARGET, *, incarnation: str = "x") -> None:
        self.now = Report(
            group=target.group,
            status=Status(copy=Copy(target.ordinal, incarnation), role=Role.SLAVE, promised=0),
        )
        self.orders: list[Order] = []
        self.refusal: Exception | None = None
        """The error that every order raises, if set."""
        self.gate = asyncio.Event()
        """Orders wait until this event is set."""
        self.gate.set()
        self._changed = asyncio.Event()

    def becomes(self, **changes: Any) -> None:
        """Change fields of the reported status."""
        status = msgspec.structs.replace(self.now.status, **changes)
        self.now = msgspec.structs.replace(self.now, status=status)
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next call of `becomes`."""
        await self._changed.wait()

    def report(self) -> Report:
        """Return the status that the test has set."""
        return self.now

    async def obey(self, order: Order) -> None:
        """Record an order; become fenced if that is the order."""
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        self.orders.append(order)
        if isinstance(order, Fence):
            self.becomes(role=Role.FENCED, promised=order.epoch, epoch=0)

    async def update_config(self, changes: Mapping[str, str]) -> ConfigChange:
        """Accept every setting except `nonsense`; `storePathRootDir` needs a restart."""
        if "nonsense" in changes:
            raise SettingsError("nonsense: unknown setting")
        later = [name for name in changes if name == "storePathRootDir"]
        return ConfigChange(tuple(set(changes) - set(later)), tuple(later))
