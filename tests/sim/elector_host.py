# SPDX-License-Identifier: Apache-2.0
"""The real elector on a simulated host, connected through the simulated network."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.sim.host import GROUP, BrokerProcess, Host
from tests.sim.kernel import ProcessLoop

from cometmq.control.controlled import MemberUnreachable, Report
from cometmq.elector.asked_member import AskedMember
from cometmq.elector.elector import Elector
from cometmq.elector.plan import Plan
from cometmq.ha.actions import Group, Statuses
from cometmq.ha.losses import Loss
from cometmq.ha.orders import HandOver, Order
from cometmq.ha.port import RecordUnreachable
from cometmq.ha.record import Versioned

if TYPE_CHECKING:
    from tests.sim.world import World

POLL_S: Final = 0.25
PAUSE_S: Final = 0.02
STATUS_S: Final = 0.2
ORDER_S: Final = 2.0
LONG_ORDER_S: Final = 4.0


class HastyElector(Elector):
    """An elector that a test can make consider the master lost."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_hasty = False
        loss_of = self._master.loss

        def loss(found: Versioned, statuses: Statuses, holder: AskedMember | None) -> Loss | None:
            cause = loss_of(found, statuses, holder)
            if cause is None and self.is_hasty:
                self._was_hasty = True
                return Loss.GONE
            return cause

        self._was_hasty = False
        self._master.loss = loss  # type: ignore[method-assign]

    async def round(self) -> None:
        await super().round()
        if self._was_hasty:
            self.is_hasty = self._was_hasty = False


class SimLink:
    """Sends requests to one member, like `cometmq.control.client.MemberClient`."""

    def __init__(self, world: "World", loop: ProcessLoop, source: str, target: Host) -> None:
        self._world = world
        self._loop = loop
        self._source = source
        self._target = target

    async def status(self, *, timeout_ms: int) -> Report:
        return await self._call(BrokerProcess.report, timeout_ms / 1000)

    async def watch(self, *, interval_ms: int, silence_ms: int) -> AsyncIterator[Report]:
        """Yield the status at the interval; each message is delayed, as any other."""
        while True:
            yield await self.status(timeout_ms=silence_ms)
            await asyncio.sleep(interval_ms / 1000)

    async def is_refusing(self) -> bool:
        network, target = self._world.network, self._target
        is_open = network.is_open(self._source, target.name) and network.is_open(
            target.name, self._source
        )
        await asyncio.sleep(network.delay())
        return is_open and target.is_up and target.process is None

    async def order(self, order: Order) -> Report:
        async def work(process: BrokerProcess) -> Report:
            await process.copies.member.obey(order)
            return await process.report()

        return await self._call(work, LONG_ORDER_S if isinstance(order, HandOver) else ORDER_S)

    async def _call(
        self, work: Callable[[BrokerProcess], Awaitable[Report]], timeout_s: float
    ) -> Report:
        network = self._world.network
        report: Report = await network.call(self._loop, self._source, self._target, work, timeout_s)
        return report


class ElectorHost:
    """A machine with an elector."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.name = f"e{number}"
        self.loop: ProcessLoop | None = None
        self.elector: HastyElector | None = None
        self._life = 0

    def start(self) -> None:
        world = self.world
        self._life += 1
        loop = self.loop = ProcessLoop(world.scheduler, self.name, rate=1.0, failed=world.failed)
        loop.enter(partial(self._open, loop))

    def _open(self, loop: ProcessLoop) -> None:
        world, plan = self.world, self.world.plan
        group = partial(Group, name=GROUP, min_in_sync=plan.min_in_sync)
        members = tuple(sorted(host.ordinal for host in world.hosts.values()))
        staying = tuple(one for one in members if one not in world.leaving)
        the_plan = Plan(
            group(ordinals=staying), group(ordinals=members), frozenset(world.leaving), {}
        )
        port = world.place.port(loop, self.name)
        self.elector = HastyElector(
            the_plan,
            port,
            {host.ordinal: SimLink(world, loop, self.name, host) for host in world.hosts.values()},
            timing=plan.timing,
            interval_ms=int(POLL_S * 1000),
            push_ms=int(POLL_S * 1000),
            status_timeout_ms=int(STATUS_S * 1000),
            boottime_ms=lambda: int(world.scheduler.now * 1000),
            new_uid=partial(world.new_uid, self.name, self._life),
            log=world.log(self.name),
        )
        watches = [self._watch_member(one) for one in self.elector.members.by_ordinal.values()]
        for work in (self._rounds(self.elector), self._watch(self.elector, port), *watches):
            task = loop.create_task(work, name=self.name)
            task.add_done_callback(self._ended)

    def kill(self) -> None:
        if self.loop is not None:
            self.world.graveyard.append(self.loop)
            self.loop.kill()
            self.loop = self.elector = None

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        self.world.failed(f"{task.get_name()} has ended: {error!r}")

    async def _rounds(self, elector: HastyElector) -> None:
        """Run rounds, as `cometmq.elector.app` does."""
        while True:
            elector.wake.clear()
            await elector.round()
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await elector.wake.wait()

    async def _watch_member(self, member: AskedMember) -> None:
        """Note the statuses that a member pushes, as `cometmq.elector.app` does."""
        while True:
            with contextlib.suppress(MemberUnreachable):
                reports = member.link.watch(
                    interval_ms=int(POLL_S * 1000), silence_ms=int(STATUS_S * 1000)
                )
                async for report in reports:
                    member.note_pushed(report, int(self.world.scheduler.now * 1000))
            member.note_pushed(None, int(self.world.scheduler.now * 1000))
            await asyncio.sleep(POLL_S)

    async def _watch(self, elector: HastyElector, port: Any) -> None:
        while True:
            with contextlib.suppress(RecordUnreachable):
                async for _ in port.watch():
                    elector.wake.set()
            await asyncio.sleep(POLL_S)
