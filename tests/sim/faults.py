# SPDX-License-Identifier: Apache-2.0
"""Injects faults into the group: each method injects one fault, and repairs it later.

At least one intact copy of everything acknowledged must remain. A host therefore crashes only if
the record still counts on enough intact copies without it.
"""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from tests.sim.disk import SimDisk, SimFiles
from tests.sim.host import BrokerProcess, Host
from tests.sim.place import NAME as RECORD
from tests.sim.plan import FAULTS

from cometmq.ha.actions import Tell
from cometmq.ha.orders import Fence, Follow
from cometmq.ha.planned import switch_over
from cometmq.ha.role import Role as MemberRole
from cometmq.ha.state import Standing

if TYPE_CHECKING:
    from tests.sim.world import World

ORDINALS: Final = 5
USED_PERCENT: Final = 10


class Nemesis:
    """Injects the faults of a plan at random times."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = world.random
        self._is_over = False
        self._aside: tuple[Host, SimDisk, SimFiles] | None = None

    def begin(self) -> None:
        plan, network = self._world.plan, self._world.network
        network.late_chance, network.twice_chance = plan.late_chance, plan.twice_chance
        place = self._world.place
        place.broker_unknown_chance, place.lands_chance = plan.unknown_chance, plan.lands_chance
        if plan.chaos_bytes_s:
            self._limit(plan.chaos_bytes_s)
        if plan.faults:
            self._later(self._step)

    def _later(self, action: Callable[[], None], mean_s: float = 0.0) -> None:
        mean_s = mean_s or self._world.plan.pause_s
        self._world.scheduler.after(self._random.expovariate(1 / mean_s), action)

    def _step(self) -> None:
        if self._is_over:
            return
        plan = self._world.plan
        weights = [plan.weights.get(kind, FAULTS[kind]) for kind in plan.faults]
        (kind,) = self._random.choices(plan.faults, weights)
        getattr(self, kind)()
        self._later(self._step)

    def repair(self) -> None:
        """End all faults, and start everything that is not running."""
        world = self._world
        self._is_over = True
        world.note("nemesis", "repairs everything")
        if world.plan.chaos_bytes_s:
            self._limit(world.plan.transfer_bytes_s)
        world.network.late_chance = world.network.twice_chance = 0.0
        world.network.delay_s = min(world.network.delay_s, 0.01)
        world.place.unknown_chance = world.place.broker_unknown_chance = 0.0
        world.place.is_slow = False
        world.network.heal()
        self._mount_own()
        for host in world.hosts.values():
            self._repair_host(host)
        for elector in world.electors:
            if elector.loop is None:
                elector.start()
        self._restart_failed()

    def _limit(self, bytes_s: int) -> None:
        """Change the rate at which masters send their log."""
        for host in self._hosts():
            host.settings = msgspec.structs.replace(
                host.settings, max_ha_transfer_byte_in_second=bytes_s
            )
            if host.process is not None:
                host.process.broker.settings = host.settings

    def _repair_host(self, host: Host) -> None:
        self._mend(host)
        host.is_up = host.is_wanted = True
        if host.process is not None:
            host.process.loop.resume()
            host.process.loop.is_slow = False
        else:
            host.start()

    def _restart_failed(self) -> None:
        """Restart brokers whose disk has failed, as a supervisor does."""
        for host in self._hosts():
            if host.process is not None and host.process.member.role is MemberRole.FAILED:
                self._note(host.name, "is restarted after its disk failed")
                host.kill()
                host.start()
        self._world.scheduler.after(0.5, self._restart_failed)

    # Hosts and processes

    def kill(self) -> None:
        hosts = [self._host()]
        if self._world.plan.kills_several and self._random.random() < 0.5:
            count = self._random.randint(2, len(self._world.hosts))
            hosts = self._random.sample(self._hosts(), count)
        for host in hosts:
            self._note(host.name, "is killed")
            host.kill()
            self._later(host.start, self._random.choice((0.05, 0.5)))

    def crash(self) -> None:
        host = self._host()
        if self._may_crash(host):
            host.crash()
            self._later(host.boot_again, self._random.choice((0.1, 0.6)))

    def freeze(self) -> None:
        host = self._host()
        process = host.process
        if process is not None:
            self._note(host.name, "is frozen")
            process.loop.pause()
            self._later(lambda: self._thaw(host, process), self._random.choice((0.1, 1.0)))

    def _thaw(self, host: Host, process: BrokerProcess) -> None:
        if not process.loop.is_dead:
            self._note(host.name, "goes on")
            process.loop.resume()

    def slow_loop(self) -> None:
        host = self._host()
        process = host.process
        if process is not None:
            process.loop.is_slow = True
            self._later(lambda: setattr(process.loop, "is_slow", False), 0.5)

    def jump(self) -> None:
        host = self._host()
        host.wall_jump_ms += self._random.choice((-3_600_000, -5_000, 5_000, 3_600_000))

    # Disks

    def slow_disk(self) -> None:
        host = self._host()
        self._note(host.name, "has a slow disk")
        host.disk_latency_s = self._random.choice((0.02, 0.2, 1.0))
        self._later(lambda: self._mend(host), 1.0)

    def bad_disk(self) -> None:
        """Make fsync fail, so that the broker stops and is restarted; or fill the disk."""
        host = self._host()
        if self._world.plan.only_fills_disks:
            self._note(host.name, "cannot save its state: the disk is full")
            host.files.error = errno.ENOSPC
            self._later(lambda: self._mend(host), 0.5)
            return
        self._note(host.name, "cannot sync")
        host.files.error = errno.EIO
        host.disk.fault = lambda operation, _path: 5 if operation == "sync" else 0
        self._later(lambda: self._replace_disk(host), 0.5)

    def full_disk(self) -> None:
        """Fill a broker's disk, most often the master's, long enough for a slave to take over."""
        current = self._world.place.current
        host = self._host()
        if current is not None and self._random.random() < 0.7:
            host = self._world.hosts[f"b{current.record.holder.ordinal}"]
        self._note(host.name, "has a full disk")
        host.disk.used_percent = 100
        host.disk.fault = lambda operation, _path: (
            errno.ENOSPC if operation in ("write", "create", "resize") else 0
        )
        if self._random.random() < 0.5:  # otherwise there is room for small files
            host.files.error = errno.ENOSPC
        self._later(lambda: self._mend(host), 1.0)

    def _mend(self, host: Host) -> None:
        host.disk.used_percent = USED_PERCENT
        host.disk_latency_s = 0.001
        host.files.error = 0
        host.disk.fault = None

    def _replace_disk(self, host: Host) -> None:
        if host.files.error:
            self._mend(host)
            self._note(host.name, "can sync again")
            if host.process is not None and host.process.member.role is MemberRole.FAILED:
                host.kill()
                host.start()

    def empty_store(self) -> None:
        """Run a broker with an empty store for a while, as if its volume were not mounted."""
        host = self._host()
        if self._aside is None:
            self._note(host.name, "starts with an empty store")
            self._aside = host, host.disk, host.files
            host.mount(SimDisk(), SimFiles())
            self._later(self._mount_own, self._random.choice((0.3, 1.0)))

    def _mount_own(self) -> None:
        """Give a broker its own store again, unless the group now relies on the other one."""
        if self._aside is None:
            return
        (host, disk, files), self._aside = self._aside, None
        state = self._world.state_of(host)
        if state is None or state.standing is not Standing.PROVEN:
            self._note(host.name, "starts with its own store again")
            host.mount(disk, files)

    # Network

    def isolate(self) -> None:
        host = self._host()
        others = self._names(but=host.name)
        if self._random.random() < 0.5:
            others = [name for name in others if self._random.random() < 0.6]
        self._block([(host.name, name) for name in others] + [(name, host.name) for name in others])

    def one_way(self) -> None:
        host = self._host()
        others = [name for name in self._names(but=host.name) if self._random.random() < 0.7]
        if self._random.random() < 0.5:
            self._block([(host.name, name) for name in others])
        else:
            self._block([(name, host.name) for name in others])

    def part(self) -> None:
        """Cut two brokers off from each other only."""
        one, two = self._random.sample(self._hosts(), 2)
        self._block([(one.name, two.name), (two.name, one.name)])

    def exile(self) -> None:
        """Cut the master off from the record and the electors, but not from brokers and clients."""
        found = self._world.place.current
        if found is not None:
            name = f"b{found.record.holder.ordinal}"
            others = [elector.name for elector in self._world.electors] + [RECORD]
            self._block([(name, one) for one in others] + [(one, name) for one in others])

    def _block(self, pairs: list[tuple[str, str]]) -> None:
        network = self._world.network
        pairs = [pair for pair in pairs if pair not in network.blocked]
        self._note("network", "is cut", pairs=" ".join(f"{one}>{two}" for one, two in pairs))
        network.blocked.update(pairs)
        self._later(lambda: self._unblock(pairs), self._random.choice((0.2, 1.0, 3.0)))

    def _unblock(self, pairs: list[tuple[str, str]]) -> None:
        network = self._world.network
        if not self._is_over:
            network.blocked.difference_update(pairs)
            self._note("network", "heals", pairs=" ".join(f"{one}>{two}" for one, two in pairs))
            network.retry()

    def cut(self) -> None:
        host = self._host()
        self._note(host.name, "loses its connections")
        self._world.network.cut(host.name)

    def hide_record(self) -> None:
        names = [host.name for host in self._hosts() if self._random.random() < 0.6]
        names += [elector.name for elector in self._world.electors if self._random.random() < 0.3]
        way = self._random.random()
        pairs = [(name, RECORD) for name in names] if way < 0.7 else []
        pairs += [(RECORD, name) for name in names] if way > 0.3 else []
        self._block(pairs)

    def lose_answers(self) -> None:
        place = self._world.place
        self._note(RECORD, "answers only some writes")
        place.unknown_chance = self._random.choice((0.3, 0.8))
        self._later(lambda: setattr(place, "unknown_chance", 0.0), 0.8)

    def slow_record(self) -> None:
        place = self._world.place
        place.is_slow = True
        self._later(lambda: setattr(place, "is_slow", False), 0.8)

    def delete(self) -> None:
        self._note(RECORD, "is deleted by a person")
        self._world.place.delete()

    # Elections

    def elect(self) -> None:
        """Make an elector consider the master lost."""
        elector = self._random.choice(self._world.electors).elector
        if elector is not None:
            elector.is_hasty = True
            elector.wake.set()

    def switch_over(self) -> None:
        found = self._world.place.current
        elector = self._random.choice(self._world.electors)
        if found is None or elector.elector is None or elector.loop is None:
            return
        statuses = tuple(
            host.process.copies.member.status()
            for host in self._hosts()
            if host.process is not None
        )
        order = switch_over(found.record, statuses)
        if isinstance(order, Tell):
            self._note(elector.name, "orders a switchover", target=order.order.successor)
            work = elector.elector._perform(order)
            elector.loop.call_soon(elector.loop.create_task, work)

    def fence(self) -> None:
        process = self._host().process
        found = self._world.place.current
        if process is not None and found is not None:
            epoch = found.record.epoch + self._random.choice((0, 1))
            self._note(process.name, "is fenced", epoch=epoch)

            async def work(one: BrokerProcess) -> Any:
                return await one.copies.member.obey(Fence(epoch))

            process.serve(work, lambda _result, _error: None)

    def repeat_order(self) -> None:
        """Deliver an order from a past epoch, as if the network had delayed it."""
        past = self._world.place.past_holders
        if past:
            epoch, master = self._random.choice(past[-4:])
            host = self._random.choice(self._hosts())
            if host.ordinal != master and host.process is not None:
                self._note(host.name, "gets a late order", epoch=epoch, master=master)

                async def work(one: BrokerProcess) -> Any:
                    return await one.copies.member.obey(Follow(epoch, master))

                host.process.serve(work, lambda _result, _error: None)

    def stop_elector(self) -> None:
        elector = self._random.choice(self._world.electors)
        if elector.loop is not None:
            self._note(elector.name, "is killed")
            elector.kill()
            self._later(lambda: elector.start() if elector.loop is None else None, 0.5)

    def resize(self) -> None:
        """Add a broker to the group, or remove one."""
        world = self._world
        staying = [host for host in self._hosts() if host.ordinal not in world.leaving]
        if len(world.hosts) < ORDINALS and self._random.random() < 0.6:
            host = world.add_host(len(world.hosts))
            host.start()
            self._note(host.name, "is added")
        elif len(staying) > max(2, world.plan.min_in_sync):
            host = self._random.choice(staying)
            world.leaving.add(host.ordinal)
            self._note(host.name, "is to leave")
        for elector in world.electors:
            elector.kill()
            elector.start()

    # Choices

    def _hosts(self) -> list[Host]:
        return sorted(self._world.hosts.values(), key=lambda host: host.ordinal)

    def _host(self) -> Host:
        """Return a random host, most often the master's."""
        found = self._world.place.current
        if found is not None and self._random.random() < 0.4:
            return self._world.hosts[f"b{found.record.holder.ordinal}"]
        return self._random.choice(self._hosts())

    def _names(self, but: str) -> list[str]:
        world = self._world
        names = [host.name for host in self._hosts()] + [one.name for one in world.electors]
        names += [client.name for client in world.clients] + [RECORD]
        return [name for name in names if name != but]

    def _may_crash(self, host: Host) -> bool:
        """Return whether the group can afford to lose the unsynced bytes of this host."""
        world = self._world
        found = world.place.current
        if found is None:
            return False
        record = found.record
        return any(
            copy.ordinal != host.ordinal and world._incarnation(copy.ordinal) == copy.incarnation
            for copy in record.in_sync
        )

    def _note(self, name: str, event: str, **facts: Any) -> None:
        self._world.note("nemesis", f"{name} {event}", **facts)
