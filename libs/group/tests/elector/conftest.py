# SPDX-License-Identifier: Apache-2.0
"""A group in memory: members that obey, a record, and electors on a clock that tests advance."""

import itertools

import pytest

from cometmq.control.controlled import MemberUnreachable, Target
from cometmq.elector.elector import Elector
from cometmq.elector.plan import plan_of
from cometmq.elector.settings import ElectorSettings
from cometmq.ha.fencing import Timing
from cometmq.ha.orders import Drop, Follow, HandOver, Promote, Resize
from cometmq.ha.record import Copy
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.testing.control.scripted import ScriptedMember
from cometmq.testing.ha.memory import MemoryPlace
from cometmq.testing.runtime.clock import FakeClock

GROUP = "orders"
INCARNATIONS = "mxyz"
INTERVAL_MS = 500
PUSH_MS = 900


class Log:
    def __init__(self):
        self.events = []

    def _note(self, level):
        def note(event, /, **facts):
            self.events.append((level, event, facts))

        return note

    def __getattr__(self, level):
        return self._note(level)

    def named(self, name):
        return [facts for _, event, facts in self.events if event == name]


class FakeMember(ScriptedMember):
    """Obeys orders like a broker that completes each of them immediately."""

    def __init__(self, ordinal, place):
        super().__init__(Target(GROUP, ordinal), incarnation=INCARNATIONS[ordinal])
        self.place = place
        self.is_silent = False
        self.is_refusing_connections = False

    async def obey(self, order):
        await super().obey(order)
        match order:
            case Promote():
                record = self.place.current.record
                if (
                    record.holder == self.now.status.copy
                    and record.epoch > self.now.status.promised
                ):
                    self.becomes(
                        role=Role.MASTER, epoch=record.epoch, promised=record.epoch,
                        last_log_epoch=record.epoch, has_lost_master=False,
                    )  # fmt: skip
            case Follow(epoch=epoch):
                self.becomes(
                    role=Role.SLAVE, epoch=epoch, promised=epoch, last_log_epoch=epoch,
                    has_lost_master=False,
                )  # fmt: skip
            case HandOver(successor=successor):
                found = self.place.current
                copy = next(one for one in found.record.in_sync if one.ordinal == successor)
                epoch = found.record.epoch + 1
                self.place.replace(found, found.record.elected(copy, epoch, deposes=False))
                self.becomes(role=Role.SLAVE, epoch=epoch, promised=epoch)
            case Drop(ordinal=ordinal):
                found = self.place.current
                stay = [copy for copy in found.record.in_sync if copy.ordinal != ordinal]
                self.place.replace(found, found.record.renewed(stay))
            case Resize(copies=copies):
                found = self.place.current
                self.place.replace(found, found.record.renewed(copies=copies))


class FakeLink:
    def __init__(self, member):
        self._member = member

    async def status(self, *, timeout_ms):
        self._check()
        return self._member.report()

    def watch(self, *, interval_ms, silence_ms):
        raise MemberUnreachable("these electors poll")

    async def is_refusing(self):
        return self._member.is_refusing_connections

    async def order(self, order):
        self._check()
        await self._member.obey(order)
        return self._member.report()

    def _check(self):
        if self._member.is_silent or self._member.is_refusing_connections:
            raise MemberUnreachable(f"{self._member.now.status.copy.ordinal} does not answer")


class FakeGroup:
    """The members, their record, and electors of the group."""

    def __init__(self, count):
        self.place = MemoryPlace()
        self.clock = FakeClock()
        self.members = [FakeMember(ordinal, self.place) for ordinal in range(count)]
        self.uids = (f"uid{n}" for n in itertools.count())
        self.port = self.place.port()
        self.log = Log()

    def elector(self, port=None, log=None, **settings):
        members = ";".join(f"{n}=127.0.0.1:{n + 1}" for n in range(len(self.members)))
        plan = plan_of(
            ElectorSettings(
                **{"broker_name": GROUP, "control_members": members, "min_in_sync": 1, **settings}
            )
        )
        return Elector(
            plan,
            port or self.port,
            {n: FakeLink(self.members[n]) for n in plan.addresses},
            timing=Timing(),
            interval_ms=INTERVAL_MS,
            push_ms=PUSH_MS,
            status_timeout_ms=500,
            boottime_ms=self.clock.monotonic_ms,
            new_uid=lambda: next(self.uids),
            log=log or self.log,
        )

    @property
    def found(self):
        assert self.place.current is not None
        return self.place.current

    @property
    def record(self):
        return self.found.record

    def in_sync(self, *ordinals):
        """Write the in-sync set, as a master does when its slaves have caught up."""
        found = self.found
        copies = [self.members[n].now.status.copy for n in ordinals]
        self.place.replace(found, found.record.renewed(copies))

    def renew(self):
        """Renew the record, as a master does while it can reach the record."""
        for member in self.members:
            status, found = member.now.status, self.place.current
            is_master = status.role is Role.MASTER and not member.is_refusing_connections
            if (
                found
                and is_master
                and (status.copy, status.epoch)
                == (
                    found.record.holder,
                    found.record.epoch,
                )
            ):
                self.place.replace(found, found.record.renewed())

    def roles(self):
        return [str(member.now.status.role) for member in self.members]

    def copy(self, ordinal):
        return Copy(ordinal, INCARNATIONS[ordinal])


@pytest.fixture
def pair():
    return FakeGroup(2)


@pytest.fixture
def trio():
    return FakeGroup(3)


async def rounds(elector, count=6):
    for _ in range(count):
        await elector.round()
        await elector._orders._handovers.drain(1)


async def started(group, **options):
    """Build an elector whose group has a master with every other member in sync."""
    elector = group.elector(**options)
    await rounds(elector)
    group.in_sync(*range(len(group.members)))
    for member in group.members:
        member.becomes(standing=Standing.PROVEN)
    await rounds(elector, 1)
    return elector
