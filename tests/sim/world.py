# SPDX-License-Identifier: Apache-2.0
"""Performs one run: a group with its record, electors and clients, and the faults they suffer.

A run has three phases. First, the group forms. Then faults happen while clients work. Finally,
everything is repaired, and the group must become complete again, with identical logs that hold
every acknowledged message.
"""

import contextlib
import hashlib
from math import inf
from random import Random
from typing import Any, Final

import msgspec
from tests.sim.clients import Client
from tests.sim.elector_host import ElectorHost
from tests.sim.faults import Nemesis
from tests.sim.host import BrokerProcess, Host
from tests.sim.kernel import ProcessLoop, Scheduler
from tests.sim.network import Network, SimTransport
from tests.sim.oracle import Oracle
from tests.sim.place import Place
from tests.sim.plan import Plan

from cometmq.broker.copies.streams import follower_stream
from cometmq.ha.state import STATE_FILE, State

FORM_S: Final = 1.0
USUAL_S: Final = 6.0
SETTLE_S: Final = 40.0
"""A repaired group is complete after at most this time."""
TRACE_LINES_MAX: Final = 20_000


class ViolationFound(Exception):
    """Ends the callback that found a broken promise; the run then ends too."""


class SimLog:
    """The events of one process, as lines of the run's history."""

    def __init__(self, world: "World", name: str) -> None:
        self._world = world
        self._name = name

    def debug(self, event: str, /, **facts: object) -> None:
        """Keep debug events out of the history."""

    def info(self, event: str, /, **facts: object) -> None:
        self._world.note(self._name, event, **facts)

    warning = info

    def error(self, event: str, /, **facts: object) -> None:
        self._world.note(self._name, event, **facts)
        if event == "task.failed":
            self._world.failed(f"{self._name}: task {facts.get('task')}: {facts.get('error')}")


class World:
    """The complete state of one run."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.random = random = Random(f"run {seed}")
        self.scheduler = Scheduler(random)
        self.hosts: dict[str, Host] = {}
        self.network = Network(self.scheduler, self.hosts)
        self.network.delay_s = plan.delay_s
        self.place = Place(self.scheduler, self.network, self.note)
        self.oracle = Oracle(self)
        self.violation = ""
        self.outcome = ""
        self.leaving: set[int] = set()
        self.graveyard: list[BrokerProcess | ProcessLoop] = []
        self._trace: list[tuple[float, str, str, dict[str, object]]] = []
        self._formed_s = inf
        self._uid_count = 0
        SimTransport.count = 0
        for ordinal in range(plan.copies):
            self.add_host(ordinal)
        self.electors = [ElectorHost(self, number) for number in range(plan.electors)]
        self.clients = [Client(self, number) for number in range(plan.clients)]
        self.nemesis = Nemesis(self)

    def add_host(self, ordinal: int) -> Host:
        host = Host(self, ordinal, self.plan.settings())
        self.hosts[host.name] = host
        return host

    def new_uid(self, name: str, life: int) -> str:
        self._uid_count += 1
        return f"uid-{name}-{life}-{self._uid_count}"

    # History

    def note(self, name: str, event: str, /, **facts: object) -> None:
        if len(self._trace) < TRACE_LINES_MAX:
            self._trace.append((self.scheduler.now, name, event, facts))

    def log(self, name: str) -> SimLog:
        return SimLog(self, name)

    def history(self) -> list[str]:
        """Return the history, one line per event."""
        return [
            f"{now:9.4f} {name:7} {event}"
            + "".join(f" {key}={_short(value)}" for key, value in facts.items())
            for now, name, event, facts in self._trace
        ]

    def digest(self) -> str:
        """Return a digest of all that the run has determined: history, disks and random state."""
        parts = [*self.history(), self.violation or self.outcome, str(self.scheduler.event_count)]
        for name, host in sorted(self.hosts.items()):
            for path, data in sorted(host.disk.contents.items()):
                parts.append(f"{name} {path} {data.hex()}")
            for small, content in sorted(host.files.contents.items()):
                parts.append(f"{name} {small} {content.hex()}")
        parts.append(str(self.random.getrandbits(64)))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def failed(self, text: str) -> None:
        """Record a failure of the programs, and end the run."""
        if not self.violation and not self.outcome:
            self.violation = text
            self.note("oracle", text)
            self.scheduler.is_stopped = True

    def violated(self, text: str) -> None:
        """Record a broken promise, and end the run."""
        self.failed(text)
        raise ViolationFound(text)

    # The run

    def run(self) -> None:
        """Run, and leave the result in `violation` and `outcome`."""
        streams: Any = follower_stream
        before, streams.SLICE_BYTES = streams.SLICE_BYTES, self.plan.slice_bytes
        try:
            with contextlib.suppress(ViolationFound):
                self._run()
            if self.scheduler.is_livelock:
                self.failed(f"livelock: {self.scheduler.event_count} events")
        finally:
            streams.SLICE_BYTES = before

    def _run(self) -> None:
        scheduler, plan = self.scheduler, self.plan
        for host in self.hosts.values():
            scheduler.after(self.random.random() * 0.1, host.start)
        for elector in self.electors:
            elector.start()
        for client in self.clients:
            scheduler.after(FORM_S / 2 * self.random.random(), client.step)
        if not plan.is_early:
            scheduler.run(20.0, self._has_formed)
            if scheduler.is_stopped:
                return
            if scheduler.now >= 20.0:
                self.failed("the group has not formed after 20 s")
                return
            self.note("world", "the group has formed")
        self._formed_s = scheduler.now
        self.nemesis.begin()
        scheduler.run(self._formed_s + plan.chaos_s)
        self.nemesis.repair()
        scheduler.run(scheduler.now + 0.5)
        for client in self.clients:
            client.is_stopped = True
        repaired = scheduler.now
        is_complete = scheduler.run(repaired + USUAL_S, self._is_complete)
        if not is_complete and not scheduler.is_stopped and not self._why_blocked():
            is_complete = scheduler.run(repaired + SETTLE_S, self._is_complete)
        if scheduler.is_stopped:
            return
        if not is_complete:
            outcome = self._why_blocked()
            if not outcome:
                self.failed(f"not complete {SETTLE_S} s after the repair: {self._missing()}")
            self.outcome = outcome
            return
        self._check_end()
        self.outcome = self.outcome or "complete"

    @property
    def has_settled(self) -> bool:
        """Return whether the group has formed and its master has learned this."""
        return self.scheduler.now > self._formed_s + SETTLE_IN_S

    def _has_formed(self) -> bool:
        found = self.place.current
        return found is not None and len(found.record.in_sync) == len(self.hosts)

    def _missing(self) -> str:
        found = self.place.current
        if found is None:
            return "there is no record"
        record = found.record
        holder = self.hosts[f"b{record.holder.ordinal}"].process
        if holder is None or not holder.is_master or holder.member.epoch != record.epoch:
            return f"broker {record.holder.ordinal} is not the master of epoch {record.epoch}"
        leading = holder.copies.roles.leading
        if leading is None or leading.view.confirmed != holder.end_offset:
            return "the master has not confirmed its log"
        staying = {host.ordinal for host in self.hosts.values()} - self.leaving
        if {copy.ordinal for copy in record.in_sync} != staying or record.copies != len(staying):
            return f"the set is {record.in_sync} with {record.copies} copies, not {staying}"
        for ordinal in sorted(staying):
            process = self.hosts[f"b{ordinal}"].process
            if process is None or process.end_offset != holder.end_offset:
                return f"broker {ordinal} does not have the whole log"
            if process.store.commit_log.confirm_offset != holder.end_offset:
                return f"broker {ordinal} does not show the whole log"
            history = process.copies.parts.follower.replica.epochs.history
            if history != holder.copies.parts.follower.replica.epochs.history:
                return f"broker {ordinal} has another history"
            if process.broker.topics.values != holder.broker.topics.values:
                return f"broker {ordinal} has other tables"
        return ""

    def _is_complete(self) -> bool:
        return not self._missing()

    def _why_blocked(self) -> str:
        """Return why this group needs an administrator; empty if it should recover on its own."""
        found = self.place.current
        if found is None:
            return "blocked: no record, and copies that may have lost something"
        record = found.record
        alive = [
            copy for copy in record.in_sync if self._incarnation(copy.ordinal) == copy.incarnation
        ]
        return "" if alive else "blocked: every copy in sync was lost"

    def _incarnation(self, ordinal: int) -> str:
        state = self.state_of(self.hosts[f"b{ordinal}"])
        return "" if state is None else state.incarnation

    def state_of(self, host: Host) -> State | None:
        """Return the saved state of a host's store, or None if there is none."""
        files = host.files.contents
        data = next((data for path, data in files.items() if path.name == STATE_FILE), b"")
        return decode_state(data) if data else None

    def _check_end(self) -> None:
        """Check logs, messages and queues of a complete group."""
        staying = [host for host in self.hosts.values() if host.ordinal not in self.leaving]
        processes = [host.process for host in staying if host.process is not None]
        logs = {process.name: process.log_bytes(0, process.end_offset) for process in processes}
        first = logs[processes[0].name]
        for name, log in logs.items():
            if log != first:
                self.violated(f"the logs of {processes[0].name} and {name} differ")
        for offset, body in self.oracle.acknowledged.items():
            if body not in first[offset : offset + 300]:
                self.violated(f"the acknowledged message {body!r} is not at {offset}")
        for client in self.clients:
            for body in client.acknowledged:
                if body not in first:
                    self.violated(f"the acknowledged message {body!r} is lost")
        counts = {
            tuple(process.store.reader.max_offset("T", queue) for queue in range(2))
            for process in processes
        }
        if len(counts) != 1:
            self.violated(f"the queues have different lengths: {counts}")
        if not self.plan.faults:
            broken = sum(client.broken_count for client in self.clients)
            if len(self.oracle.opened_epochs) != 1 or broken:
                self.violated(f"without faults, {broken} requests to the master failed")

    def close(self) -> None:
        """End all tasks, so that nothing refers to this world afterwards."""
        loops = [one if isinstance(one, ProcessLoop) else one.loop for one in self.graveyard]
        loops += [host.process.loop for host in self.hosts.values() if host.process is not None]
        loops += [one.loop for one in self.electors if one.loop is not None]
        self.outcome = self.outcome or "ended"
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.close_tasks()
        self.graveyard.clear()


SETTLE_IN_S: Final = 0.2
"""Time within which a master learns that its group has formed."""


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 160 else text[:157] + "..."


def decode_state(data: bytes) -> State:
    return msgspec.json.decode(data, type=State)
